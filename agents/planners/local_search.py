"""Local search: descend by moves, swaps and ejections, then kick the plan and descend again, until time is up.

Changes are judged in batches on running sums of table states; a change touches two or three devices.
"""

import time

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.heuristics import LargestFirstPlanner
from shardgym.agents.planners.neighbourhoods import ejections, moves, swaps
from shardgym.agents.planners.planner import Planner, require_feasible
from shardgym.agents.planners.repair import start_device_of
from shardgym.agents.planners.search_state import SearchState
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

BATCH = 4096
"""Changes judged at once at most."""

NEIGHBOURHOODS = (moves, swaps, ejections)

PATIENCE = 400
"""Kicks in a row without a better plan after which the search ends before its time."""


@public("shardgym.agents")
class LocalSearchPlanner:
    """Local search from another planner's placement.

    Args:
        cost_model: what it lowers.
        start: where it starts; largest-first by default.
        seed: of its kicks. A search that ends before its time gives the same placement again.
    """

    name = "local-search"

    def __init__(self, cost_model: SummedCostModel, start: Planner | None = None, seed: int = 0) -> None:
        self.cost_model = cost_model
        self.start = start or LargestFirstPlanner(cost_model)
        self.seed = seed

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Search within the budget. Raises as `Planner.plan`."""
        deadline = time.monotonic() + budget_seconds
        require_feasible(task)
        device_of = start_device_of(self.start, task, budget_seconds)
        return search(CostedTask.of(task, self.cost_model), device_of, deadline, np.random.default_rng(self.seed))


def search(
    costed: CostedTask,
    device_of: NDArray[np.int64],
    deadline: float,
    rng: np.random.Generator,
) -> Placement:
    """Iterated local search.

    Args:
        costed: the task.
        device_of: (T,) where to start; it fits.
        deadline: of time.monotonic().
        rng: for kicks and samples.

    Returns:
        The best placement seen, never worse than the start.
    """
    state = SearchState(costed, device_of)
    best_device_of, best_step = state.device_of.copy(), state.step
    home_device_of, home_value = best_device_of, state.value
    idle = 0
    while True:
        descend(state, rng, deadline)
        if state.step < best_step * (1 - 1e-7):
            best_device_of, best_step, idle = state.device_of.copy(), state.step, 0
        idle += 1
        if state.value <= home_value * (1 + 1e-3 * rng.exponential() * (idle > 20)):
            home_device_of, home_value = state.device_of.copy(), state.value
        if time.monotonic() >= deadline or idle > PATIENCE or state.devices == 1:
            return Placement.of(best_device_of)
        state.reset(best_device_of if idle % 50 == 0 else home_device_of)
        kick(state, rng, int(rng.integers(2, 6)))


def descend(state: SearchState, rng: np.random.Generator, deadline: float) -> None:
    """Make the best change of the first neighbourhood that has a better one, until none has."""
    level = 0
    while level < len(NEIGHBOURHOODS) and state.devices > 1 and time.monotonic() < deadline:
        changes = NEIGHBOURHOODS[level](state, state.critical, rng, BATCH)
        if len(changes):
            values = state.values_after(changes)
            best = int(values.argmin())
            if values[best] < state.value * (1 - 1e-6):
                state.apply(changes, best)
                level = 0
                continue
        level += 1


def kick(state: SearchState, rng: np.random.Generator, strength: int) -> None:
    """Make a few random changes, moves or swaps, wherever there is room."""
    everywhere = np.arange(state.devices)
    for _ in range(strength):
        neighbourhood = NEIGHBOURHOODS[int(rng.integers(len(NEIGHBOURHOODS)))]
        changes = neighbourhood(state, everywhere, rng, 8)
        if len(changes):
            state.apply(changes, int(rng.integers(len(changes))))
