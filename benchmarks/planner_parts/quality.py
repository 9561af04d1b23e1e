"""How good plans are: agent against heuristics and portfolio, portfolio against bounds, measured steps."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from shardgym.agents.judging.bounds import lower_bound
from shardgym.agents.learning.agent import Agent
from shardgym.agents.planners.heuristics import LargestFirstPlanner, heuristic_planners
from shardgym.agents.planners.local_search import LocalSearchPlanner
from shardgym.agents.planners.planner import NoPlacementFoundError, Planner
from shardgym.agents.planners.portfolio import PortfolioPlanner
from shardgym.costmodel.fit import fit_additive
from shardgym.costmodel.measuring.measured_cost import MeasuredCost
from shardgym.costmodel.measuring.meter import Meter
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.costmodel.shipped import shipped_samples
from shardgym.envs.families import FAMILIES, family
from shardgym.problem.tasks import Task

DLRM = tuple(name for name in FAMILIES if name.startswith("dlrm"))
TIGHT = tuple(name for name in FAMILIES if name.startswith("tight"))
FUSED = ("dlrm-50x4", "dlrm-100x4", "dlrm-80x8", "dlrm-200x8", "mixed-50x4", "mixed-100x8")


def steps(planner: Planner, tasks: Sequence[Task], model: SummedCostModel, seconds: float) -> np.ndarray:
    """Predicted step of a planner's placement of each task, infinite where it finds none."""
    found = []
    for task in tasks:
        try:
            placement = planner.plan(task, seconds)
            placement.validate(task)
            found.append(float(model.cost(task, placement).step))
        except NoPlacementFoundError:
            found.append(np.inf)
    return np.array(found)


def agent_greedy(agent: Agent, tasks: int, seconds: float) -> dict[str, Any]:
    """The agent's one pass over the best heuristic of each family (by mean), and over the portfolio."""
    model = agent.cost_model
    over_heuristic, over_model_greedy, over_portfolio, portfolio_over_best = {}, {}, {}, {}
    for name in (*DLRM, "large-1000x128"):
        held_out = family(name).all_tasks()[: tasks if name in DLRM else 2]
        ours = steps(agent, held_out, model, seconds)
        heuristics = [steps(planner, held_out, model, seconds) for planner in heuristic_planners()]
        best = min(heuristics, key=np.mean)
        greedy = steps(LargestFirstPlanner(model), held_out, model, seconds)
        search = steps(LocalSearchPlanner(model), held_out, model, seconds)
        portfolio = steps(PortfolioPlanner(model, (agent,)), held_out, model, seconds)
        over_heuristic[name] = float((ours / best).mean())
        over_model_greedy[name] = float((ours / greedy).mean())
        over_portfolio[name] = float((ours / portfolio).mean())
        portfolio_over_best[name] = float((portfolio / np.minimum.reduce([ours, *heuristics, greedy, search])).mean())
    return {
        "agent_vs_best_heuristic": over_heuristic,
        "agent_vs_largest_first": over_model_greedy,
        "agent_vs_portfolio": over_portfolio,
        "portfolio_vs_best_single": portfolio_over_best,
    }


def portfolio_to_bound(tasks: int, seconds: float) -> dict[str, Any]:
    """Portfolio over the certified bound under both models that have one, and its share of feasible plans."""
    ratios, feasible = {}, {}
    for label, model in (("roofline", RooflineCost()), ("additive", fit_additive(shipped_samples()))):
        planner = PortfolioPlanner(model)
        for name in ("dlrm-40x4", "dlrm-50x4", "dlrm-100x4", "dlrm-80x8", "dlrm-200x8", *TIGHT):
            held_out = family(name).all_tasks()[:tasks]
            found = steps(planner, held_out, model, seconds)
            bounds = np.array([lower_bound(task, model).ms for task in held_out])
            fits = np.isfinite(found)
            ratios[f"{label}.{name}"] = float((found[fits] / bounds[fits]).mean())
            feasible[f"{label}.{name}"] = float(fits.mean())
    return {"portfolio_to_bound": ratios, "feasible": feasible}


def rl_worth(agent: Agent, tasks: int) -> dict[str, Any]:
    """Portfolio started by the agent over the portfolio without it, at equal time; below 1 the agent is worth it."""
    model, worth = agent.cost_model, {}
    for seconds in (0.1, 1.0):
        for name in FUSED:
            held_out = family(name).all_tasks()[:tasks]
            having = steps(PortfolioPlanner(model, (agent,)), held_out, model, seconds)
            without = steps(PortfolioPlanner(model), held_out, model, seconds)
            worth[f"{name}@{seconds:g}s"] = float((having / without).mean())
    return {"rl_worth": worth}


def measured(agent: Agent, seconds: float, tasks: int = 10, batch_size: int = 2048) -> dict[str, Any]:
    """Mean measured step, ms, of each method on held-out tasks; shards run one after another on this machine.

    The tables' rows are cut to 200,000, so that 20 tables fit this machine; their traffic stays.
    """
    model, meter = agent.cost_model, MeasuredCost(Meter("cpu", seed=0))
    planners = (*heuristic_planners(), LargestFirstPlanner(model), agent, PortfolioPlanner(model, (agent,)))
    found: dict[str, list[float]] = {planner.name: [] for planner in planners}
    for task in family("dlrm-20x4").all_tasks()[:tasks]:
        tables = tuple(replace(table, rows=min(table.rows, 200_000)) for table in task.tables)
        small = replace(task, tables=tables, batch_size=batch_size)
        for planner in planners:
            found[planner.name].append(float(meter.cost(small, planner.plan(small, seconds)).step))
    return {"measured": {name: float(np.mean(values)) for name, values in found.items()}}
