"""The commands about planners: compare them at equal time, certify a plan, check a certificate."""

import itertools
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardgym.cli.options import AgentFile, AnyHardware, CostModelName
from shardgym.problem.units import parse_seconds

if TYPE_CHECKING:
    from shardgym.agents.planners.planner import Planner
    from shardgym.costmodel.pricing.summed import SummedCostModel

app = typer.Typer()

SUITE_HELP = "quick, dlrm, tight, mixed, criteo, large, all, or families with commas: dlrm-50x4,tight-50x4."


@app.command()
def compare(
    suite: Annotated[str, typer.Option(help=SUITE_HELP)] = "quick",
    budget: Annotated[str, typer.Option(help="Planning times with commas between: 0.1,1,10.")] = "0.1,1",
    tasks: Annotated[int, typer.Option(help="Held-out tasks of each family.", min=1)] = 10,
    out: Annotated[Path, typer.Option(help="Folder of compare.html and compare.json.")] = Path("runs/compare"),
    cost_model: CostModelName = "shipped",
    agent: AgentFile = None,
    any_hardware: AnyHardware = False,
    measure: Annotated[bool, typer.Option("--measure", help="Run every plan's shards on this machine too.")] = False,
    seed: Annotated[int, typer.Option(help="The same seed gives the same result.")] = 0,
) -> None:
    """Every planner on every held-out task of a suite, at equal planning time: one table, JSON and HTML with plots."""
    from shardgym.agents.judging.compare import compare as run, suite_tasks, summarise
    from shardgym.agents.learning.agent import Agent
    from shardgym.agents.learning.pretrained import pretrained_agent
    from shardgym.cli.compare_report import rich_table, write_html, write_trials
    from shardgym.cli.console import console, progress_bars
    from shardgym.costmodel.measuring.measured_cost import MeasuredCost
    from shardgym.costmodel.measuring.meter import Meter
    from shardgym.costmodel.named import cost_model as named_cost_model

    model = named_cost_model(cost_model, any_hardware)
    budgets = [parse_seconds(part) for part in budget.split(",")]
    chosen = suite_tasks(suite, tasks)
    planners = all_planners(model, Agent.load(agent, model) if agent else pretrained_agent(model), seed)
    total = sum(map(len, chosen.values())) * len(budgets) * len(planners)
    meter = MeasuredCost(Meter("cpu", seed=seed)) if measure else None
    done = itertools.count(1)
    with progress_bars() as progress:
        trials = run(
            chosen,
            planners,
            budgets,
            model,
            meter,
            lambda trial: progress("compare planners", next(done), total, f"{trial.family} {trial.planner}"),
        )
    summaries = summarise(trials)
    about = f"Suite {suite}, {tasks} held-out tasks per family; costs by {cost_model}."
    write_trials(out / "compare.json", trials, summaries)
    write_html(out / "compare.html", trials, summaries, about)
    console.print(rich_table(summaries, f"planners on {suite}"))
    console.print(f"wrote {out}/compare.html and {out}/compare.json", soft_wrap=True)


@app.command()
def certify(
    plan: Annotated[Path, typer.Argument(help="A plan written by `shardgym plan`.")],
    cost_model: CostModelName = "shipped",
    check: Annotated[Path | None, typer.Option(help="Check this certificate of the plan; write none.")] = None,
    out: Annotated[Path, typer.Option(help="The certificate to write.")] = Path("certificate.json"),
    any_hardware: AnyHardware = False,
) -> None:
    """Prove how far a plan can be from the best, or check such a proof without trusting who made it."""
    from shardgym.agents.judging import certificates
    from shardgym.cli.console import console
    from shardgym.costmodel.named import cost_model as named_cost_model
    from shardgym.problem.plan_files import read_plan

    model, made = named_cost_model(cost_model, any_hardware), read_plan(plan)
    if check is not None:
        found = certificates.check(certificates.read_certificate(check), made.task, model)
        console.print(f"{check}: holds")
    else:
        found = certificates.certify(made.task, made.chosen().placement, model)
        certificates.write_certificate(out, found)
        console.print(f"wrote {out}", soft_wrap=True)
    gap = "nothing is proven about the best" if found.bound_ms <= 0 else f"at most {found.gap:.2%} above the best"
    console.print(f"step {found.step_ms:.4g} ms, no plan is below {found.bound_ms:.4g} ms: {gap}")


def all_planners(cost_model: "SummedCostModel", agent: "Planner", seed: int = 0) -> "list[Planner]":
    """Every planner, the portfolio first: reports compare the others with it."""
    from shardgym.agents.learning.agent import Agent
    from shardgym.agents.planners.column_split import BeamSearchPlanner
    from shardgym.agents.planners.heuristics import LargestFirstPlanner, RandomPlanner, heuristic_planners
    from shardgym.agents.planners.local_search import LocalSearchPlanner
    from shardgym.agents.planners.milp import MilpPlanner
    from shardgym.agents.planners.portfolio import PortfolioPlanner

    starts = (agent,) if isinstance(agent, Agent) else ()
    return [
        PortfolioPlanner(cost_model, starts, seed),
        agent,
        LocalSearchPlanner(cost_model, seed=seed),
        MilpPlanner(cost_model, seed=seed),
        BeamSearchPlanner(cost_model),
        LargestFirstPlanner(cost_model),
        *heuristic_planners(),
        RandomPlanner(seed),
    ]
