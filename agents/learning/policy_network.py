"""The policy: which device takes the table in hand.

As in DreamShard (arXiv 2210.02023, section 3.3) tables are encoded, the encodings are SUMMED over a device, and one
scorer shared by all devices reads the sum with the predicted costs, so that one network serves any number of tables
and devices. Unlike there, the scorer also sees the table in hand, what each device would cost with it, and memory;
table features have one fixed normalisation; device inputs are ratios that mean the same in tasks of any size.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.agents.planners.construction import SMALL_PHASE
from shardgym.costmodel.networks.normalised import NormalisedNetwork
from shardgym.problem.faces import public

MASKED = -1e8
"""Logit of an illegal device: finite, so that an empty legal set gives no NaN."""

DEVICE_INPUTS = 16


class Decision(NamedTuple):
    """What is known when a table is placed. Leading axes (...) are episodes or steps.

    Args:
        after: (..., D, 4) ms of each device with the table in hand on it.
        now: (..., D, 4) ms of each device as it is.
        fair: (4,) or (..., 1, 4) ms of a device that holds an even share of everything.
        legal: (..., D) where the table has room.
        room: (..., D) share of a device's memory left with the table on it.
        mean_room: (..., D) the same room in mean sizes of the tables still to place.
        pressure: (...,) bytes of tables still to place over bytes free.
        to_come: (...,) share of the single-table costs still to place, the table in hand included.
        weight: (...,) single cost of the table in hand over the fair step.
    """

    after: Tensor
    now: Tensor
    fair: Tensor
    legal: Tensor
    room: Tensor
    mean_room: Tensor
    pressure: Tensor
    to_come: Tensor
    weight: Tensor

    def excess(self) -> Tensor:
        """(..., D, 2) how much more than the least a legal device has: its whole cost, and its fullest phase.

        The first is in fair steps, the second in fair shares of the phase: since each phase lasts as long as its
        slowest device, a device is as full as the fullest of its phases.
        """
        fair = self.fair.sum(dim=-1, keepdim=True)
        total = (self.after / fair).sum(dim=-1)
        fullest = (self.after / torch.maximum(self.fair, SMALL_PHASE * fair)).amax(dim=-1)
        both = torch.stack([total, fullest], dim=-1)
        least = torch.where(self.legal[..., None], both, torch.inf).amin(dim=-2, keepdim=True)
        return (both - least.clamp(max=1e6)).clamp(max=20)

    def device_inputs(self, excess: Tensor) -> Tensor:
        """(..., D, DEVICE_INPUTS) ratios for the scorer."""
        fair = self.fair.sum(dim=-1, keepdim=True)
        after, now = self.after / fair, self.now / fair
        peak = now.amax(dim=-2, keepdim=True)  # (..., 1, 4)
        rise = (after - peak).clamp(min=0).sum(dim=-1)
        shape = rise.shape
        columns = [*excess.unbind(dim=-1), rise, self.room, torch.log1p(self.mean_room.clamp(min=0))]
        columns += [shared[..., None].expand(shape) for shared in (self.pressure, self.to_come, self.weight)]
        inputs = torch.cat([after, now, torch.stack(columns, dim=-1)], dim=-1)
        return inputs.clamp(-1, 8)


class TableEncoder(NormalisedNetwork):
    """Non-negative encodings of tables, from raw features and one fixed normalisation stored with the weights.

    Args:
        features: raw features of a table.
        encoding: width of an encoding.
        hidden: width between.
    """

    def __init__(self, features: int, encoding: int, hidden: int) -> None:
        super().__init__(features)
        self.layers = nn.Sequential(nn.Linear(features, hidden), nn.ReLU(), nn.Linear(hidden, encoding))

    def forward(self, features: Tensor) -> Tensor:
        """(..., F) to (..., encoding)."""
        return F.softplus(self.layers(self.normalised(features).clamp(-5, 5)))


@public("shardgym.agents")
class PlacementPolicy(nn.Module):
    """Table encoder, sum over a device's tables, shared device scorer.

    Args:
        features: raw features of a table.
        encoding: width of what is summed.
        hidden: width of the encoder and the scorer.
    """

    def __init__(self, features: int, encoding: int = 32, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = TableEncoder(features, encoding, hidden)
        self.from_device = nn.Linear(encoding + DEVICE_INPUTS, hidden)
        self.from_table = nn.Linear(encoding, hidden, bias=False)
        self.scorer = nn.Parameter(torch.zeros(hidden))
        # The first policy is a soft "least full device with the table on it"; learning starts from there.
        self.sharpness = nn.Parameter(torch.tensor([5.0, 40.0]).log())

    def logits(self, sums: Tensor, table: Tensor, decision: Decision) -> Tensor:
        """Scores of the devices, `MASKED` where the table has no room.

        Args:
            sums: (..., D, encoding) summed encodings on each device.
            table: (..., encoding) of the table in hand.
            decision: what else is known.

        Returns:
            (..., D).
        """
        excess = decision.excess()
        return self.scores(sums, table, decision.device_inputs(excess), excess, decision.legal)

    def scores(self, sums: Tensor, table: Tensor, inputs: Tensor, excess: Tensor, legal: Tensor) -> Tensor:
        """As `logits`, from inputs (..., D, DEVICE_INPUTS) and excess (..., D, 2) computed before."""
        devices = self.from_device(torch.cat([torch.log1p(sums), inputs], dim=-1))  # (..., D, hidden)
        hidden = F.relu(devices + self.from_table(table)[..., None, :])
        # A sum over the last axis, not a matrix product: its rounding does not depend on a device's row.
        scores = (hidden * self.scorer).sum(dim=-1) - (excess * self.sharpness.exp()).sum(dim=-1)
        return scores.masked_fill(~legal, MASKED)
