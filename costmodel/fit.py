"""Fitting the cost network to measured samples, and judging it on samples held out."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau
from torch import Tensor

from shardgym.costmodel.features import FEATURE_NAMES, table_features
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.network import CostNetwork
from shardgym.costmodel.placement import Task
from shardgym.costmodel.samples import Sample
from shardgym.costmodel.summed import SummedCostModel
from shardgym.embeddings.errors import InputError

FEWEST_SAMPLES = 20


@dataclass(frozen=True)
class FitOptions:
    """How the network is trained."""

    epochs: int = 120
    batch: int = 64
    learning_rate: float = 3e-3
    weight_decay: float = 1e-4
    held_out: float = 0.2
    seed: int = 0


@dataclass(frozen=True)
class PhaseError:
    """How well a phase is predicted: median absolute percentage error, and Kendall's rank correlation."""

    median_ape: float
    kendall_tau: float


@dataclass(frozen=True)
class Split:
    """Samples to train on and samples held out."""

    train: list[Sample]
    test: list[Sample]


def split_samples(samples: Sequence[Sample], held_out: float, seed: int) -> Split:
    """Shuffle by seed and hold a share out.

    Raises:
        InputError: for too few samples to fit anything.
    """
    if len(samples) < FEWEST_SAMPLES:
        raise InputError(f"fit: {len(samples)} samples are too few; measure at least {FEWEST_SAMPLES}")
    order = np.random.default_rng(seed).permutation(len(samples))
    test = max(1, round(held_out * len(samples)))
    return Split([samples[k] for k in order[test:]], [samples[k] for k in order[:test]])


def fit_network(
    train: Sequence[Sample], options: FitOptions, progress: Callable[[int], None] = lambda epoch: None
) -> LearnedCost:
    """Train a network on samples of one machine; the best epoch on a tenth of them is kept.

    The loss is the absolute error of the logarithm, so that a small and a large group count the same.
    """
    generator = torch.Generator().manual_seed(options.seed)
    features, present, targets = padded(train)
    torch.manual_seed(options.seed)
    network = CostNetwork(len(FEATURE_NAMES))
    network.set_normalisation(features[present > 0])
    optimizer = torch.optim.AdamW(network.parameters(), options.learning_rate, weight_decay=options.weight_decay)
    watch, learn = torch.randperm(len(train), generator=generator).split(
        [max(1, len(train) // 10), len(train) - max(1, len(train) // 10)]
    )
    schedule = torch.optim.lr_scheduler.OneCycleLR(
        optimizer, options.learning_rate, epochs=options.epochs, steps_per_epoch=-(-len(learn) // options.batch)
    )
    best, best_error = copy.deepcopy(network.state_dict()), float("inf")
    for epoch in range(options.epochs):
        for chosen in learn[torch.randperm(len(learn), generator=generator)].split(options.batch):
            optimizer.zero_grad()
            log_error(network, features[chosen], present[chosen], targets[chosen]).backward()
            optimizer.step()
            schedule.step()
        with torch.no_grad():
            error = float(log_error(network, features[watch], present[watch], targets[watch]))
        if error < best_error:
            best, best_error = copy.deepcopy(network.state_dict()), error
        progress(epoch + 1)
    network.load_state_dict(best)
    return LearnedCost(network, train[0].hardware, f"{len(train)} groups of {train[0].hardware}")


def log_error(network: CostNetwork, features: Tensor, present: Tensor, targets: Tensor) -> Tensor:
    """Mean absolute error of log milliseconds."""
    return (network(features, present).log() - targets.log()).abs().mean()


def padded(samples: Sequence[Sample]) -> tuple[Tensor, Tensor, Tensor]:
    """Samples as tensors: features (N, T, F), present (N, T), targets (N, 2) ms, T being the largest group."""
    groups = [table_features(sample.tables, sample.batch_size) for sample in samples]
    features = torch.zeros(len(groups), max(map(len, groups)), len(FEATURE_NAMES))
    present = torch.zeros(features.shape[:2])
    for n, group in enumerate(groups):
        features[n, : len(group)] = torch.from_numpy(group)
        present[n, : len(group)] = 1
    targets = torch.tensor([(sample.forward_ms, sample.backward_ms) for sample in samples])
    return features, present, targets


def predicted_phases(model: SummedCostModel, samples: Sequence[Sample]) -> NDArray[np.float64]:
    """Predicted forward and backward of each sample's group on one device, (N, 2) ms."""
    phases = []
    for sample in samples:
        task = Task(sample.tables, device_memory=(2**62,), batch_size=sample.batch_size)
        cost = model.costs(task, np.zeros((1, len(sample.tables)), dtype=int))
        phases.append((cost.phase("forward")[0, 0], cost.phase("backward")[0, 0]))
    return np.array(phases, dtype=np.float64)


def phase_errors(model: SummedCostModel, samples: Sequence[Sample]) -> dict[str, PhaseError]:
    """Errors of forward, backward and their sum (step) on samples."""
    predicted = predicted_phases(model, samples)
    measured = np.array([(sample.forward_ms, sample.backward_ms) for sample in samples])
    columns = {
        "forward": (predicted[:, 0], measured[:, 0]),
        "backward": (predicted[:, 1], measured[:, 1]),
        "step": (predicted.sum(axis=1), measured.sum(axis=1)),
    }
    return {
        name: PhaseError(float(np.median(np.abs(p - m) / m)), float(kendalltau(p, m).statistic))
        for name, (p, m) in columns.items()
    }
