"""Beam search over column splits, as NeuroShard plans (arXiv 2305.01868, section 3.3).

A beam of split sets is widened by halving one costly or large table's columns at a time. Each set is placed by an
inner greedy rule on the predicted fused cost, under a sweep of limits on a device's summed dim.
"""

import time
from dataclasses import dataclass, replace

import numpy as np

from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.agents.planners.planner import NoPlacementFoundError, require_feasible
from shardgym.agents.planners.repair import pack
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

DIM_LIMITS = (1.0, 1.05, 1.1, 1.2, 1.4, 2.0, np.inf)
"""Limits on a device's summed dim that are tried, in even shares."""


@public("shardgym.agents")
@dataclass(frozen=True)
class ShardedPlan:
    """A placement of tables some of which are cut by columns.

    Args:
        task: the task with its tables replaced by column shards.
        placement: of the shards.
        step: predicted ms.
    """

    task: Task
    placement: Placement
    step: float


@public("shardgym.agents")
class BeamSearchPlanner:
    """NeuroShard's search.

    Args:
        cost_model: what a placement costs.
        width: split sets kept in a round.
        candidates: tables that are tried for halving in each set: the costliest and the largest.
        rounds: most halvings.
    """

    name = "neuroshard-beam"

    def __init__(self, cost_model: SummedCostModel, width: int = 3, candidates: int = 4, rounds: int = 10) -> None:
        self.cost_model = cost_model
        self.width, self.candidates, self.rounds = width, candidates, rounds

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """The inner greedy rule without splits. Raises as `Planner.plan`."""
        require_feasible(task)
        placed = self._place(task)
        if placed is not None:
            return placed.placement
        return Placement.of(pack(task, budget_seconds))

    def plan_shards(self, task: Task, budget_seconds: float) -> ShardedPlan:
        """Search over column splits within the budget.

        Raises:
            NoPlacementFoundError: neither whole nor split did the tables find room.
        """
        deadline = time.monotonic() + budget_seconds
        whole = self._place(task)
        best = whole
        beam = [(task, whole)]
        for _ in range(self.rounds):
            split = [halved for parent, _ in beam for halved in self._halvings(parent)]
            grown: list[tuple[Task, ShardedPlan | None]] = []
            for candidate in {tuple(t.name for t in task.tables): task for task in split}.values():
                if time.monotonic() >= deadline:
                    break
                grown.append((candidate, self._place(candidate)))
            # A set that has no room yet may have some once more is split.
            beam = sorted(grown, key=lambda pair: pair[1].step if pair[1] else np.inf)[: self.width]
            if beam and beam[0][1] and (best is None or beam[0][1].step < best.step):
                best = beam[0][1]
            if not beam or time.monotonic() >= deadline:
                break
        if best is None:
            raise NoPlacementFoundError(
                f"{self.name}: no column split of task {task.name!r} found room; give a longer budget or more memory"
            )
        return best

    def _place(self, task: Task) -> ShardedPlan | None:
        """Cheapest device first under every dim limit at once; the best that fits, or None."""
        costed = CostedTask.of(task, self.cost_model)
        dims = np.array([table.dim for table in task.tables])
        limits = np.array(DIM_LIMITS)[:, None] * dims.sum() / task.devices
        under_way = Construction(costed, len(limits))
        used = np.zeros((len(limits), task.devices))
        rows = np.arange(len(limits))
        while not under_way.done:
            after, legal, dim = under_way.costs_after(), under_way.legal(), dims[under_way.table]
            narrow = legal & (used + dim <= limits)
            allowed = np.where(narrow.any(axis=1, keepdims=True), narrow, legal)
            # Without room anywhere a table still goes somewhere; the overflow rules the plan out below.
            devices = (after.sum(axis=-1) + np.where(allowed, 0, 1e9)).argmin(axis=1)
            used[rows, devices] += dim
            under_way.place(devices, after)
        steps = np.where((under_way.memory_left >= 0).all(axis=1), under_way.steps(), np.inf)
        best = int(steps.argmin())
        return ShardedPlan(task, under_way.placement(best), float(steps[best])) if np.isfinite(steps[best]) else None

    def _halvings(self, task: Task) -> list[Task]:
        """The task with one table halved, for the costliest and the largest tables that can be."""
        can = [t for t, table in enumerate(task.tables) if _can_halve(table)]
        cost = self.cost_model.single_table_costs(task)
        by_cost = sorted(can, key=lambda t: -cost[t])[: self.candidates]
        by_size = sorted(can, key=lambda t: -task.table_bytes[t])[: self.candidates]
        return [_halve(task, t) for t in dict.fromkeys(by_cost + by_size)]


def _can_halve(table: TableSpec) -> bool:
    """NeuroShard halves while half the dim is a multiple of 4."""
    return table.tensor_train is None and table.dim % 8 == 0


def _halve(task: Task, index: int) -> Task:
    tables = task.tables
    return replace(task, tables=tables[:index] + tables[index].column_shards(2) + tables[index + 1 :])
