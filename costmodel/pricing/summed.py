"""Cost models whose device cost is a function of the SUM of its tables' states.

DreamShard's network, an additive model and a roofline all have this form. It is what makes placement fast to
search: a table is encoded once, and moving it updates two running sums.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from shardgym.problem.costs import PHASES, StepCost
from shardgym.problem.faces import public
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.tasks import Task


@public("shardgym.costmodel")
class SummedCostModel(ABC):
    """A cost model given by table states and a function of their sums on the devices."""

    @abstractmethod
    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device's state, (T, H)."""

    @abstractmethod
    def device_costs(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Phase costs of the devices of one or many placements.

        Args:
            states: (..., D, H), the summed table states on each device. An empty device has the zero state.
            task: what the states were encoded from.

        Returns:
            (..., D, 4) ms in the order of `PHASES`, zero on an empty device.
        """

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Cost of one placement; phases (D, 4)."""
        return StepCost(self.costs(task, np.array([placement.device_of])).phases[0])

    def costs(self, task: Task, device_of: NDArray[np.integer]) -> StepCost:
        """Costs of N placements, device_of (N, T) with `UNPLACED` allowed; phases (N, D, 4)."""
        return StepCost(self.device_costs(summed_states(self.table_states(task), device_of, task.devices), task))

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """Ms that each table adds to its device at least, by phase, (T, 4).

        The floors of a device's tables never sum to more than the device costs, whatever tables these are. Zeros are
        always right; models that know more say more.
        """
        return np.zeros((len(task.tables), len(PHASES)), dtype=np.float32)

    def total_floor(self, task: Task) -> NDArray[np.float64]:
        """Ms that all devices together spend on the tables at least, launches left out, by phase, (4,)."""
        return self.table_floors(task).sum(axis=0, dtype=np.float64)

    def launch_floor(self, task: Task) -> NDArray[np.float32]:
        """Ms that a device in use takes at least on top of its tables' floors, (4,). Zeros are always right."""
        return np.zeros(len(PHASES), dtype=np.float32)

    def single_table_costs(self, task: Task) -> NDArray[np.float32]:
        """Step cost of each table alone on a device, (T,) ms."""
        alone = self.table_states(task)[:, None, :]  # (T, 1 device, H)
        return self.device_costs(alone, task).sum(axis=(1, 2))


def on_grid(states: NDArray[np.floating]) -> NDArray[np.float32]:
    """Round states to multiples of 2^-24, so that float64 sums of them are exact, whatever the order of the tables."""
    return (np.rint(states.astype(np.float64) * 2.0**24) / 2.0**24).astype(np.float32)


def summed_states(states: NDArray[np.float32], device_of: NDArray[np.integer], devices: int) -> NDArray[np.float32]:
    """Sum table states (T, H) over the device_of (N, T) of each placement: (N, D, H)."""
    on_device = device_of[:, None, :] == np.arange(devices)[None, :, None]  # (N, D, T); UNPLACED matches none
    assert UNPLACED < 0
    return (on_device.astype(np.float64) @ states.astype(np.float64)).astype(np.float32)
