"""A whole placement that a search changes: running sums, room, and many changes judged at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.construction import CostedTask
from shardgym.problem.costs import step_ms
from shardgym.problem.placements import Placement

UNEVENNESS = 0.02
"""Weight of the devices' squared loads beside the step: among plans of one step, prefer the even one."""


@dataclass(frozen=True)
class Changes:
    """N ways to change a placement. Each moves up to M tables and touches K devices.

    Args:
        tables: (N, M) table indices.
        targets: (N, M) the device that each goes to.
        touched: (N, K) devices whose tables change, all different in a row.
        states: (N, K, H) their summed states afterwards.
        volumes: (N, K, V) their summed volumes afterwards.
    """

    tables: NDArray[np.int64]
    targets: NDArray[np.int64]
    touched: NDArray[np.int64]
    states: NDArray[np.float64]
    volumes: NDArray[np.float64]

    def __len__(self) -> int:
        return len(self.tables)


class SearchState:
    """A placement under change, priced as `SummedCostModel.price` prices it.

    Sums are exact (states are on a grid, volumes are whole), so that no rounding gathers over changes.

    Attributes:
        device_of: (T,) device of each table.
        sums: (D, H) summed table states.
        volumes: (D, V) summed table volumes.
        compute: (D, 2) ms of forward and backward.
        exchange: (2,) ms of both collectives.
        memory_left: (D,) bytes left.
        value: what a search lowers: the step in ms, and a little of the loads' unevenness.
    """

    def __init__(self, costed: CostedTask, device_of: NDArray[np.int64]) -> None:
        self.costed = costed
        self.devices = costed.task.devices
        self.bytes = costed.task.table_bytes
        self.reset(device_of)

    def reset(self, device_of: NDArray[np.int64]) -> None:
        """Take another placement, (T,) devices; all is computed anew."""
        self.device_of = device_of.copy()
        self.memory_left = np.array(self.costed.task.device_memory, dtype=np.int64)
        np.subtract.at(self.memory_left, device_of, self.bytes)
        self.sums = self.costed.summed(self.costed.states, device_of)
        self.volumes = self.costed.summed(self.costed.volumes, device_of)
        self.compute = self.costed.device_ms(self.sums)
        self.exchange = self.costed.exchange_ms(self.volumes)
        self.value = self._value()

    @property
    def step(self) -> float:
        """Ms of the step."""
        return float(step_ms(self.compute.max(axis=0), self.exchange))

    @property
    def critical(self) -> NDArray[np.int64]:
        """(n,) devices that a phase waits for: the slowest, and that which sends most; only they shorten the step."""
        found = [*self.compute.argmax(axis=0), *self.volumes.argmax(axis=0)]
        hosts = self.costed.task.topology
        if hosts is not None and hosts.hosts(self.devices) > 1:
            host = np.arange(self.devices) // hosts.devices_per_host
            fullest = np.bincount(host, self.volumes.sum(axis=1)).argmax()
            found += np.flatnonzero(host == fullest).tolist()
        return np.unique(found)

    @property
    def placement(self) -> Placement:
        """The placement as it is."""
        return Placement.of(self.device_of)

    def values_after(self, changes: Changes) -> NDArray[np.float64]:
        """(N,) `value` of the placement after each change."""
        after = self.costed.device_ms(changes.states, changes.touched)  # (N, K, 2)
        slowest = np.maximum(after.max(axis=1), self._slowest_without(changes.touched))
        volumes = np.repeat(self.volumes[None], len(changes), axis=0)  # (N, D, V)
        np.put_along_axis(volumes, changes.touched[:, :, None], changes.volumes, axis=1)
        before = self.compute[changes.touched].astype(np.float64)
        square = self._square(self.compute) + (after.astype(np.float64) ** 2 - before**2).sum(axis=(1, 2))
        return step_ms(slowest, self.costed.exchange_ms(volumes)) + self._unevenness(square)

    def apply(self, changes: Changes, index: int) -> None:
        """Make one of the changes."""
        for table, target in zip(changes.tables[index], changes.targets[index]):
            self.memory_left[self.device_of[table]] += self.bytes[table]
            self.memory_left[target] -= self.bytes[table]
            self.device_of[table] = target
        touched = changes.touched[index]
        self.sums[touched], self.volumes[touched] = changes.states[index], changes.volumes[index]
        self.compute[touched] = self.costed.device_ms(self.sums[touched], touched)
        self.exchange = self.costed.exchange_ms(self.volumes)
        self.value = self._value()

    def _slowest_without(self, touched: NDArray[np.int64]) -> NDArray[np.float32]:
        """(N, 2) ms of the slowest device of each compute phase, the touched ones (N, K) left out."""
        few = touched.shape[1] + 1
        order = np.argsort(-self.compute, axis=0)[:few]  # (few, 2)
        values = np.take_along_axis(self.compute, order, axis=0)
        slowest = np.zeros((len(touched), 2), dtype=self.compute.dtype)
        for rank in range(len(order) - 1, -1, -1):
            outside = (order[rank][None, None, :] != touched[:, :, None]).all(axis=1)  # (N, 2)
            slowest = np.where(outside, values[rank], slowest)
        return slowest

    def _value(self) -> float:
        return self.step + float(self._unevenness(self._square(self.compute)))

    @staticmethod
    def _square(compute: NDArray[np.float32]) -> float:
        return float((compute.astype(np.float64) ** 2).sum())

    def _unevenness(self, square: NDArray[np.float64] | float) -> NDArray[np.float64]:
        fair = float(self.costed.fair.sum()) or 1.0
        return UNEVENNESS * np.asarray(square) / (fair * self.devices)
