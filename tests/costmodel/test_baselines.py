"""DreamShard's network as a baseline, repeatability of measurements, and designs of formats."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import torch

from shardgym.costmodel.fit import phase_errors, split_samples
from shardgym.costmodel.measuring.format_design import FormatDesign
from shardgym.costmodel.measuring.hardware import this_hardware
from shardgym.costmodel.measuring.meter import Meter, Timing
from shardgym.costmodel.measuring.repeatability import disagreement, measure_again
from shardgym.costmodel.networks.dreamshard_network import (
    DreamShardCost,
    DreamShardNetwork,
    features_with_batch,
    published_features,
)
from shardgym.costmodel.pricing.ranges import table_format
from shardgym.problem.errors import InputError
from shardgym.problem.tasks import Task
from tests.costmodel.cases import SMALL, made_up_samples


def test_dreamshards_network_has_the_published_sizes():
    assert len(published_features(SMALL[0], 64)) == 21
    network = DreamShardNetwork(21)
    shapes = [tuple(p.shape) for p in network.parameters() if p.ndim == 2]
    assert shapes == [(128, 21), (32, 128), *[(64, 32), (1, 64)] * 3]
    states = torch.randn(5, 3, 32)
    assert torch.equal(network.overall(states), network.overall(states[:, [2, 0, 1]]))


def test_dreamshards_network_learns_at_one_batch_size():
    split = split_samples(made_up_samples(300), 0.2, seed=0)
    before = phase_errors(DreamShardCost.fit(split.train, 1), split.test)["step"]
    model = DreamShardCost.fit(split.train, 1500, features_with_batch)
    after = phase_errors(model, split.test)["step"]
    assert after.kendall_tau > max(0.8, before.kendall_tau)
    task = Task(SMALL, (2**40,) * 2, 64)
    costs = model.costs(task, np.zeros((1, len(SMALL)), dtype=int))
    assert costs.phases[0, 1].tolist() == [0, 0, 0, 0]
    summed = model.table_states(task).sum(axis=0)
    assert model.overall(np.stack([summed, 0 * summed])) > 0


def test_disagreement_is_what_was_put_in_and_smoothing_removes_drift():
    samples = [replace(s, reference_ms=1.0) for s in made_up_samples(60)]
    first = np.array([(s.forward_ms, s.backward_ms, s.reference_ms) for s in samples])
    slower = first * 1.2
    assert disagreement(samples, slower).raw == pytest.approx((0.2 / 1.1, 0.2 / 1.1))
    assert disagreement(samples, slower).smoothed == pytest.approx((0, 0), abs=1e-9)
    noisy = first * np.array([1, 1, 0]) + np.random.default_rng(0).lognormal(0, 0.3, (60, 1)) * np.array([0, 0, 1])
    found = disagreement(samples, noisy)
    assert found.own_reference[0] > 0.1  # a noisy reference adds its own noise
    assert found.smoothed[0] < 0.5 * found.own_reference[0]


def test_groups_are_measured_again_on_the_same_machine_only():
    meter = Meter(timing=Timing(warm_up=0, repeats=2, fewest=2, batches=1))
    here = [replace(s, hardware=this_hardware()) for s in made_up_samples(3)]
    again = measure_again(here, meter)
    assert again.shape == (3, 3)
    assert (again > 0).all()
    with pytest.raises(InputError, match="were measured on made up"):
        measure_again(made_up_samples(2), meter)


def test_the_format_design_has_every_format_and_measures():
    design = FormatDesign()
    formats = Counter(table_format(t) for k in range(60) for t in design.group(k))
    assert {"fp32", "fp16", "tt", "tt+cache", "int8", "fp32+dedup"} <= set(formats)
    assert design.group(7) == design.group(7)
    meter = Meter(timing=Timing(warm_up=1, repeats=2, fewest=2, batches=1))
    small = [k for k in range(60) if sum(t.bytes() for t in design.group(k)) < 2e7][:4]
    for k in small:
        latency = meter.measure(design.group(k), 64)
        assert min(latency.forward_ms, latency.backward_ms) > 0
