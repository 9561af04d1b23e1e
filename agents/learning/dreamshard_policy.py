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
from shardgym.costmodel.pricing.exchange import OUTPUT_BYTES, Direction, PhysicalExchange
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.envs.observation import Layout
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

NO_TIME = 1e-3
"""Ms that a phase counts as at least: a microsecond keeps the logarithm of what takes no time."""
LOG_BYTES, LOG_OUTPUT, LOG_DEDUP = map(FEATURE_NAMES.index, ("log_bytes", "log_output", "log_dedup"))


class EstimatedCost(SummedCostModel):
    """What DreamShard has learned so far: a cost network of the compute phases, an exchange of the collectives.

    Args:
        network: of two phases.
        exchange: fitted to the placements measured.
    """

    def __init__(self, network: CostNetwork, exchange: PhysicalExchange) -> None:
        self.network, self._exchange = network, exchange

    @property
    def exchange(self) -> PhysicalExchange:
        """As `SummedCostModel.exchange`."""
        return self._exchange

    @torch.no_grad()
    def table_states(self, task: Task) -> NDArray[np.float32]:
        """(T, H)."""
        features = torch.from_numpy(table_features(task.tables, task.batch_size))
        return on_grid(self.network.table_states(features).numpy())

    @torch.no_grad()
    def compute_ms(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """(..., H) to (..., 2) ms."""
        return self.network.device_costs(torch.from_numpy(np.ascontiguousarray(states))).numpy()


@public("shardgym.agents")
class DreamShardPolicy(BasePolicy):
    """A cost network and a placement policy that reads it.

    Args:
        observation_space: of `shardgym/TablePlacement-v1`.
        action_space: of the same.
        lr_schedule: of both optimizers.
        encoding: width of a table's encoding in the placement policy.
        hidden: width of the networks.

    Raises:
        InputError: the space is of another environment.
    """

    steps_taken: Tensor
    exchange_coefficients: Tensor

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
            raise InputError("DreamShard: it places tables as they are; give shardgym/TablePlacement-v1")
        self.encoding, self.hidden = encoding, hidden
        self.cost_network = CostNetwork(self.layout.features, 2, hidden)
        self.placing = PlacementPolicy(self.layout.features, encoding, hidden)
        self.cost_optimizer = torch.optim.Adam(self.cost_network.parameters(), lr=lr_schedule(1))
        self.optimizer = torch.optim.Adam(self.placing.parameters(), lr=lr_schedule(1))
        self.register_buffer("steps_taken", torch.zeros((), dtype=torch.int64))
        # Forward and backward: ms of a start, per peer, per byte of the host, per byte of the largest device.
        self.register_buffer("exchange_coefficients", torch.zeros(2, 4, dtype=torch.float64))

    def estimate(self) -> EstimatedCost:
        """What is learned of costs, as a cost model."""
        return EstimatedCost(self.cost_network, self.exchange())

    def exchange(self) -> PhysicalExchange:
        """What is learned of the collectives."""
        forward, backward = (Direction(*row) for row in self.exchange_coefficients.tolist())
        return PhysicalExchange(forward, backward)

    def set_exchange(self, exchange: PhysicalExchange) -> None:
        """Take a fitted exchange; its physical form is kept, corrections are not."""
        rows = [[one.start, one.peer, one.host, one.device] for one in (exchange.forward, exchange.backward)]
        self.exchange_coefficients.copy_(torch.tensor(rows))

    def begin(self, measured: Packed) -> None:
        """Fix from the first measurements what stays: both networks' normalisation, the costs' additive part."""
        self.cost_network.set_normalisation(measured.features)
        self.cost_network.set_additive(additive_part(measured))
        self.placing.encoder.set_normalisation(measured.features)

    def cost_loss(self, measured: Packed) -> Tensor:
        """Mean error of log milliseconds over measured devices, a scalar (); targets are (devices, 2) ms."""
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
        sums = on_device @ states
        waiting = real * (torch.arange(self.layout.max_tables) >= fields["cursor"][:, None])
        sent, in_hand_sent = self._sent(fields["tables"]) * real, self._sent(fields["current"])
        count = devices.long()
        alone = self._phases(states, self._collectives_alone(sent, count)).sum(dim=-1) * real  # (B, T)
        even = self._collectives((sent.sum(dim=1) / devices)[:, None].expand(-1, D), count)
        fair = self._phases(share, even[:, None])  # (B, 1, 4)
        on = (on_device.double() @ sent[..., None])[..., 0]  # (B, D)
        after_sent = on[:, None] + torch.eye(D).double() * in_hand_sent[:, None, None]  # (B, D, D)
        after = self._collectives(after_sent.flatten(0, 1), count.repeat_interleave(D)).unflatten(0, (-1, D))
        in_hand_phases = self._phases(in_hand[:, None], self._collectives_alone(in_hand_sent[:, None], count))[:, 0]
        decision = Decision(
            after=self._phases(sums + in_hand[:, None, :], after),
            now=self._phases(sums, self._collectives(on, count)[:, None].expand(-1, D, -1)),
            fair=fair,
            legal=fields["legal"] > 0,
            to_come=(alone * waiting).sum(dim=1) / alone.sum(dim=1).clamp(min=1e-9),
            weight=in_hand_phases.sum(dim=-1) / fair.sum(dim=(1, 2)).clamp(min=1e-9),
            **self._memory(fields, waiting),
        )
        return self.placing.logits(on_device @ encodings, table, decision)

    def _phases(self, states: Tensor, collectives: Tensor) -> Tensor:
        """States (..., H) and the collectives' ms (..., 2) to (..., 4) ms in the order of `PHASES`."""
        forward, backward = self.cost_network.device_costs(states).unbind(dim=-1)
        return torch.stack([forward, *collectives.unbind(dim=-1), backward], dim=-1)

    @staticmethod
    def _sent(features: Tensor) -> Tensor:
        """Bytes that tables send, (..., F) to (...)."""
        return OUTPUT_BYTES * (features[..., LOG_OUTPUT] - features[..., LOG_DEDUP]).double().exp()

    def _collectives(self, sent: Tensor, devices: Tensor) -> Tensor:
        """Both collectives' ms, (n, 2), from what devices send (n, D), of which row k has the first `devices[k]`."""
        exchange, ms = self.exchange(), torch.empty(len(sent), 2)
        for count in devices.unique().tolist():
            rows = devices == count
            ms[rows] = torch.from_numpy(exchange.ms(sent[rows, :count, None].numpy()))
        return ms

    def _collectives_alone(self, sent: Tensor, devices: Tensor) -> Tensor:
        """The same where one device sends what each table sends and the others nothing: (B, T) to (B, T, 2)."""
        B, T = sent.shape
        placed = torch.cat([sent.reshape(-1, 1), sent.new_zeros(B * T, self.layout.max_devices - 1)], dim=1)
        return self._collectives(placed, devices.repeat_interleave(T)).reshape(B, T, 2)

    @staticmethod
    def _memory(fields: dict[str, Tensor], waiting: Tensor) -> dict[str, Tensor]:
        """Room and pressure as the placement policy knows them; bytes of tables to come are read from `log_bytes`."""
        log_bytes = fields["tables"][..., LOG_BYTES]  # (B, T)
        unit = fields["current_memory"] / fields["current"][:, LOG_BYTES].exp()  # share of the largest device per byte
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
