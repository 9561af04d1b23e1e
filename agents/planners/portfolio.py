"""All methods on one budget: the cheap ones give starts, local search and the integer program improve the best."""

import time
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.heuristics import LargestFirstPlanner, heuristic_planners
from shardgym.agents.planners.local_search import search
from shardgym.agents.planners.milp import improve
from shardgym.agents.planners.planner import NoPlacementFoundError, Planner, require_feasible
from shardgym.agents.planners.repair import pack
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

STARTS_SHARE = 0.3
"""Share of the budget after which no further start is begun."""

MILP_SECONDS = 2.0
"""Search time below which the integer program is left out: HiGHS would not get past its relaxation."""

MILP_BINARIES = 2_000


@public("shardgym.agents")
class PortfolioPlanner:
    """Every method within one budget.

    Args:
        cost_model: what it lowers.
        more_starts: further planners whose placements are starts too, such as a trained agent; run last, since on
            the largest tasks they may take most of the budget.
        seed: of the search.
    """

    name = "portfolio"

    def __init__(self, cost_model: SummedCostModel, more_starts: Sequence[Planner] = (), seed: int = 0) -> None:
        self.cost_model = cost_model
        self.more_starts = more_starts
        self.seed = seed

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Plan within the budget. Raises as `Planner.plan`."""
        began = time.monotonic()
        deadline = began + budget_seconds
        require_feasible(task)
        costed = CostedTask.of(task, self.cost_model)
        device_of = self._best_start(costed, began, budget_seconds)
        rng = np.random.default_rng(self.seed)
        remaining = deadline - time.monotonic()
        if remaining >= MILP_SECONDS and len(task.tables) * task.devices <= MILP_BINARIES:
            device_of = search(costed, device_of, time.monotonic() + 0.5 * remaining, rng).array()
            device_of = improve(costed, device_of, time.monotonic() + 0.2 * remaining, rng).array()
        return search(costed, device_of, deadline, rng)

    def starts(self) -> Sequence[Planner]:
        """The methods that give a start, quickest first."""
        return (*heuristic_planners(), LargestFirstPlanner(self.cost_model), *self.more_starts)

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
                best, best_step = placement.array(), step
        return pack(costed.task, budget_seconds) if best is None else best
