"""A task as a cost model sees it, computed once, and the rules that every sequential method shares."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.tasks import Task

SMALL_PHASE = 0.1
"""Share of the step below which a phase counts as this much, so that what hardly matters is not balanced."""


@dataclass(frozen=True)
class CostedTask:
    """A task with what does not change while its tables are placed.

    Args:
        task: the task.
        cost_model: what its placements cost.
        states: (T, H) what each table adds to its device's sum.
        single_table_costs: (T,) ms of each table alone on a device.
        order: (T,) table indices by descending single cost, the order in which tables are placed.
        fair: (4,) ms of each phase on a device that holds the D-th part of all states: the unit in which
            costs of tasks of any size compare.
    """

    task: Task
    cost_model: SummedCostModel
    states: NDArray[np.float32]
    single_table_costs: NDArray[np.float32]
    order: NDArray[np.int64]
    fair: NDArray[np.float32]

    @classmethod
    def of(cls, task: Task, cost_model: SummedCostModel) -> "CostedTask":
        """Encode a task's tables."""
        states = cost_model.table_states(task)
        single = cost_model.device_costs(states[:, None, :], task).sum(axis=(1, 2))  # (T, 1 device, H) to (T,)
        share = np.broadcast_to(states.sum(axis=0) / task.devices, (task.devices, states.shape[1]))
        fair = cost_model.device_costs(share, task)[0]
        return cls(task, cost_model, states, single, np.argsort(-single, kind="stable"), fair)

    def costs_of(self, sums: NDArray[np.float32]) -> NDArray[np.float32]:
        """Ms of some devices of a whole placement, (..., H) to (..., 4)."""
        return self.cost_model.device_costs(sums, self.task)


class Construction:
    """N placements of one task under way, each one table further at every step.

    The sums of the tables' states are kept as they run: a step costs the same however many tables are placed.

    Attributes:
        placed: tables placed so far, the same in all episodes.
        device_of: (N, T) device of each table, `UNPLACED` where none yet.
        sums: (N, D, H) summed states on each device.
        costs: (N, D, 4) ms of each device as it is.
        memory_left: (N, D) bytes left; negative where a table was placed without room.
    """

    def __init__(self, costed: CostedTask, episodes: int) -> None:
        task = costed.task
        self.costed = costed
        self.placed = 0
        self.device_of = np.full((episodes, len(task.tables)), UNPLACED, dtype=np.int64)
        self.sums = np.zeros((episodes, task.devices, costed.states.shape[1]), dtype=np.float32)
        self.costs = np.zeros((episodes, task.devices, 4), dtype=np.float32)
        self.memory_left = np.tile(np.array(task.device_memory, dtype=np.int64), (episodes, 1))
        self._rows = np.arange(episodes)

    @property
    def done(self) -> bool:
        """Whether every table is placed."""
        return self.placed == len(self.costed.order)

    @property
    def table(self) -> int:
        """Index of the table in hand."""
        return int(self.costed.order[self.placed])

    def legal(self) -> NDArray[np.bool_]:
        """(N, D) where the table in hand has room."""
        return self.memory_left >= self.costed.task.table_bytes[self.table]

    def costs_after(self) -> NDArray[np.float32]:
        """(N, D, 4) ms of each device if the table in hand went there."""
        return self.costed.cost_model.device_costs(self.sums + self.costed.states[self.table], self.costed.task)

    def place(self, devices: NDArray[np.integer], costs_after: NDArray[np.float32]) -> None:
        """Put the table in hand on a device in each episode, (N,), with what `costs_after` said of it."""
        table, rows = self.table, self._rows
        self.sums[rows, devices] += self.costed.states[table]
        self.costs[rows, devices] = costs_after[rows, devices]
        self.memory_left[rows, devices] -= self.costed.task.table_bytes[table]
        self.device_of[:, table] = devices
        self.placed += 1

    def steps(self) -> NDArray[np.float32]:
        """(N,) ms of the step: each phase lasts as long as its slowest device."""
        return self.costs.max(axis=1).sum(axis=-1)

    def overflow(self) -> NDArray[np.float64]:
        """(N,) bytes placed beyond the devices' memory, as a share of all memory."""
        return np.maximum(-self.memory_left, 0).sum(axis=1) / sum(self.costed.task.device_memory)

    def placement(self, episode: int = 0) -> Placement:
        """The placement of one episode."""
        return Placement.of(self.device_of[episode])
