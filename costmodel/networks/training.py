"""Training a cost network on groups of tables and their measured phases, whatever file they came from."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from shardgym.costmodel.networks.cost_network import WORK, CostNetwork, work
from shardgym.costmodel.pricing.additive import fit_coefficients
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec


@public("shardgym.costmodel")
@dataclass(frozen=True)
class FitOptions:
    """How the networks are trained; `members` of them are fitted, and their mean is the model."""

    members: int = 1
    epochs: int = 150
    batch: int = 64
    learning_rate: float = 1e-2
    weight_decay: float = 1e-3
    held_out: float = 0.1
    seed: int = 0


@dataclass(frozen=True)
class Packed:
    """Groups of tables as flat tensors.

    Args:
        features: (T, F) raw features, group by group.
        sizes: (G,) int64, tables of each group.
        targets: (G, phases) measured ms.
    """

    features: Tensor
    sizes: Tensor
    targets: Tensor

    def __len__(self) -> int:
        return len(self.sizes)

    def take(self, chosen: Tensor) -> "Packed":
        """The groups of the given numbers (n,), in their order."""
        sizes = self.sizes[chosen]
        starts = (self.sizes.cumsum(0) - self.sizes)[chosen]
        rows = torch.arange(int(sizes.sum())) + torch.repeat_interleave(starts - sizes.cumsum(0) + sizes, sizes)
        return Packed(self.features[rows], sizes, self.targets[chosen])

    def group_of(self) -> Tensor:
        """(T,) the group of each table."""
        return torch.repeat_interleave(torch.arange(len(self)), self.sizes)


def packed(groups: Sequence[tuple[Sequence[TableSpec], int]], targets: Tensor) -> Packed:
    """Groups, as (tables, batch size), with their targets (G, phases) ms."""
    features = [torch.from_numpy(table_features(tables, batch_size)) for tables, batch_size in groups]
    return Packed(torch.cat(features), torch.tensor([len(part) for part in features]), targets.float())


def train(data: Packed, options: FitOptions, progress: Callable[[int], None] = lambda epoch: None) -> CostNetwork:
    """Train one network; the best epoch on a tenth of the groups is kept.

    The loss is the absolute error of the logarithm, so that a small and a large group count the same.
    """
    generator = torch.Generator().manual_seed(options.seed)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(options.seed)
        network = CostNetwork(len(FEATURE_NAMES), phases=data.targets.shape[1])
    network.set_normalisation(data.features)
    network.set_additive(additive_part(data))
    optimizer = torch.optim.AdamW(network.parameters(), options.learning_rate, weight_decay=options.weight_decay)
    held_out = max(1, len(data) // 10)
    order = torch.randperm(len(data), generator=generator)
    validation, training = data.take(order[:held_out]), order[held_out:]
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, epochs=options.epochs, steps_per_epoch=-(-len(training) // options.batch)
    )
    best, best_error = copy.deepcopy(network.state_dict()), float("inf")
    for epoch in range(options.epochs):
        for chosen in training[torch.randperm(len(training), generator=generator)].split(options.batch):
            optimizer.zero_grad()
            log_error(network, data.take(chosen)).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            error = float(log_error(network, validation))
        if error < best_error:
            best, best_error = copy.deepcopy(network.state_dict()), error
        progress(epoch + 1)
    network.load_state_dict(best)
    return network


def additive_part(data: Packed) -> Tensor:
    """Coefficients (phases, 4) of the additive model that explains the groups best."""
    sums = torch.zeros(len(data), len(WORK)).index_add_(0, data.group_of(), work(data.features))
    coefficients, _ = fit_coefficients(sums.double().numpy(), data.targets.double().numpy())
    return torch.from_numpy(coefficients).float()


def log_error(network: CostNetwork, data: Packed) -> Tensor:
    """Mean absolute error of log milliseconds, a scalar ()."""
    predicted = network(data.features, data.group_of(), len(data))
    return (predicted.log() - data.targets.log()).abs().mean()
