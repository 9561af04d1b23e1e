"""The one price of a step.

A cost model is three things: what each table adds to the state of its device, and to what its device sends; the
compute phases, a function of ONE device's summed state; the exchange, a function of ALL devices' volumes and the
topology together (`Exchange`). Whoever prices a placement, at once or one table after another, does it with these
three, and no price leaves without its exchange: `device_ms` has two phases, and `StepCost` is only made of both parts.

DreamShard's network, an additive model and a roofline all have this form. It is what makes placement fast to search:
a table is encoded once, and moving it changes two running sums.
"""

from abc import ABC, abstractmethod

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.exchange import Exchange, NoExchange, sent_bytes
from shardgym.problem.costs import StepCost, step_ms
from shardgym.problem.faces import public
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.tasks import Task


@public("shardgym.costmodel")
class SummedCostModel(ABC):
    """A cost model given by table states, compute phases of summed states, and an exchange."""

    @property
    @abstractmethod
    def exchange(self) -> Exchange:
        """What the collectives cost; `NoExchange()` where that was not measured."""

    @abstractmethod
    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device's state, (T, H); on a grid (`on_grid`), so that sums are exact."""

    @abstractmethod
    def compute_ms(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Forward and backward of devices of relative speed 1.

        Args:
            states: (..., H), the summed table states of each device; zeros on an empty device.
            task: what the states were encoded from.

        Returns:
            (..., 2) ms, zero on an empty device.
        """

    def table_volumes(self, task: Task) -> NDArray[np.float64]:
        """What each table adds to what its device sends, (T, V), whole numbers: bytes, V = 1."""
        return np.array([[sent_bytes(table, task.batch_size)] for table in task.tables], dtype=np.float64)

    def device_ms(
        self, states: NDArray[np.floating], task: Task, devices: NDArray[np.integer] | int | None = None
    ) -> NDArray[np.float32]:
        """Forward and backward of devices at their own speeds.

        Args:
            states: (..., H) exact sums of table states.
            task: what the states were encoded from.
            devices: (...) which device each is; None where the axis before H is all the task's devices in order.

        Returns:
            (..., 2) ms.
        """
        ms = self.compute_ms(states.astype(np.float32), task)
        if task.topology is None or task.topology.speeds is None:
            return ms
        return ms / (task.speeds if devices is None else task.speeds[devices])[..., None]

    def price(self, states: NDArray[np.float64], volumes: NDArray[np.float64], task: Task) -> StepCost:
        """Cost of placements, partial or complete, from what their devices hold.

        Args:
            states: (..., D, H) exact sums of table states on each device.
            volumes: (..., D, V) sums of table volumes on each device.
            task: what both were encoded from.
        """
        return StepCost.of(self.device_ms(states, task), self.exchange.ms(volumes, task.topology))

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Cost of one placement; phases (D, 4)."""
        return StepCost(self.costs(task, placement.array()[None]).phases[0])

    def costs(self, task: Task, device_of: NDArray[np.integer]) -> StepCost:
        """Costs of N placements, device_of (N, T) with `UNPLACED` allowed; phases (N, D, 4)."""
        states = summed(self.table_states(task), device_of, task.devices)
        return self.price(states, summed(self.table_volumes(task), device_of, task.devices), task)

    def single_table_costs(self, task: Task) -> NDArray[np.float32]:
        """Step of a task that has each table alone, on a device of relative speed 1, (T,) ms."""
        volumes = self.table_volumes(task)
        placed = np.zeros((len(volumes), task.devices, volumes.shape[1]))
        placed[:, 0] = volumes
        return step_ms(self.compute_ms(self.table_states(task), task), self.exchange.ms(placed, task.topology)).astype(
            np.float32
        )

    def extrapolations(self, task: Task) -> list[str]:
        """What of a task's costs rests on extrapolation, a sentence each; empty when all is within the measured."""
        return []

    def caveats(self, task: Task) -> list[str]:
        """Why a task's costs may not be what its devices take, a sentence each: extrapolation, another machine, an
        exchange that was not measured."""
        found = [f"extrapolated: {sentence}" for sentence in self.extrapolations(task)]
        if task.devices > 1 and isinstance(self.exchange, NoExchange):
            found.append("the exchange between devices is not part of these costs: the model was fitted without one")
        return found

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """Ms that each table adds to the compute of its device at least, (T, 2), at relative speed 1.

        The floors of a device's tables never sum to more than the device computes, whatever tables these are. Zeros
        are always right; models that know more say more.
        """
        return np.zeros((len(task.tables), 2), dtype=np.float32)

    def total_floor(self, task: Task) -> NDArray[np.float64]:
        """Ms that all devices together compute for the tables at least, launches left out, (2,), at speed 1."""
        return self.table_floors(task).sum(axis=0, dtype=np.float64)

    def launch_floor(self, task: Task) -> NDArray[np.float32]:
        """Ms that a device in use computes at least on top of its tables' floors, (2,), at speed 1. Zeros are right."""
        return np.zeros(2, dtype=np.float32)


def on_grid(states: NDArray[np.floating]) -> NDArray[np.float32]:
    """Round states to multiples of 2^-24, so that float64 sums of them are exact, whatever the order of the tables.

    Exact below 2^29; what is larger is rounded by float32 to fewer digits than the sum keeps.
    """
    return (np.rint(states.astype(np.float64) * 2.0**24) / 2.0**24).astype(np.float32)


def summed(per_table: NDArray[np.floating], device_of: NDArray[np.integer], devices: int) -> NDArray[np.float64]:
    """Sum what each table adds, (T, H), over the devices (N, T) of each placement: (N, D, H)."""
    on_device = device_of[:, None, :] == np.arange(devices)[None, :, None]  # (N, D, T); UNPLACED matches none
    assert UNPLACED < 0
    return on_device.astype(np.float64) @ per_table.astype(np.float64)
