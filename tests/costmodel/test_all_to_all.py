"""All-to-alls: measured between real processes, and predicted."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from shardgym.costmodel.fit import FitOptions, fit_exchange, fit_network
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.all_to_all import ExchangeDesign, Volumes, measure_exchanges
from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample, read_exchanges, write_exchanges
from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.costmodel.networks.all_to_all_network import ExchangeNetwork, exchange_inputs
from shardgym.costmodel.networks.numpy_heads import ExchangeHead
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning
from shardgym.problem.errors import InputError
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task
from tests.costmodel.cases import SMALL, made_up_samples

HARDWARE = Hardware("cpu", "made up", 1, 1, "torch", "torch 0")


def made_up(count, devices):
    """All-to-alls that cost a latency and the larger of what is sent and received."""
    design = ExchangeDesign(devices, seed=devices)
    samples = []
    for volumes in (design.volumes(k) for k in range(count)):
        sent = np.array(volumes.dims) * volumes.batch_size * 4
        ms = 0.2 + np.maximum(sent, (sent.sum() - sent) / devices) / 2e6
        none = (0.0,) * devices
        samples.append(
            AllToAllSample(volumes.dims, volumes.batch_size, tuple(ms), tuple(1.5 * ms), none, none, HARDWARE)
        )
    return samples


def test_the_design_is_uneven_and_bounded():
    design = ExchangeDesign(3)
    drawn = [design.volumes(k) for k in range(60)]
    assert drawn[5] == design.volumes(5)
    assert all(v.batch_size % 3 == 0 and v.batch_size * sum(v.dims) <= 1.1 * design.most_numbers for v in drawn)
    uneven = [max(v.dims) / np.mean(v.dims) for v in drawn]
    assert (min(uneven) < 1.1, max(uneven) > 2) == (True, True)


@pytest.mark.slow
def test_two_processes_exchange_and_answer():
    found = list(measure_exchanges(2, [Volumes((8, 64), 512), Volumes((2048, 2048), 8192)]))
    assert [one.shape for one in found] == [(2, 2, 2)] * 2
    assert all((one[:, :, 0] > 0).all() for one in found)
    assert found[1][:, :, 0].max() > found[0][:, :, 0].max()  # a thousand times the volume


@pytest.fixture(scope="module")
def network():
    return fit_exchange(made_up(150, 2) + made_up(150, 4), epochs=150)


def test_it_learns_what_an_exchange_costs(network):
    for devices in (2, 4):
        errors = []
        for sample in made_up(200, devices)[150:]:
            with torch.no_grad():
                found = network(*exchange_inputs(np.array(sample.dims, float), np.array(sample.batch_size))).numpy()
            errors += np.abs(found[:, 0] / np.array(sample.forward_ms) - 1).tolist()
        assert np.median(errors) < 0.08


def test_sending_more_never_costs_less_and_numpy_agrees(network):
    rng = np.random.default_rng(0)
    dims = rng.integers(4, 2000, size=(50, 4)).astype(np.float32)
    more = dims + rng.integers(0, 500, size=dims.shape)
    head = ExchangeHead(network)
    assert (head(more, 4096) >= head(dims, 4096)).all()
    with torch.no_grad():
        expected = network(*exchange_inputs(dims, np.full(50, 4096))).numpy()
    np.testing.assert_allclose(head(dims, 4096), expected, rtol=1e-3)


def test_a_model_with_an_exchange_fills_the_communication_phases(network, tmp_path):
    fitted = fit_network(made_up_samples(40), FitOptions(epochs=1))
    model = LearnedCost(fitted.networks, fitted.hardware, fitted.measured_on, fitted.ranges, network)
    model.save(tmp_path / "model.pt")
    task = Task(SMALL, (2**40,) * 3, 64)
    placement = Placement.of(k % 2 for k in range(len(SMALL)))
    cost = LearnedCost.load(tmp_path / "model.pt").cost(task, placement)
    assert (cost.phase("forward_comm")[:2] > 0).all()
    assert cost.phases[2].tolist() == [0, 0, 0, 0]
    assert (fitted.cost(task, placement).phase("forward_comm") == 0).all()
    with pytest.warns(OutOfRangeWarning, match="9 devices are outside the 2 to 4"):
        model.table_states(Task(SMALL, (2**40,) * 9, 64))
    alone = model.cost(Task(SMALL, (2**40,), 64), Placement((0,) * len(SMALL)))
    assert alone.phase("backward_comm").tolist() == [0]


def test_samples_round_trip_and_bad_times_are_refused(tmp_path):
    samples = made_up(3, 2)
    write_exchanges(tmp_path / "x.parquet", samples)
    assert read_exchanges(tmp_path / "x.parquet") == samples
    write_exchanges(tmp_path / "x.parquet", [samples[0], replace(samples[1], forward_ms=(1.0, math.nan))])
    with pytest.raises(InputError, match="row 1 has a time that is not positive"):
        read_exchanges(tmp_path / "x.parquet")


def test_an_unfitted_network_is_monotone_too():
    network = ExchangeNetwork()
    dims = np.array([[8.0, 8.0], [8.0, 64.0]])
    with torch.no_grad():
        found = network(*exchange_inputs(dims, np.full(2, 512))).numpy()
    assert (found[1] >= found[0]).all()
