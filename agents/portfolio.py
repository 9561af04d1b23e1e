"""All methods on one budget: the cheap ones give starts, local search and the integer program improve the best."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.agent import Agent
from shardgym.agents.construction import CostedTask
from shardgym.agents.heuristics import LargestFirstPlanner, heuristic_planners
from shardgym.agents.local_search import search
from shardgym.agents.milp import improve
from shardgym.agents.planner import NoPlacementFoundError, Planner, require_feasible
from shardgym.agents.repair import pack
from shardgym.costmodel.placement import Placement, Task
from shardgym.costmodel.summed import SummedCostModel

STARTS_SHARE = 0.3
"""Share of the budget after which no further start is begun."""

MILP_SECONDS = 2.0
"""Search time below which the integer program is left out: HiGHS would not get past its relaxation."""

MILP_BINARIES = 2_000


class PortfolioPlanner:
    """Every method within one budget.

    Args:
        cost_model: what it lowers.
        agent: its placement is a start too, when given.
        seed: of the search.
    """

    name = "portfolio"

    def __init__(self, cost_model: SummedCostModel, agent: Agent | None = None, seed: int = 0) -> None:
        self.cost_model = cost_model
        self.agent = agent
        self.seed = seed

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Plan within the budget. Raises as `Planner.plan`."""
        began = time.monotonic()
        deadline = began + budget_seconds
        require_feasible(task)
        costed = CostedTask.of(task, self.cost_model)
        owners = self._best_start(costed, began, budget_seconds)
        rng = np.random.default_rng(self.seed)
        remaining = deadline - time.monotonic()
        if remaining >= MILP_SECONDS and len(task.tables) * task.devices <= MILP_BINARIES:
            owners = _owners(search(costed, owners, time.monotonic() + 0.5 * remaining, rng))
            owners = _owners(improve(costed, owners, time.monotonic() + 0.2 * remaining, rng))
        return search(costed, owners, deadline, rng)

    def starts(self) -> Sequence[Planner]:
        """The methods that give a start, quickest first: on the largest tasks the agent takes most of the budget."""
        agent: tuple[Planner, ...] = (self.agent,) if self.agent else ()
        return (*heuristic_planners(), LargestFirstPlanner(self.cost_model), *agent)

    def _best_start(self, costed: CostedTask, began: float, budget_seconds: float) -> NDArray[np.int64]:
        best: NDArray[np.int64] | None = None
        best_step = np.inf
        for planner in self.starts():
            if best is not None and time.monotonic() - began > STARTS_SHARE * budget_seconds:
                break
            try:
                placement = planner.plan(costed.task, budget_seconds)
            except NoPlacementFoundError:
                continue
            step = float(self.cost_model.cost(costed.task, placement).step)
            if step < best_step:
                best, best_step = _owners(placement), step
        return pack(costed.task, budget_seconds) if best is None else best


def _owners(placement: Placement) -> NDArray[np.int64]:
    return np.array(placement.devices, dtype=np.int64)
