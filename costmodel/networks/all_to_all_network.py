"""The network that predicts an all-to-all from how much each device sends."""

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.costmodel.networks.cost_network import PositiveLinear

VOLUMES = ("own", "largest", "total")
OUTPUT_BYTES = 4


class ExchangeNetwork(nn.Module):
    """Forward and backward all-to-all ms of each device; neither falls when any device sends more.

    NeuroShard (arXiv 2305.01868, section 4) predicts the same from all devices' dims and starts; summed up as the
    device's own volume, the largest and the total, one network serves any number of devices.

    Args:
        others: further inputs a device, on which costs may depend in any way; the log of the devices' number is one.
        hidden: width of both hidden layers.
    """

    mean: Tensor
    scale: Tensor
    devices: Tensor

    def __init__(self, others: int = 1, hidden: int = 32) -> None:
        super().__init__()
        self.register_buffer("mean", torch.zeros(len(VOLUMES) + others))
        self.register_buffer("scale", torch.ones(len(VOLUMES) + others))
        self.register_buffer("devices", torch.tensor([2, 4]))
        self.volumes_in = PositiveLinear(len(VOLUMES), hidden)
        self.others_in = nn.Sequential(nn.Linear(others, hidden), nn.SiLU(), nn.Linear(hidden, hidden))
        self.middle = PositiveLinear(2 * hidden, hidden)
        self.out = PositiveLinear(2 * hidden, 2)

    def set_normalisation(self, volumes: Tensor, others: Tensor) -> None:
        """Fix mean and scale once, from inputs (..., D, 3) and (..., D, others)."""
        inputs = torch.cat([volumes, others], dim=-1).flatten(0, -2)
        self.mean.copy_(inputs.mean(dim=0))
        spread = inputs.std(dim=0, correction=0)
        self.scale.copy_(torch.where(spread > 1e-6, spread, torch.ones_like(spread)))

    def from_others(self, others: Tensor) -> Tensor:
        """What the other inputs (..., others) add to the first hidden layer, (..., hidden)."""
        return self.others_in((others - self.mean[len(VOLUMES) :]) / self.scale[len(VOLUMES) :])

    def forward(self, volumes: Tensor, others: Tensor) -> Tensor:
        """Volumes (..., D, 3) log bytes, others (..., D, others), to (..., D, 2) ms."""
        seen = (volumes - self.mean[: len(VOLUMES)]) / self.scale[: len(VOLUMES)]
        hidden = _bent(self.volumes_in(seen) + self.from_others(others))
        return self.out(_bent(self.middle(hidden))).clamp(max=15.0).exp()


def _bent(x: Tensor) -> Tensor:
    """A rising bend that saturates and one that does not, side by side: together they bend up and down."""
    return torch.cat([torch.tanh(x), F.relu(x)], dim=-1)


def exchange_inputs(dims: NDArray[np.floating], batch_size: int | NDArray[np.integer]) -> tuple[Tensor, Tensor]:
    """What the network reads of summed dims (..., D): volumes (..., D, 3) in log bytes, others (..., D, 1)."""
    sent = torch.as_tensor(np.log1p(dims * np.asarray(batch_size)[..., None] * OUTPUT_BYTES), dtype=torch.float32)
    total = torch.logsumexp(sent, dim=-1, keepdim=True)
    largest = sent.amax(dim=-1, keepdim=True)
    volumes = torch.stack(torch.broadcast_tensors(sent, largest, total), dim=-1)
    return volumes, torch.full((*sent.shape, 1), float(np.log(sent.shape[-1])))


def train_exchange(
    volumes: Tensor,
    others: Tensor,
    targets: Tensor,
    epochs: int = 150,
    batch: int = 64,
    learning_rate: float = 1e-2,
    hidden: int = 32,
    seed: int = 0,
    progress: Callable[[int], None] = lambda epoch: None,
) -> ExchangeNetwork:
    """Train on all-to-alls: volumes (N, D, 3), others (N, D, O), targets (N, D, 2) ms, by the error of logarithms."""
    generator = torch.Generator().manual_seed(seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        network = ExchangeNetwork(others.shape[-1], hidden)
    network.set_normalisation(volumes, others)
    with torch.no_grad():
        network.out.bias.copy_(targets.log().flatten(0, 1).mean(dim=0) - network(volumes, others).log().mean())
    optimizer = torch.optim.AdamW(network.parameters(), learning_rate, weight_decay=1e-3)
    steps = -(-len(targets) // batch)
    schedule = torch.optim.lr_scheduler.OneCycleLR(optimizer, learning_rate, epochs=epochs, steps_per_epoch=steps)
    for epoch in range(epochs):
        for chosen in torch.randperm(len(targets), generator=generator).split(batch):
            predicted = network(volumes[chosen], others[chosen])
            optimizer.zero_grad()
            (predicted.log() - targets[chosen].log()).abs().mean().backward()
            optimizer.step()
            schedule.step()
        progress(epoch + 1)
    return network
