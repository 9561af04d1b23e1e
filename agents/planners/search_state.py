"""A whole placement that a search changes: running sums, room, and many changes judged at once."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.construction import CostedTask
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
    """

    tables: NDArray[np.int64]
    targets: NDArray[np.int64]
    touched: NDArray[np.int64]
    states: NDArray[np.float32]

    def __len__(self) -> int:
        return len(self.tables)


class SearchState:
    """A placement under change.

    Attributes:
        device_of: (T,) device of each table.
        sums: (D, H) summed table states.
        costs: (D, 4) ms.
        memory_left: (D,) bytes left.
        value: what a search lowers: the step in ms, and a little of the loads' unevenness.
    """

    def __init__(self, costed: CostedTask, device_of: NDArray[np.int64]) -> None:
        self.costed = costed
        self.devices = costed.task.devices
        self.bytes = costed.task.table_bytes
        self.reset(device_of)

    def reset(self, device_of: NDArray[np.int64]) -> None:
        """Take another placement; all is computed anew."""
        self.device_of = device_of.copy()
        self.memory_left = np.array(self.costed.task.device_memory, dtype=np.int64)
        np.subtract.at(self.memory_left, device_of, self.bytes)
        self.sums = np.zeros((self.devices, self.costed.states.shape[1]), dtype=np.float32)
        np.add.at(self.sums, device_of, self.costed.states)
        self.costs = self.costed.costs_of(self.sums)
        self.value = float(self._value(self.costs))

    @property
    def step(self) -> float:
        """Ms of the step."""
        return float(self.costs.max(axis=0).sum())

    @property
    def critical(self) -> NDArray[np.int64]:
        """Devices that some phase waits for; a change that touches none of them cannot shorten the step."""
        slowest = self.costs.argmax(axis=0)
        return np.unique(slowest[self.costs.max(axis=0) > 0])

    @property
    def placement(self) -> Placement:
        """The placement as it is."""
        return Placement.of(self.device_of)

    def values_after(self, changes: Changes) -> NDArray[np.float64]:
        """(N,) `value` of the placement after each change."""
        after = self.costed.costs_of(changes.states)  # (N, K, 4)
        peaks = np.maximum(after.max(axis=1), self._peaks_without(changes.touched))
        before = self.costs[changes.touched]
        square = self._square(self.costs) + ((after**2).sum(axis=(1, 2)) - (before**2).sum(axis=(1, 2)))
        return peaks.sum(axis=-1) + self._unevenness(square)

    def apply(self, changes: Changes, index: int) -> None:
        """Make one of the changes."""
        for table, target in zip(changes.tables[index], changes.targets[index]):
            self.memory_left[self.device_of[table]] += self.bytes[table]
            self.memory_left[target] -= self.bytes[table]
            self.device_of[table] = target
        for device in changes.touched[index]:
            # Summed anew, not updated: rounding must not gather over thousands of changes.
            self.sums[device] = self.costed.states[self.device_of == device].sum(axis=0)
        self.costs[changes.touched[index]] = self.costed.costs_of(self.sums[changes.touched[index]])
        self.value = float(self._value(self.costs))

    def _peaks_without(self, touched: NDArray[np.int64]) -> NDArray[np.float32]:
        """(N, 4) the slowest device of each phase, the touched ones (N, K) left out."""
        few = touched.shape[1] + 1
        order = np.argsort(-self.costs, axis=0)[:few]  # (few, 4)
        values = np.take_along_axis(self.costs, order, axis=0)
        peaks = np.zeros((len(touched), self.costs.shape[1]), dtype=self.costs.dtype)
        for rank in range(len(order) - 1, -1, -1):
            outside = (order[rank][None, None, :] != touched[:, :, None]).all(axis=1)  # (N, 4)
            peaks = np.where(outside, values[rank], peaks)
        return peaks

    def _value(self, costs: NDArray[np.float32]) -> float:
        return float(costs.max(axis=0).sum() + self._unevenness(self._square(costs)))

    @staticmethod
    def _square(costs: NDArray[np.float32]) -> float:
        return float((costs.astype(np.float64) ** 2).sum())

    def _unevenness(self, square: NDArray[np.float64] | float) -> NDArray[np.float64]:
        fair = float(self.costed.fair.sum()) or 1.0
        return UNEVENNESS * np.asarray(square) / (fair * self.devices)
