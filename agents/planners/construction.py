"""A task as a cost model sees it, computed once, and the rules that every sequential method shares."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.costs import COMPUTE, EXCHANGE, PHASES, StepCost, step_ms
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
        volumes: (T, V) what each table adds to what its device sends.
        single_table_costs: (T,) ms of the step with each table alone.
        order: (T,) table indices by descending single-table cost, the order in which tables are placed.
        fair: (4,) ms of each phase where every device holds the D-th part of everything: the unit in which costs of
            tasks of any size compare.
    """

    task: Task
    cost_model: SummedCostModel
    states: NDArray[np.float32]
    volumes: NDArray[np.float64]
    single_table_costs: NDArray[np.float32]
    order: NDArray[np.int64]
    fair: NDArray[np.float32]

    @classmethod
    def of(cls, task: Task, cost_model: SummedCostModel) -> "CostedTask":
        """Encode a task's tables."""
        states, volumes = cost_model.table_states(task), cost_model.table_volumes(task)
        single = cost_model.single_table_costs(task)
        even_states, even_volumes = (
            np.tile(each.sum(axis=0, dtype=np.float64) / task.devices, (task.devices, 1)) for each in (states, volumes)
        )
        fair = cost_model.price(even_states, even_volumes, task).phases.mean(axis=0)
        return cls(task, cost_model, states, volumes, single, np.argsort(-single, kind="stable"), fair)

    def device_ms(self, sums: NDArray[np.float64], devices: NDArray[np.integer] | None = None) -> NDArray[np.float32]:
        """Forward and backward of devices, (..., H) to (..., 2) ms, as `SummedCostModel.device_ms`."""
        return self.cost_model.device_ms(sums, self.task, devices)

    def exchange_ms(self, volumes: NDArray[np.float64]) -> NDArray[np.float32]:
        """Both collectives from what all devices send, (..., D, V) to (..., 2) ms."""
        return self.cost_model.exchange.ms(volumes, self.task.topology)

    def summed(self, per_table: NDArray[np.floating], device_of: NDArray[np.int64]) -> NDArray[np.float64]:
        """What each table adds, (T, H), summed exactly over the devices (T,) of a placement: (D, H)."""
        sums = np.zeros((self.task.devices, per_table.shape[1]))
        placed = device_of != UNPLACED
        np.add.at(sums, device_of[placed], per_table[placed])
        return sums


class Construction:
    """N placements of one task under way, each one table further at every step.

    Sums of states and volumes are kept as they run: a step costs the same however many tables are placed, and what is
    placed costs what `SummedCostModel.price` says of it.

    Attributes:
        placed: tables placed so far, the same in all episodes.
        device_of: (N, T) device of each table, `UNPLACED` where none yet.
        sums: (N, D, H) summed states on each device.
        volumes: (N, D, V) summed volumes of each device.
        compute: (N, D, 2) ms of forward and backward as they are.
        exchange: (N, 2) ms of both collectives as they are.
        memory_left: (N, D) bytes left; negative where a table was placed without room.
    """

    def __init__(self, costed: CostedTask, episodes: int) -> None:
        task = costed.task
        self.costed = costed
        self.placed = 0
        self.device_of = np.full((episodes, len(task.tables)), UNPLACED, dtype=np.int64)
        self.sums = np.zeros((episodes, task.devices, costed.states.shape[1]))
        self.volumes = np.zeros((episodes, task.devices, costed.volumes.shape[1]))
        self.compute = np.zeros((episodes, task.devices, 2), dtype=np.float32)
        self.exchange = np.zeros((episodes, 2), dtype=np.float32)
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

    @property
    def costs(self) -> NDArray[np.float32]:
        """(N, D, 4) ms of each phase on each device as it is."""
        return StepCost.of(self.compute, self.exchange).phases

    def legal(self) -> NDArray[np.bool_]:
        """(N, D) where the table in hand has room."""
        return self.memory_left >= self.costed.task.table_bytes[self.table]

    def costs_after(self) -> NDArray[np.float32]:
        """(N, D, 4) ms if the table in hand went to a device: what that device computes, and the collectives then."""
        costed, D = self.costed, self.costed.task.devices
        compute = costed.device_ms(self.sums + costed.states[self.table])
        # Volumes of all devices (last but one axis) for each device that the table may go to: (N, D, D, V).
        volumes = self.volumes[:, None] + np.eye(D)[:, :, None] * costed.volumes[self.table]
        after = np.empty((*compute.shape[:2], len(PHASES)), dtype=np.float32)
        after[..., COMPUTE] = compute
        after[..., EXCHANGE] = costed.exchange_ms(volumes)
        return after

    def place(self, devices: NDArray[np.integer], costs_after: NDArray[np.float32]) -> None:
        """Put the table in hand on a device in each episode, (N,), with what `costs_after` said of it."""
        table, rows = self.table, self._rows
        self.sums[rows, devices] += self.costed.states[table]
        self.volumes[rows, devices] += self.costed.volumes[table]
        chosen = costs_after[rows, devices]
        self.compute[rows, devices] = chosen[:, COMPUTE]
        self.exchange = chosen[:, EXCHANGE]
        self.memory_left[rows, devices] -= self.costed.task.table_bytes[table]
        self.device_of[:, table] = devices
        self.placed += 1

    def steps(self) -> NDArray[np.float64]:
        """(N,) ms of the step: each phase lasts as long as its slowest device."""
        return step_ms(self.compute.max(axis=1), self.exchange)

    def overflow(self) -> NDArray[np.float64]:
        """(N,) bytes placed beyond the devices' memory, as a share of all memory."""
        return np.maximum(-self.memory_left, 0).sum(axis=1) / sum(self.costed.task.device_memory)

    def placement(self, episode: int = 0) -> Placement:
        """The placement of one episode."""
        return Placement.of(self.device_of[episode])
