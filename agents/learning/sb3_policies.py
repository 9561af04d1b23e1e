"""The placement policy for Stable-Baselines3 and sb3-contrib: PPO, A2C and MaskablePPO on every environment here.

    PPO(PlacementActorCriticPolicy, env)
    MaskablePPO(MaskablePlacementPolicy, env)

One encoder for all tables, their SUM over a device, one scorer shared by all devices (and one shared by all options),
MAX over them for the value: the same weights serve any number of tables and devices. Legality is read from the
observation, so that algorithms without masks never choose what is not legal; an algorithm's own masks may come on top.
"""

from pathlib import Path
from typing import Any, TypeVar

import torch
from gymnasium import spaces
from sb3_contrib.common.maskable.policies import MaskableActorCriticPolicy
from stable_baselines3.common.base_class import BaseAlgorithm
from stable_baselines3.common.policies import ActorCriticPolicy
from stable_baselines3.common.torch_layers import BaseFeaturesExtractor
from stable_baselines3.common.type_aliases import GymEnv, Schedule
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.agents.learning.policy_network import MASKED, TableEncoder
from shardgym.agents.planners.construction import SMALL_PHASE
from shardgym.costmodel.pricing.features import table_features
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.envs.families import BATCH
from shardgym.envs.observation import Layout
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

DEVICE_COLUMNS = 10
OPTION_COLUMNS = 5
FLAGS = 3
"""Columns that stand behind an action's latent vector: legal, exists, excess."""

Algorithm = TypeVar("Algorithm", bound=BaseAlgorithm)


@public("shardgym.agents")
class ActionFeatures(BaseFeaturesExtractor):
    """A latent vector for every action, from an observation.

    Args:
        observation_space: of an environment of this suite.
        encoding: width of a table's encoding.
        hidden: width of an action's latent vector.

    Raises:
        InputError: the space is of another environment.
    """

    def __init__(self, observation_space: spaces.Dict, encoding: int = 32, hidden: int = 64) -> None:
        super().__init__(observation_space, hidden + FLAGS)
        if not isinstance(observation_space, spaces.Dict) or "device_of" not in observation_space.spaces:
            raise InputError("policy: the observation space has no field 'device_of'; use an environment of shardgym")
        self.layout = Layout.of(observation_space)
        self.encoder = TableEncoder(self.layout.features, encoding, hidden)
        # The normalisation is the same whatever the tasks, so that trained weights serve any others.
        self.encoder.set_normalisation(torch.from_numpy(table_features(dlrm_like(256, seed=0), BATCH)))
        self.from_device = nn.Linear(encoding + DEVICE_COLUMNS, hidden)
        self.from_table = nn.Linear(encoding, hidden, bias=False)
        self.hidden = nn.Linear(hidden, hidden)
        self.from_option = nn.Linear(OPTION_COLUMNS, hidden) if self.layout.options else None

    def forward(self, observations: dict[str, Tensor]) -> Tensor:
        """(B, A, hidden + FLAGS), A being devices and then options."""
        fields = self.layout.unflatten(observations)
        table = self.from_table(self.encoder(fields["current"]))[:, None, :]  # (B, 1, hidden)
        columns, excess = device_columns(fields)
        devices = self.from_device(torch.cat([torch.log1p(self._sums(fields)), columns], dim=-1))
        devices = self.hidden(F.relu(devices + table))
        actions, exists = devices, fields["device_exists"]
        if self.from_option is not None:
            options = self.hidden(F.relu(self.from_option(option_columns(fields)) + table))
            actions = torch.cat([devices, options], dim=1)
            exists = torch.cat([exists, (fields["option_pieces"] > 0).float()], dim=1)
            excess = torch.cat([excess, torch.zeros_like(fields["option_pieces"])], dim=1)
        return torch.cat([F.relu(actions), torch.stack([fields["legal"], exists, excess], dim=-1)], dim=-1)

    def _sums(self, fields: dict[str, Tensor]) -> Tensor:
        """(B, D, encoding) encodings summed over each device's pieces."""
        encodings = self.encoder(fields["tables"])  # (B, T, encoding)
        B, _, E = encodings.shape
        device_of = fields["device_of"].long()  # (B, T, P)
        devices = self.layout.max_devices
        device_of = torch.where(device_of >= 0, device_of, devices).reshape(B, -1, 1).expand(-1, -1, E)  # (B, T * P, E)
        pieces = encodings.repeat_interleave(self.layout.max_pieces, dim=1)  # (B, T * P, E)
        # What waits or does not exist is summed on a device that is cut off again.
        return encodings.new_zeros(B, devices + 1, E).scatter_add(1, device_of, pieces)[:, :devices]


def device_columns(fields: dict[str, Tensor]) -> tuple[Tensor, Tensor]:
    """What is known of a device, (B, D, DEVICE_COLUMNS), and how much more than the cheapest it would cost, (B, D).

    Costs are in shares of the mean device's load with the table in hand: they mean the same in tasks of any size.
    """
    exists, legal = fields["device_exists"], fields["legal"][:, : fields["device_exists"].shape[1]]
    costs = fields["device_costs"]  # (B, D, 4)
    total, alone = costs.sum(dim=-1), fields["current_cost"][:, None]
    # Sorted before they are summed, the devices' order cannot show in the rounding.
    everything = total.sort(dim=1).values.sum(dim=1, keepdim=True)
    fair = (everything + alone) / exists.sum(dim=1, keepdim=True) + 1e-6  # (B, 1)
    # A phase lasts as long as its slowest device: a device is as full as the fullest of its phases.
    mean = costs.sort(dim=1).values.sum(dim=1, keepdim=True) / exists.sum(dim=1)[:, None, None]  # (B, 1, 4)
    shares = costs / torch.maximum(mean, SMALL_PHASE * mean.sum(dim=-1, keepdim=True)).clamp(min=1e-6)
    full = shares.amax(dim=-1)
    least = torch.where(legal > 0, full, torch.inf).amin(dim=1, keepdim=True).clamp(max=1e6)
    excess = (full - least) * legal
    to_come = (fields["table_count"] - fields["cursor"]) / fields["table_count"]
    left = fields["memory_left"] - fields["current_memory"][:, None]
    shared = [to_come[:, None], torch.log1p(fair), alone / fair]
    columns = [excess, left.clamp(-1, 1), legal, *(column.expand_as(total) for column in shared)]
    per_phase = costs / fair[..., None]
    return torch.cat([per_phase, torch.stack(columns, dim=-1)], dim=-1).clamp(-10, 10), excess.clamp(max=10)


def option_columns(fields: dict[str, Tensor]) -> Tensor:
    """What is known of an option, (B, C, OPTION_COLUMNS)."""
    room = fields["memory_left"].sum(dim=1, keepdim=True) + 1e-6
    whole = fields["option_memory"] * fields["option_pieces"]
    least = torch.where(fields["option_cost"] > 0, fields["option_cost"], torch.inf).amin(dim=1, keepdim=True)
    cost = fields["option_cost"] / least.clamp(1e-6, 1e6)
    columns = [whole / room, cost, fields["option_pieces"], fields["option_price"]]
    left = fields["budget_left"][:, None].expand_as(whole)
    return torch.stack([*columns, left], dim=-1).clamp(-10, 10)


class _SameLatents(nn.Module):
    """Stands where SB3 wants layers of its own between the features and the heads."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.latent_dim_pi = self.latent_dim_vf = width

    def forward(self, features: Tensor) -> tuple[Tensor, Tensor]:
        return features, features

    def forward_actor(self, features: Tensor) -> Tensor:
        return features

    def forward_critic(self, features: Tensor) -> Tensor:
        return features


class _ActionScores(nn.Module):
    """(B, A, hidden + FLAGS) to logits (B, A): one scorer for all actions, `MASKED` where not legal."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.scorer = nn.Linear(hidden, 1)
        # The first policy leans to the cheapest device; learning starts from there.
        self.sharpness = nn.Parameter(torch.tensor(10.0).log())
        nn.init.zeros_(self.scorer.weight)

    def forward(self, latents: Tensor) -> Tensor:
        legal, _, excess = latents[..., -FLAGS:].unbind(dim=-1)
        scores = self.scorer(latents[..., :-FLAGS])[..., 0] - self.sharpness.exp() * excess
        return scores.masked_fill(legal <= 0, MASKED)


class _MaxValue(nn.Module):
    """(B, A, hidden + FLAGS) to values (B, 1): MAX over what exists, as the slowest device sets the step."""

    def __init__(self, hidden: int) -> None:
        super().__init__()
        self.value = nn.Linear(hidden, 1)

    def forward(self, latents: Tensor) -> Tensor:
        exists = latents[..., -2:-1] > 0
        return self.value(torch.where(exists, latents[..., :-FLAGS], 0.0).amax(dim=1))


class _PlacementHeads:
    """What makes an actor-critic policy of SB3 a placement policy: its features and heads, built once."""

    mlp_extractor: Any
    action_net: Any
    value_net: Any

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        kwargs.setdefault("features_extractor_class", ActionFeatures)
        super().__init__(*args, **kwargs)

    def _build(self, lr_schedule: Schedule) -> None:
        hidden = self.features_dim - FLAGS  # type: ignore[attr-defined]
        self.mlp_extractor = _SameLatents(self.features_dim)  # type: ignore[attr-defined]
        self.action_net = _ActionScores(hidden)
        self.value_net = _MaxValue(hidden)
        self.optimizer = self.optimizer_class(  # type: ignore[attr-defined]
            self.parameters(),  # type: ignore[attr-defined]
            lr=lr_schedule(1),
            **self.optimizer_kwargs,  # type: ignore[attr-defined]
        )


@public("shardgym.agents")
class PlacementActorCriticPolicy(_PlacementHeads, ActorCriticPolicy):
    """For PPO and A2C: `PPO(PlacementActorCriticPolicy, env)`. Widths by `features_extractor_kwargs`."""


@public("shardgym.agents")
class MaskablePlacementPolicy(_PlacementHeads, MaskableActorCriticPolicy):
    """For MaskablePPO: `MaskablePPO(MaskablePlacementPolicy, env)`. Widths by `features_extractor_kwargs`."""


def transfer(algorithm: type[Algorithm], path: str | Path, env: GymEnv, **keywords: Any) -> Algorithm:
    """Load a trained algorithm for an environment of other sizes; its weights serve any tables and devices.

    Args:
        algorithm: the class that was saved, such as `PPO`.
        path: what `save` wrote.
        env: the environment to go on in.
        keywords: of `algorithm.load`.

    Raises:
        InputError: no such file.
    """
    path = Path(path)
    if not path.exists() and not path.with_name(path.name + ".zip").exists():
        raise InputError(f"{path}: no such file; save a trained algorithm there first")
    spaces_of_env = {"observation_space": env.observation_space, "action_space": env.action_space}
    return algorithm.load(path, env=env, custom_objects=spaces_of_env, **keywords)
