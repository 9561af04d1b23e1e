"""The network that predicts a device's forward and backward from its tables.

DreamShard (arXiv 2210.02023, section 3.2) sums learned table representations over a device and reads each phase
from the sum. Here the representations are non-negative and every later weight is too, so that a cost is never
negative and never falls when a table is added, whatever the training data.
"""

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class CostNetwork(nn.Module):
    """Table encoder, sum over tables, monotone head per phase.

    A phase costs a part that is additive over the tables plus a part that the head reads from their summed
    representation (launch costs, shared caches, fusion).

    Args:
        features: raw features of a table.
        hidden: width of the encoder.
        state: width of what is summed.
    """

    PHASES = 2  # forward, backward

    mean: Tensor
    scale: Tensor

    def __init__(self, features: int, hidden: int = 64, state: int = 32) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(features))
        self.register_buffer("scale", torch.ones(features))
        last = nn.Linear(hidden, state)
        self.encoder = nn.Sequential(nn.Linear(features, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
        self.head_in = PositiveLinear(state, hidden)
        self.head_out = PositiveLinear(hidden, self.PHASES)
        # Begin near the tenth of a millisecond that a launch costs, not near one.
        nn.init.constant_(last.bias, -3.0)
        nn.init.constant_(self.head_out.bias, -5.0)

    def set_normalisation(self, features: Tensor) -> None:
        """Fix mean and scale of raw features (T, F) once; they are stored with the weights."""
        self.mean.copy_(features.mean(dim=0))
        # A feature that never varied in training keeps its unit, and so cannot blow up later.
        spread = features.std(dim=0, correction=0)
        self.scale.copy_(torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def table_states(self, features: Tensor) -> Tensor:
        """Non-negative representations of tables, (..., F) to (..., state); the first two are ms of each phase."""
        encoded = self.encoder((features - self.mean) / self.scale)
        # Costs span four decades: the exponential lets the encoder work in their logarithm.
        return encoded.clamp(max=12.0).exp()

    def device_costs(self, states: Tensor) -> Tensor:
        """Phases of devices from their summed states, (..., state) to (..., 2) ms; an empty device costs nothing."""
        hidden = F.softplus(self.head_in(torch.log1p(states)))
        costs = states[..., : self.PHASES] + F.softplus(self.head_out(hidden))
        return costs * (states.sum(dim=-1, keepdim=True) > 0)

    def forward(self, features: Tensor, present: Tensor) -> Tensor:
        """Phases of groups of tables.

        Args:
            features: (B, T, F) raw features, padded.
            present: (B, T) 1 where a table is, 0 where padding is.

        Returns:
            (B, 2) ms.
        """
        states = self.table_states(features) * present[..., None]  # (B, T, state)
        return self.device_costs(states.sum(dim=1))


class PositiveLinear(nn.Linear):
    """A linear layer whose weights cannot be negative, which makes its outputs non-decreasing in its inputs."""

    def positive_weight(self) -> Tensor:
        return F.softplus(self.weight - 3.0)

    def forward(self, inputs: Tensor) -> Tensor:
        return F.linear(inputs, self.positive_weight(), self.bias)
