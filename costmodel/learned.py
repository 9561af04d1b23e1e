"""Fitted cost networks as a cost model, and its file."""

import math
import warnings
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.features import FEATURE_NAMES, table_features
from shardgym.costmodel.hardware import Hardware
from shardgym.costmodel.network import CostNetwork, PositiveLinear
from shardgym.costmodel.placement import PHASES, Task
from shardgym.costmodel.ranges import OutOfRangeWarning, Ranges
from shardgym.costmodel.summed import SummedCostModel, on_grid
from shardgym.dataio.atomic import replacing
from shardgym.embeddings.errors import InputError

FILE_KIND = "shardgym cost network 2"
COMPUTE = (PHASES.index("forward"), PHASES.index("backward"))


class LearnedCost(SummedCostModel):
    """Costs predicted by an ensemble of `CostNetwork`s fitted on one machine's measurements: their mean.

    A task with tables outside the measured ranges raises an `OutOfRangeWarning` when it is first encoded.

    Args:
        networks: fitted, with their normalisation; their states stand side by side.
        hardware: of the measurements.
        measured_on: what they were fitted on, for reports.
        ranges: of the measurements.
    """

    def __init__(self, networks: Sequence[CostNetwork], hardware: Hardware, measured_on: str, ranges: Ranges) -> None:
        self.networks = [network.eval() for network in networks]
        self.hardware = hardware
        self.measured_on = measured_on
        self.ranges = ranges
        # The heads are tiny and called once a decision: plain numpy spares torch's cost per call.
        self._heads = _Heads(networks)
        self._encoded: tuple[Task, NDArray[np.float32]] | None = None

    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device's state, (T, H). The last task's are remembered."""
        if self._encoded is None or self._encoded[0] is not task:
            for sentence in self.ranges.outside(task.tables, task.batch_size):
                warnings.warn(f"{task.name}: {sentence}; its cost is an extrapolation", OutOfRangeWarning, stacklevel=2)
            features = torch.from_numpy(table_features(task.tables, task.batch_size))
            with torch.no_grad():
                states = torch.cat([network.table_states(features) for network in self.networks], dim=1)
            self._encoded = task, on_grid(states.numpy())
        return self._encoded[1].copy()

    def device_costs(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Phases of devices, (..., D, H) to (..., D, 4) ms; the two communication phases are zero."""
        costs = np.zeros((*states.shape[:-1], len(PHASES)), dtype=np.float32)
        mean = self.member_costs(states).mean(axis=0)
        for k, phase in enumerate(COMPUTE):
            costs[..., phase] = mean[..., k]
        return costs

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """Ms that each table adds to its device at least, (T, 4): its own, stretched as if it were alone."""
        floors = np.zeros((len(task.tables), len(PHASES)), dtype=np.float32)
        floors[:, COMPUTE] = self._heads.stretched(self.table_states(task))[0].mean(axis=0)
        return floors

    def member_costs(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Forward and backward by each network, (..., D, H) to (members, ..., D, 2) ms; their spread is a warning."""
        return self._heads(states)

    def save(self, path: Path) -> None:
        """Write the model to one file, atomically."""
        content = {
            "kind": FILE_KIND,
            "features": list(FEATURE_NAMES),
            "hardware": asdict(self.hardware),
            "measured_on": self.measured_on,
            "ranges": self.ranges.to_record(),
            "weights": [network.state_dict() for network in self.networks],
        }
        with replacing(path) as partial:
            torch.save(content, partial)

    @classmethod
    def load(cls, path: Path, here: Hardware | None = None) -> "LearnedCost":
        """Read a model file.

        Args:
            path: the file.
            here: hardware that costs are wanted for; None accepts a model of any hardware.

        Raises:
            InputError: no such file, not a model, or fitted on other hardware.
        """
        content = _read(path)
        hardware = Hardware(**content["hardware"])
        if here is not None and not hardware.same_machine(here):
            raise InputError(
                f"{path}: was fitted on {hardware}, and this is {here}; measure and fit here, or pass "
                "--any-hardware to use it all the same"
            )
        networks = [CostNetwork(len(FEATURE_NAMES)) for _ in content["weights"]]
        for network, weights in zip(networks, content["weights"]):
            network.load_state_dict(weights)
        return cls(networks, hardware, content["measured_on"], Ranges.from_record(content["ranges"]))


class _Heads:
    """`CostNetwork.device_costs` of M networks at once, in numpy."""

    def __init__(self, networks: Sequence[CostNetwork]) -> None:
        self.members, self.phases = len(networks), networks[0].phases
        with torch.no_grad():
            self._in, self._in_bias = _stacked([network.head_in for network in networks])
            self._out, self._out_bias = _stacked([network.head_out for network in networks])

    def __call__(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Costs of devices by each network, (..., M * S) to (M, ..., phases) ms."""
        stretched, extra = self.stretched(states)
        used = states.sum(axis=-1, keepdims=True) > 0
        # (M, n, phases) -> (M, ..., phases)
        return (stretched + extra).reshape(self.members, *states.shape[:-1], self.phases) * used

    def stretched(self, states: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The stretched sums of the tables' ms, and the ms that come on top; (M, n, phases) each."""
        # (..., M * S) -> (n, M, S) -> (M, n, S)
        count = math.prod(states.shape[:-1])
        parts = states.reshape(count, self.members, states.shape[-1] // self.members).transpose(1, 0, 2)
        logs = np.log1p(parts)
        hidden = logs @ self._in  # (M, n, hidden), then in place: it is the largest array here
        hidden += self._in_bias
        np.tanh(hidden, out=hidden)
        width = hidden.shape[-1]
        out = hidden @ self._out[:, :width] + logs @ self._out[:, width:] + self._out_bias
        ratios = np.exp(np.minimum(out, 12.0))
        return parts[..., : self.phases] * ratios[..., : self.phases], ratios[..., self.phases :]


def _stacked(layers: Sequence[PositiveLinear]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (M, in, out) and biases (M, 1, out) of one layer of M networks."""
    weights = torch.stack([layer.positive_weight().T for layer in layers]).contiguous()
    return weights.numpy(), torch.stack([layer.bias for layer in layers])[:, None].numpy()


def _read(path: Path) -> dict:
    if not path.exists():
        raise InputError(f"{path}: no such cost model; run `shardgym fit --out {path}` first")
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # torch.load raises many kinds for a file that is not its own
        raise InputError(f"{path}: is not a cost model ({type(error).__name__}); fit it again") from error
    if not isinstance(content, dict) or content.get("kind") != FILE_KIND:
        raise InputError(f"{path}: is not a {FILE_KIND!r}; fit it again with this version")
    if content["features"] != list(FEATURE_NAMES):
        raise InputError(f"{path}: was fitted with other table features; fit it again with this version")
    return content
