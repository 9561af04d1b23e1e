"""Placement without search: random, the field's greedy rules, and largest-first on a cost model.

The four greedy rules are those that DreamShard compares with (arXiv 2210.02023, section 4.1): tables in descending
proxy cost, each onto the device with the least proxy cost that has room.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.construction import SMALL_PHASE, Construction, CostedTask
from shardgym.agents.planners.planner import NoPlacementFoundError, require_feasible
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tables import ROW_BYTES
from shardgym.problem.tasks import Task

RANDOM_TRIES = 100


@public("shardgym.agents")
class RandomPlanner:
    """Tables in random order, each on a random device that still has room; a dead end begins anew.

    Args:
        seed: the same seed gives the same placement of a task.
    """

    name = "random"

    def __init__(self, seed: int = 0) -> None:
        self.seed = seed

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Draw a placement. Raises as `Planner.plan`."""
        require_feasible(task)
        rng = np.random.default_rng(self.seed)
        for _ in range(RANDOM_TRIES):
            placement = self._draw(task, rng)
            if placement is not None:
                return placement
        raise NoPlacementFoundError(
            f"random: {RANDOM_TRIES} draws for task {task.name!r} all ran out of room; use a planner that searches"
        )

    @staticmethod
    def _draw(task: Task, rng: np.random.Generator) -> Placement | None:
        memory_left = np.array(task.device_memory, dtype=np.int64)
        device_of = np.empty(len(task.tables), dtype=np.int64)
        for table in rng.permutation(len(task.tables)):
            legal = np.flatnonzero(memory_left >= task.table_bytes[table])
            if not len(legal):
                return None
            device_of[table] = rng.choice(legal)
            memory_left[device_of[table]] -= task.table_bytes[table]
        return Placement.of(device_of)


@public("shardgym.agents")
class GreedyPlanner:
    """Largest first onto the least loaded device with room, by a proxy of each table's cost.

    Args:
        name: for reports.
        proxy: from a task to the (T,) proxy costs of its tables.
    """

    def __init__(self, name: str, proxy: Callable[[Task], NDArray[np.float64]]) -> None:
        self.name = name
        self.proxy = proxy

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Place greedily. Raises as `Planner.plan`."""
        require_feasible(task)
        proxy = self.proxy(task)
        loads = np.zeros(task.devices)
        memory_left = np.array(task.device_memory, dtype=np.int64)
        device_of = np.empty(len(task.tables), dtype=np.int64)
        for done, table in enumerate(np.argsort(-proxy, kind="stable")):
            legal = memory_left >= task.table_bytes[table]
            if not legal.any():
                raise _out_of_room(self.name, task, int(table), done)
            device = int(np.where(legal, loads, np.inf).argmin())
            device_of[table] = device
            loads[device] += proxy[table]
            memory_left[device] -= task.table_bytes[table]
        return Placement.of(device_of)


@public("shardgym.agents")
class LargestFirstPlanner:
    """Largest first onto the device that is least full with the table on it, by a cost model.

    Full is meant in two ways, the better plan of the two being taken: by the device's whole cost, and by the fullest
    of its phases, each in its fair share, since a phase lasts as long as its slowest device.

    Args:
        cost_model: what a placement costs.
    """

    name = "largest-first"

    def __init__(self, cost_model: SummedCostModel) -> None:
        self.cost_model = cost_model

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Place greedily. Raises as `Planner.plan`."""
        require_feasible(task)
        costed = CostedTask.of(task, self.cost_model)
        under_way = Construction(costed, 2)
        fair = np.maximum(costed.fair, SMALL_PHASE * costed.fair.sum())
        while not under_way.done:
            legal = under_way.legal()
            if not legal.any(axis=1).any():
                raise _out_of_room(self.name, task, under_way.table, under_way.placed)
            after = under_way.costs_after()
            full = np.stack([after[0].sum(axis=-1), (after[1] / fair).max(axis=-1)])  # (2, D)
            # One of the two may be stuck; it goes on without room and is ruled out below.
            under_way.place((full + np.where(legal, 0, 1e12)).argmin(axis=1), after)
        steps = np.where((under_way.memory_left >= 0).all(axis=1), under_way.steps(), np.inf)
        if not np.isfinite(steps).any():
            raise _out_of_room(self.name, task, int(costed.order[-1]), under_way.placed)
        return under_way.placement(int(steps.argmin()))


def heuristic_planners() -> tuple[GreedyPlanner, ...]:
    """The rules that need no cost model: dim, size, lookup, size-lookup, and TorchRec's."""
    return (
        GreedyPlanner("greedy-dim", lambda task: _column(task, "dim")),
        GreedyPlanner("greedy-size", lambda task: _column(task, "dim") * _column(task, "rows")),
        GreedyPlanner("greedy-lookup", lambda task: _column(task, "dim") * _column(task, "pooling")),
        GreedyPlanner(
            "greedy-size-lookup",
            lambda task: _column(task, "dim") * _column(task, "pooling") * np.log10(_column(task, "rows") + 1),
        ),
        GreedyPlanner("greedy-torchrec", torchrec_costs),
    )


def torchrec_costs(task: Task) -> NDArray[np.float64]:
    """TorchRec's estimate of a table-wise shard, (T,), up to a constant: backward is twice forward.

    It adds the bytes of ids, of rows looked up (at least 32 numbers each) and of pooled output, all over the same
    bandwidth, and holds that narrow rows use less of it: 1.75 times below dim 64, 1.15 times below dim 128
    (torchrec.distributed.planner.shard_estimators).
    """
    dim, pooling = _column(task, "dim"), _column(task, "pooling")
    number_bytes = np.array([ROW_BYTES[table.dtype](64) / 64 for table in task.tables])
    ids = 8 * pooling
    rows = np.maximum(dim, 32) * pooling * number_bytes
    pooled = 4 * dim
    penalty = np.select([dim < 64, dim < 128], [1.75, 1.15], 1.0)
    return (ids + rows + pooled) * penalty * task.batch_size


def _column(task: Task, field: str) -> NDArray[np.float64]:
    return np.array([getattr(table, field) for table in task.tables], dtype=np.float64)


def _out_of_room(name: str, task: Task, table: int, done: int) -> NoPlacementFoundError:
    spec = task.tables[table]
    return NoPlacementFoundError(
        f"{name}: no device of task {task.name!r} has the {spec.bytes():,} bytes of table {spec.name!r} left after "
        f"{done} of {len(task.tables)} tables; use a planner that searches, or give more memory"
    )
