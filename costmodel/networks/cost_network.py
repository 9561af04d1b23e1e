"""The network that predicts a device's phases from its tables.

DreamShard (arXiv 2210.02023, section 3.2) sums learned table representations over a device and reads each phase
from the sum. Here the representations are non-negative and every later weight is too, so that a cost is never
negative and never falls when a table is added, whatever the training data.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.costmodel.networks.normalised import NormalisedNetwork
from shardgym.costmodel.pricing.features import FEATURE_NAMES

WORK = ("tables", "log_lookups", "log_traffic", "log_output")
"""Columns of `work`: a count, and features of which it takes the exponential."""


class CostNetwork(NormalisedNetwork):
    """Table encoder, sum over tables, monotone head per phase.

    The first numbers of a table's state are milliseconds that add up: what an additive model says (`set_additive`),
    times what the encoder corrects it by. The head reads from all summed states by how much
    to stretch them (tables that crowd each other out of the caches), and what comes on top (launches, and what grows
    slower than the sum). Both are exponentials of logarithms, so that powers of a sum are within reach.

    Args:
        features: raw features of a table.
        phases: phases predicted.
        hidden: width of the encoder and the head.
        state: width of what is summed.
    """

    additive: Tensor

    def __init__(self, features: int, phases: int = 2, hidden: int = 64, state: int = 32) -> None:
        super().__init__(features)
        self.phases = phases
        self.register_buffer("additive", torch.ones(phases, len(WORK)))
        last = nn.Linear(hidden, state)
        self.encoder = nn.Sequential(nn.Linear(features, hidden), nn.SiLU(), nn.Linear(hidden, hidden), nn.SiLU(), last)
        self.head_in = PositiveLinear(state, hidden)
        self.head_out = PositiveLinear(hidden + state, 2 * phases)
        # Begin near the tenth of a millisecond that a launch costs, not near one.
        nn.init.constant_(last.bias, -3.0)
        nn.init.constant_(last.bias[:phases], 0.0)
        nn.init.constant_(self.head_out.bias[:phases], 0.0)
        nn.init.constant_(self.head_out.bias[phases:], -3.0)

    def set_additive(self, coefficients: Tensor) -> None:
        """Fix the additive model, (phases, 4) ms per unit of `work`, once; it is stored with the weights."""
        self.additive.copy_(coefficients)

    def table_states(self, features: Tensor) -> Tensor:
        """Non-negative representations of tables, (..., F) to (..., state); the first are ms of each phase."""
        encoded = self.encoder(self.normalised(features))
        # Costs span four decades: the exponential lets the encoder work in their logarithm.
        states = encoded.clamp(max=12.0).exp()
        sums = (work(features) @ self.additive.T).clamp(min=1e-6) * states[..., : self.phases]
        return torch.cat([sums, states[..., self.phases :]], dim=-1)

    def device_costs(self, states: Tensor) -> Tensor:
        """Phases of devices from their summed states, (..., state) to (..., phases) ms; zero on empty devices."""
        logs = torch.log1p(states)
        hidden = torch.cat([torch.tanh(self.head_in(logs)), logs], dim=-1)
        stretch, extra = self.head_out(hidden).clamp(max=12.0).split(self.phases, dim=-1)
        costs = states[..., : self.phases] * stretch.exp() + extra.exp()
        return costs * (states.sum(dim=-1, keepdim=True) > 0)

    def forward(self, features: Tensor, group_of: Tensor, groups: int) -> Tensor:
        """Phases of groups of tables.

        Args:
            features: (T, F) raw features of all groups' tables.
            group_of: (T,) int64, the group of each table.
            groups: number of groups G.

        Returns:
            (G, phases) ms.
        """
        states = self.table_states(features)
        summed = states.new_zeros(groups, states.shape[1]).index_add_(0, group_of, states)
        return self.device_costs(summed)


def work(features: Tensor) -> Tensor:
    """What tables ask of a device, (..., F) to (..., 4): one table, ids looked up, numbers read, numbers pooled."""
    lookups, traffic, output = (features[..., FEATURE_NAMES.index(name)] for name in WORK[1:])
    return torch.stack([torch.ones_like(lookups), lookups.expm1(), traffic.expm1(), output.exp()], dim=-1)


class PositiveLinear(nn.Linear):
    """A linear layer whose weights cannot be negative, which makes its outputs non-decreasing in its inputs.

    The logarithms of its weights are learned; they begin far apart, so that units differ from the start.
    """

    def reset_parameters(self) -> None:
        """Draw the logarithms of the weights (out, in) and the biases (out,)."""
        nn.init.normal_(self.weight, mean=-math.log(self.in_features), std=1.0)
        nn.init.uniform_(self.bias, -2.0, 1.0)

    def positive_weight(self) -> Tensor:
        """The weights, (out, in), all above zero."""
        return self.weight.exp()

    def forward(self, inputs: Tensor) -> Tensor:
        """(..., in) to (..., out)."""
        return F.linear(inputs, self.positive_weight(), self.bias)
