"""Fitting cost networks to measured samples, and judging them on samples held out."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray
from scipy.stats import kendalltau

from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.samples import GroupSample
from shardgym.costmodel.networks.training import FitOptions, packed, train
from shardgym.costmodel.pricing.additive import AdditiveCost, fit_coefficients, work
from shardgym.costmodel.pricing.ranges import Ranges
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.costmodel.splits import Split, split_by_tables, split_samples
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

__all__ = ["FitOptions", "PhaseError", "Split", "fit_network", "phase_errors", "split_by_tables", "split_samples"]


@public("shardgym.costmodel")
@dataclass(frozen=True)
class PhaseError:
    """How well a phase is predicted: median absolute percentage error, and Kendall's rank correlation."""

    median_ape: float
    kendall_tau: float


def fit_network(
    train_on: Sequence[GroupSample],
    options: FitOptions = FitOptions(),
    progress: Callable[[int], None] = lambda epoch: None,
) -> LearnedCost:
    """Train `options.members` networks on samples of one machine; they differ in seed and validation groups."""
    groups = [(sample.tables, sample.batch_size) for sample in train_on]
    targets = torch.tensor([(sample.forward_ms, sample.backward_ms) for sample in train_on])
    data = packed(groups, targets)
    networks = []
    for member in range(options.members):

        def report(epoch: int, done: int = member * options.epochs) -> None:
            progress(done + epoch)

        networks.append(train(data, replace(options, seed=options.seed + member), report))
    hardware = train_on[0].hardware
    return LearnedCost(networks, hardware, f"{len(train_on)} groups of {hardware}", Ranges.over(groups))


def fit_additive(samples: Sequence[GroupSample]) -> AdditiveCost:
    """Fit the additive baseline, weighting each sample by its inverse cost so that relative errors count."""
    sums = np.array([work(sample.tables, sample.batch_size).sum(axis=0) for sample in samples])
    return AdditiveCost(*fit_coefficients(sums, np.array([(s.forward_ms, s.backward_ms) for s in samples])))


def predicted_phases(model: SummedCostModel, samples: Sequence[GroupSample]) -> NDArray[np.float64]:
    """Predicted forward and backward of each sample's group on one device, (N, 2) ms."""
    phases = []
    for sample in samples:
        task = Task(sample.tables, device_memory=(2**62,), batch_size=sample.batch_size)
        states = model.table_states(task).sum(axis=0, dtype=np.float64)
        phases.append(model.device_ms(states, task))
    return np.array(phases, dtype=np.float64)


def phase_errors(model: SummedCostModel, samples: Sequence[GroupSample]) -> dict[str, PhaseError]:
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
