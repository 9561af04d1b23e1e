"""DreamShard's two networks as a policy of Stable-Baselines3: it acts on an observation alone.

The cost network predicts what each device would cost with the table in hand; the placement policy reads that.
"""

from typing import Any

import numpy as np
import torch
from gymnasium import spaces
from numpy.typing import NDArray
from stable_baselines3.common.policies import BasePolicy
from stable_baselines3.common.type_aliases import PyTorchObs, Schedule
from torch import Tensor

from shardgym.agents.learning.policy_network import Decision, PlacementPolicy
from shardgym.costmodel.networks.cost_network import CostNetwork
from shardgym.costmodel.networks.training import Packed, additive_part
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.observation import Layout
from shardgym.problem.costs import PHASES
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

NO_TIME = 1e-3
"""Ms that a phase counts as at least: a microsecond keeps the logarithm of what takes no time."""
LOG_BYTES = FEATURE_NAMES.index("log_bytes")


class EstimatedCost(SummedCostModel):
    """What a cost network under training predicts.

    Args:
        network: of four phases.
    """

    def __init__(self, network: CostNetwork) -> None:
        self.network = network

    @torch.no_grad()
    def table_states(self, task: Task) -> NDArray[np.float32]:
        """(T, H)."""
        return self.network.table_states(torch.from_numpy(table_features(task.tables, task.batch_size))).numpy()

    @torch.no_grad()
    def device_costs(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """(..., H) to (..., 4) ms."""
        return self.network.device_costs(torch.from_numpy(np.ascontiguousarray(states))).numpy()


@public("shardgym.agents")
class DreamShardPolicy(BasePolicy):
    """A cost network and a placement policy that reads it.

    Args:
        observation_space: of `shardgym/TablePlacement-v0`.
        action_space: of the same.
        lr_schedule: of both optimizers.
        encoding: width of a table's encoding in the placement policy.
        hidden: width of the networks.

    Raises:
        InputError: the space is of another environment.
    """

    steps_taken: Tensor

    def __init__(
        self,
        observation_space: spaces.Dict,
        action_space: spaces.Discrete,
        lr_schedule: Schedule,
        encoding: int = 32,
        hidden: int = 64,
    ) -> None:
        super().__init__(observation_space, action_space)
        if not isinstance(observation_space, spaces.Dict) or "device_of" not in observation_space.spaces:
            raise InputError("DreamShard: give an environment of shardgym")
        self.layout = Layout.of(observation_space)
        if self.layout.options:
            raise InputError("DreamShard: it places tables as they are; give shardgym/TablePlacement-v0")
        self.encoding, self.hidden = encoding, hidden
        self.cost_network = CostNetwork(self.layout.features, len(PHASES), hidden)
        self.placing = PlacementPolicy(self.layout.features, encoding, hidden)
        self.cost_optimizer = torch.optim.Adam(self.cost_network.parameters(), lr=lr_schedule(1))
        self.optimizer = torch.optim.Adam(self.placing.parameters(), lr=lr_schedule(1))
        self.register_buffer("steps_taken", torch.zeros((), dtype=torch.int64))

    def estimate(self) -> EstimatedCost:
        """The cost network as a cost model."""
        return EstimatedCost(self.cost_network)

    def begin(self, measured: Packed) -> None:
        """Fix from the first measurements what stays: both networks' normalisation, the costs' additive part."""
        self.cost_network.set_normalisation(measured.features)
        self.cost_network.set_additive(additive_part(measured))
        self.placing.encoder.set_normalisation(measured.features)

    def cost_loss(self, measured: Packed) -> Tensor:
        """Mean error of log milliseconds over measured devices."""
        predicted = self.cost_network(measured.features, measured.group_of(), len(measured))
        return (predicted.clamp(min=NO_TIME).log() - measured.targets.log()).abs().mean()

    def _predict(self, observation: PyTorchObs, deterministic: bool = False) -> Tensor:
        assert isinstance(observation, dict)
        logits = self.logits({name: field.float() for name, field in observation.items()})
        if deterministic:
            return logits.argmax(dim=-1)
        return torch.distributions.Categorical(logits=logits).sample()

    def logits(self, observation: dict[str, Tensor]) -> Tensor:
        """(B, D) of a batch of observations."""
        fields = self.layout.unflatten(observation)
        states, in_hand = (self.cost_network.table_states(fields[name]) for name in ("tables", "current"))
        encodings, table = (self.placing.encoder(fields[name]) for name in ("tables", "current"))
        D, device_of = self.layout.max_devices, fields["device_of"][..., 0].long()  # (B, T)
        on_device = (device_of[:, None, :] == torch.arange(D)[:, None]).float()  # (B, D, T)
        real = (torch.arange(self.layout.max_tables) < fields["table_count"][:, None]).float()  # (B, T)
        devices = fields["device_exists"].sum(dim=1)  # (B,)
        share = (states * real[..., None]).sum(dim=1, keepdim=True) / devices[:, None, None]
        fair = self.cost_network.device_costs(share)  # (B, 1, 4)
        sums = on_device @ states
        alone = self.cost_network.device_costs(states).sum(dim=-1) * real  # (B, T)
        waiting = real * (torch.arange(self.layout.max_tables) >= fields["cursor"][:, None])
        to_come = (alone * waiting).sum(dim=1) / alone.sum(dim=1).clamp(min=1e-9)
        decision = Decision(
            after=self.cost_network.device_costs(sums + in_hand[:, None, :]),
            now=self.cost_network.device_costs(sums),
            fair=fair,
            legal=fields["legal"] > 0,
            to_come=to_come,
            weight=self.cost_network.device_costs(in_hand).sum(dim=-1) / fair.sum(dim=(1, 2)).clamp(min=1e-9),
            **self._memory(fields, waiting),
        )
        return self.placing.logits(on_device @ encodings, table, decision)

    @staticmethod
    def _memory(fields: dict[str, Tensor], waiting: Tensor) -> dict[str, Tensor]:
        """Room and pressure as the placement policy knows them; bytes of tables to come are read from `log_bytes`."""
        log_bytes = fields["tables"][..., LOG_BYTES]  # (B, T)
        unit = fields["current_memory"] / fields["current"][:, LOG_BYTES].exp()  # share of the largest device a byte
        to_come = (log_bytes.exp() * waiting).sum(dim=1) * unit
        memory_left = fields["memory_left"]
        left = memory_left - fields["current_memory"][:, None]
        # Devices are taken as equal in memory: how full one began is not observed.
        return {
            "room": left,
            "mean_room": left * waiting.sum(dim=1, keepdim=True) / to_come[:, None].clamp(min=1e-9),
            "pressure": to_come / memory_left.sum(dim=1).clamp(min=1e-9),
        }

    def _get_constructor_parameters(self) -> dict[str, Any]:
        data = super()._get_constructor_parameters()
        return data | {"lr_schedule": lambda _: 1e-3, "encoding": self.encoding, "hidden": self.hidden}
