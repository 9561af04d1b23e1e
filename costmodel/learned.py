"""Fitted cost networks as a cost model, and its file."""

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.measuring.hardware import Hardware, this_hardware
from shardgym.costmodel.networks.cost_network import CostNetwork
from shardgym.costmodel.networks.heads import CostHeads
from shardgym.costmodel.networks.saved_files import read_network_file, write_network_file
from shardgym.costmodel.pricing.exchange import Exchange, NoExchange, PhysicalExchange
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning, Ranges
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

FILE_KIND = "shardgym cost network 4"


@public("shardgym.costmodel")
class LearnedCost(SummedCostModel):
    """Costs predicted by an ensemble of `CostNetwork`s fitted on one machine's measurements: their mean.

    A task with tables outside the measured ranges raises an `OutOfRangeWarning` when it is first encoded.

    Args:
        networks: fitted, with their normalisation; their states stand side by side.
        hardware: of the measurements.
        measured_on: what they were fitted on, for reports.
        ranges: of the measurements.
        exchange: of the collectives; `NoExchange()` where none was measured.
    """

    def __init__(
        self,
        networks: Sequence[CostNetwork],
        hardware: Hardware,
        measured_on: str,
        ranges: Ranges,
        exchange: Exchange = NoExchange(),
    ) -> None:
        self.networks = [network.eval() for network in networks]
        self.hardware = hardware
        self.measured_on = measured_on
        self.ranges = ranges
        self._exchange = exchange
        # In float64 rounding stays far below the grid; a float32 product rounds a row by how many are beside it.
        self._encoders = [deepcopy(network).double() for network in self.networks]
        self._heads = CostHeads(networks)
        self._encoded: tuple[Task, NDArray[np.float32]] | None = None

    @property
    def exchange(self) -> Exchange:
        """As `SummedCostModel.exchange`."""
        return self._exchange

    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device's state, (T, H). The last task's are remembered."""
        if self._encoded is None or self._encoded[0] is not task:
            self._flag(task)
            features = torch.from_numpy(table_features(task.tables, task.batch_size)).double()
            with torch.no_grad():
                states = torch.cat([encoder.table_states(features) for encoder in self._encoders], dim=1)
            self._encoded = task, on_grid(states.numpy())
        return self._encoded[1].copy()

    def compute_ms(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """(..., H) to (..., 2) ms: the mean of the networks."""
        return self._heads(states)

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """Ms that each table adds to its device at least, (T, 2): its own, stretched as if it were alone."""
        return self._heads.stretched(self.table_states(task))[0].mean(axis=0)

    def member_ms(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Forward and backward by each network, (..., H) to (members, ..., 2) ms; how far they differ is a warning."""
        return self._heads.by_member(states)

    def extrapolations(self, task: Task) -> list[str]:
        """What of a task's costs rests on extrapolation, a sentence each; empty when all is within the measured."""
        found = self.ranges.outside(task.tables, task.batch_size)
        if isinstance(self._exchange, PhysicalExchange) and task.devices > 1:
            measured = self._exchange.measured_devices()
            if task.topology is not None and task.topology.hosts(task.devices) > 1:
                found.append(
                    f"{task.devices} devices on {task.topology.hosts(task.devices)} hosts: no all-to-all between hosts "
                    "was measured, its cost is bytes over the topology's bandwidth"
                )
            elif measured is not None and not measured[0] <= task.devices <= measured[1]:
                found.append(
                    f"{task.devices} devices are outside the {measured[0]} to {measured[1]} of the measured all-to-alls"
                )
        return found

    def caveats(self, task: Task) -> list[str]:
        """As `SummedCostModel.caveats`, with a word where this machine is not the one that was measured."""
        return [*super().caveats(task), *self.foreign(this_hardware())]

    def foreign(self, here: Hardware) -> list[str]:
        """A sentence where the measurements are of other hardware than `here`, else nothing."""
        if self.hardware.same_machine(here):
            return []
        return [
            f"costs were measured on {self.hardware} and this is {here}: steps on another processor are off by tens of "
            "percent, some by several times; measure and fit here (`shardgym measure`, `shardgym fit`) for your own"
        ]

    def _flag(self, task: Task) -> None:
        for sentence in self.extrapolations(task):
            warnings.warn(f"{task.name}: {sentence}; its cost is an extrapolation", OutOfRangeWarning, stacklevel=3)

    def save(self, path: Path) -> None:
        """Write the model to one file, atomically."""
        content = {
            "hardware": asdict(self.hardware),
            "measured_on": self.measured_on,
            "ranges": self.ranges.to_record(),
            "weights": [network.state_dict() for network in self.networks],
            "exchange": self._exchange.to_record() if isinstance(self._exchange, PhysicalExchange) else None,
        }
        write_network_file(path, FILE_KIND, content)

    @classmethod
    def load(cls, path: Path, here: Hardware | None = None) -> "LearnedCost":
        """Read a model file.

        Args:
            path: the file.
            here: hardware that costs are wanted for; None accepts a model of any hardware.

        Raises:
            InputError: no such file, not a model, or fitted on other hardware.
        """
        content = read_network_file(path, FILE_KIND, f"run `shardgym fit --out {path}`")
        hardware = Hardware(**content["hardware"])
        if here is not None and not hardware.same_machine(here):
            raise InputError(
                f"{path}: was fitted on {hardware}, and this is {here}; measure and fit here, or pass "
                "--any-hardware to use it all the same"
            )
        networks = [CostNetwork(len(FEATURE_NAMES)) for _ in content["weights"]]
        for network, weights in zip(networks, content["weights"]):
            network.load_state_dict(weights)
        record = content["exchange"]
        exchange = NoExchange() if record is None else PhysicalExchange.from_record(record)
        return cls(networks, hardware, content["measured_on"], Ranges.from_record(content["ranges"]), exchange)
