"""Fitted cost networks as a cost model, and its file."""

import warnings
from collections.abc import Sequence
from copy import deepcopy
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.costmodel.networks.all_to_all_network import ExchangeNetwork
from shardgym.costmodel.networks.cost_network import CostNetwork
from shardgym.costmodel.networks.numpy_heads import CostHeads, ExchangeHead
from shardgym.costmodel.networks.saved_files import read_network_file, write_network_file
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning, Ranges
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.problem.costs import COMPUTE, EXCHANGE, PHASES
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

FILE_KIND = "shardgym cost network 3"


@public("shardgym.costmodel")
class LearnedCost(SummedCostModel):
    """Costs predicted by an ensemble of `CostNetwork`s fitted on one machine's measurements: their mean.

    A task with tables outside the measured ranges raises an `OutOfRangeWarning` when it is first encoded.

    Args:
        networks: fitted, with their normalisation; their states stand side by side.
        hardware: of the measurements.
        measured_on: what they were fitted on, for reports.
        ranges: of the measurements.
        exchange: predicts the two all-to-alls; without it they cost nothing.
    """

    def __init__(
        self,
        networks: Sequence[CostNetwork],
        hardware: Hardware,
        measured_on: str,
        ranges: Ranges,
        exchange: ExchangeNetwork | None = None,
    ) -> None:
        self.networks = [network.eval() for network in networks]
        self.hardware = hardware
        self.measured_on = measured_on
        self.ranges = ranges
        self.exchange = exchange
        # In float64 rounding stays far below the grid; a float32 product rounds a row by how many are beside it.
        self._encoders = [deepcopy(network).double() for network in self.networks]
        self._heads = CostHeads(networks)
        self._exchange_head = None if exchange is None else ExchangeHead(exchange)
        self._encoded: tuple[Task, NDArray[np.float32]] | None = None

    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device's state, (T, H), its dim being last. The last task's are remembered."""
        if self._encoded is None or self._encoded[0] is not task:
            self._flag(task)
            features = torch.from_numpy(table_features(task.tables, task.batch_size)).double()
            with torch.no_grad():
                states = torch.cat([encoder.table_states(features) for encoder in self._encoders], dim=1)
            dims = np.array([[table.dim] for table in task.tables], dtype=np.float32)
            self._encoded = task, np.concatenate([on_grid(states.numpy()), dims], axis=1)
        return self._encoded[1].copy()

    def _flag(self, task: Task) -> None:
        for sentence in self.ranges.outside(task.tables, task.batch_size):
            warnings.warn(f"{task.name}: {sentence}; its cost is an extrapolation", OutOfRangeWarning, stacklevel=3)
        if self.exchange is not None and task.devices > int(self.exchange.devices[1]):
            low, high = self.exchange.devices.tolist()
            warnings.warn(
                f"{task.devices} devices are outside the {low} to {high} of the measured all-to-alls; their cost is an "
                "extrapolation",
                OutOfRangeWarning,
                stacklevel=3,
            )

    def device_costs(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Phases of devices, (..., D, H) to (..., D, 4) ms."""
        costs = np.zeros((*states.shape[:-1], len(PHASES)), dtype=np.float32)
        _put(costs, COMPUTE, self.member_costs(states).mean(axis=0))
        if self._exchange_head is not None:
            _put(costs, EXCHANGE, self._exchange_head(states[..., -1], task.batch_size))
        return costs

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """Ms that each table adds to its device at least, (T, 4): its own, stretched as if it were alone."""
        floors = np.zeros((len(task.tables), len(PHASES)), dtype=np.float32)
        floors[:, COMPUTE] = self._heads.stretched(self.table_states(task)[:, :-1])[0].mean(axis=0)
        return floors

    def member_costs(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Forward and backward by each network, (..., D, H) to (members, ..., D, 2) ms; their spread is a warning."""
        return self._heads(states[..., :-1])

    def save(self, path: Path) -> None:
        """Write the model to one file, atomically."""
        content = {
            "hardware": asdict(self.hardware),
            "measured_on": self.measured_on,
            "ranges": self.ranges.to_record(),
            "weights": [network.state_dict() for network in self.networks],
            "exchange": None if self.exchange is None else self.exchange.state_dict(),
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
        exchange = None
        if content["exchange"] is not None:
            exchange = ExchangeNetwork()
            exchange.load_state_dict(content["exchange"])
        return cls(networks, hardware, content["measured_on"], Ranges.from_record(content["ranges"]), exchange)


def _put(costs: NDArray[np.float32], phases: tuple[int, int], values: NDArray[np.float32]) -> None:
    """Write two phases, one at a time: numpy's indexing by a tuple is several times slower."""
    for k, phase in enumerate(phases):
        costs[..., phase] = values[..., k]
