"""A fitted cost network as a cost model, and its file."""

from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.features import FEATURE_NAMES, table_features
from shardgym.costmodel.hardware import Hardware
from shardgym.costmodel.network import CostNetwork
from shardgym.costmodel.placement import PHASES, Task
from shardgym.costmodel.summed import SummedCostModel
from shardgym.dataio.atomic import replacing
from shardgym.embeddings.errors import InputError

FILE_KIND = "shardgym cost network 1"


class LearnedCost(SummedCostModel):
    """Costs predicted by a `CostNetwork` fitted on one machine's measurements.

    Args:
        network: fitted, with its normalisation.
        hardware: of the measurements.
        measured_on: what it was fitted on, for reports.
    """

    def __init__(self, network: CostNetwork, hardware: Hardware, measured_on: str) -> None:
        self.network = network.eval()
        self.hardware = hardware
        self.measured_on = measured_on
        # The heads are tiny and called once a decision: plain numpy spares torch's cost per call.
        with torch.no_grad():
            self._in = (network.head_in.positive_weight().numpy().T.copy(), network.head_in.bias.numpy().copy())
            self._out = (network.head_out.positive_weight().numpy().T.copy(), network.head_out.bias.numpy().copy())

    @torch.no_grad()
    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device's state, (T, H)."""
        features = torch.from_numpy(table_features(task.tables, task.batch_size))
        return self.network.table_states(features).numpy()

    def device_costs(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Phases of devices, (..., D, H) to (..., D, 4) ms; the two communication phases are zero."""
        hidden = _softplus(np.log1p(states) @ self._in[0] + self._in[1])
        compute = states[..., :2] + _softplus(hidden @ self._out[0] + self._out[1])
        compute *= states.sum(axis=-1, keepdims=True) > 0
        costs = np.zeros((*compute.shape[:-1], len(PHASES)), dtype=np.float32)
        costs[..., PHASES.index("forward")] = compute[..., 0]
        costs[..., PHASES.index("backward")] = compute[..., 1]
        return costs

    def save(self, path: Path) -> None:
        """Write the model to one file, atomically."""
        content = {
            "kind": FILE_KIND,
            "features": list(FEATURE_NAMES),
            "hardware": asdict(self.hardware),
            "measured_on": self.measured_on,
            "weights": self.network.state_dict(),
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
        hardware = Hardware(**content["hardware"])
        if here is not None and not hardware.same_machine(here):
            raise InputError(
                f"{path}: was fitted on {hardware}, and this is {here}; measure and fit here, or pass "
                "--any-hardware to use it all the same"
            )
        network = CostNetwork(len(FEATURE_NAMES))
        network.load_state_dict(content["weights"])
        return cls(network, hardware, content["measured_on"])


def _softplus(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.logaddexp(np.float32(0), x)
