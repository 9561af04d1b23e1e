"""The exchange: measured between real processes, fitted, and priced by its physical form."""

import math
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given, strategies as st

from shardgym.costmodel.exchange_fit import fit_exchange
from shardgym.costmodel.fit import FitOptions, fit_network
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.all_to_all import ExchangeDesign, Volumes, measure_exchanges
from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample, read_exchanges, write_exchanges
from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.costmodel.pricing.exchange import Direction, NoExchange, PhysicalExchange, sent_bytes
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.shipped import shipped_cost
from shardgym.problem.errors import InputError
from shardgym.problem.placements import Placement
from shardgym.problem.tables import Dedup, TableSpec
from shardgym.problem.tasks import Task
from shardgym.problem.topology import Topology
from tests.costmodel.cases import SMALL, made_up_samples

HARDWARE = Hardware("cpu", "made up", 1, 1, "torch", "torch 0")
PLAIN = PhysicalExchange(Direction(0.5, 0.1, 1e-7, 2e-7), Direction(0.25, 0.2, 2e-7, 1e-7))
EXCHANGES = {
    "plain": PLAIN,
    "shipped": shipped_cost().exchange,
    "roofline": RooflineCost().exchange,
    "none": NoExchange(),
}


def made_up(count, devices):
    """All-to-alls that the form can say exactly: 0.1 ms per peer + bytes of all / 1e7 + bytes of the largest / 2e7."""
    design = ExchangeDesign(devices, seed=devices)
    none = (0.0,) * devices
    samples = []
    for volumes in (design.volumes(k) for k in range(count)):
        sent = volumes.sent()
        ms = 0.1 * (devices - 1) + sum(sent) / 1e7 + max(sent) / 2e7
        times = tuple(ms * (1 if rank == 0 else 0.9) for rank in range(devices))
        backward = tuple(2 * each for each in times)
        samples.append(AllToAllSample(volumes.dims, volumes.batch_size, times, backward, none, none, HARDWARE))
    return samples


def volumes_of(sent):
    return np.array(sent, dtype=np.float64)[..., None]


def test_the_design_is_uneven_and_bounded():
    design = ExchangeDesign(3)
    drawn = [design.volumes(k) for k in range(60)]
    assert drawn[5] == design.volumes(5)
    assert all(v.batch_size % 3 == 0 and v.batch_size * sum(v.dims) <= 1.1 * design.most_numbers for v in drawn)
    uneven = [max(v.dims) / np.mean(v.dims) for v in drawn]
    assert (min(uneven) < 1.1, max(uneven) > 2) == (True, True)


@pytest.mark.slow
def test_two_processes_exchange_and_answer():
    asked = [Volumes((8, 64), 512).sent(), Volumes((2048, 2048), 8192).sent()]
    found = list(measure_exchanges(2, asked))
    assert [one.shape for one in found] == [(2, 2, 2)] * 2
    assert all((one[:, :, 0] > 0).all() for one in found)
    assert found[1][:, :, 0].max() > found[0][:, :, 0].max()  # a thousand times the volume


def test_the_fit_finds_the_law_behind_the_measurements_and_holds_beyond_them():
    fitted = fit_exchange(made_up(60, 2) + made_up(60, 3))
    for devices in (2, 3, 4, 8):
        for sample in made_up(20, devices):
            expected = max(sample.forward_ms)
            found = fitted.ms(volumes_of(sample.sent()))
            np.testing.assert_allclose(found, [expected, 2 * expected], rtol=1e-3)


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
@given(
    sent=st.lists(st.integers(0, 10**9), min_size=1, max_size=20),
    more=st.integers(0, 10**9),
    which=st.integers(0, 19),
    per_host=st.sampled_from([None, 1, 3, 8, 64]),
)
def test_a_collective_never_costs_less_when_a_device_sends_more(exchange, sent, more, which, per_host):
    topology = None if per_host is None else Topology(per_host)
    grown = list(sent)
    grown[which % len(sent)] += more
    before, after = (exchange.ms(volumes_of(each), topology) for each in (sent, grown))
    assert (before >= 0).all()
    assert (after >= before).all()
    if len(sent) == 1 or not any(sent):
        assert before.tolist() == [0, 0]


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
def test_many_placements_cost_what_each_costs_alone(exchange):
    rng = np.random.default_rng(0)
    sent = volumes_of(rng.integers(0, 10**8, size=(40, 6)))
    together = exchange.ms(sent, Topology(4))
    for row, expected in zip(sent, together):
        assert (exchange.ms(row, Topology(4)) == expected).all()


@pytest.mark.parametrize("exchange", EXCHANGES.values(), ids=EXCHANGES)
@pytest.mark.parametrize("topology", [None, Topology(2), Topology(3, within_bandwidth=1e9)])
def test_the_floor_is_below_every_placement(exchange, topology):
    rng = np.random.default_rng(1)
    for _ in range(50):
        tables, devices = rng.integers(1, 8), int(rng.integers(1, 6))
        each = rng.integers(0, 10**8, size=(tables, 1)).astype(float)
        floor = exchange.floor(each, devices, topology)
        for _ in range(10):
            placed = np.zeros((devices, 1))
            np.add.at(placed, rng.integers(devices, size=tables), each)
            assert (exchange.ms(placed, topology) >= floor * (1 - 1e-6)).all()


def test_the_form_by_hand():
    sent = volumes_of([4e6, 1e6, 0, 3e6])
    np.testing.assert_allclose(PLAIN.ms(sent)[0], 0.5 + 0.1 * 3 + 8e6 * 1e-7 + 4e6 * 2e-7, rtol=1e-6)
    # Two hosts of two: the fuller one sends 5 MB, and the largest device's 4 MB cross at 1 GB/s.
    two = Topology(2, between_bandwidth=1e9)
    np.testing.assert_allclose(PLAIN.ms(sent, two)[0], 0.5 + 0.3 + 5e6 * 1e-7 + 4e6 * 2e-7 + 4.0, rtol=1e-6)
    fast = Topology(4, within_bandwidth=1e10)
    np.testing.assert_allclose(PLAIN.ms(sent, fast)[1], 0.25 + 0.2 * 3 + 0.4, rtol=1e-6)


@pytest.mark.parametrize("exchange", [PLAIN, shipped_cost().exchange], ids=["plain", "shipped"])
def test_at_equal_bytes_per_device_only_the_latency_grows_with_the_hosts(exchange):
    """The part that bytes take is the same on 16 and on 512 devices in hosts of 8."""
    hosts = Topology(8)
    parts = []
    for devices in (16, 512):
        full, light = (exchange.ms(volumes_of([each] * devices), hosts) for each in (16e6, 1.0))
        parts.append(full - light)
        peers = np.array([exchange.forward.peer, exchange.backward.peer]) * (devices - 1)
        start = np.array([exchange.forward.start, exchange.backward.start])
        np.testing.assert_allclose(light, start + peers, rtol=1e-4)
    np.testing.assert_allclose(parts[0], parts[1], rtol=1e-3)


def test_what_is_sent_is_unique_rows_and_the_shards_own_columns():
    table = TableSpec("t", 1000, 64, 5.0)
    assert sent_bytes(table, 4096) == 4096 * 64 * 4
    assert sent_bytes(replace(table, dtype="fp16"), 4096) == 4096 * 64 * 4  # outputs are fp32
    assert [sent_bytes(shard, 4096) for shard in table.column_shards(4)] == [4096 * 16 * 4] * 4
    repeated = replace(table, dedup=Dedup(16, 1.0))
    assert sent_bytes(repeated, 4096) == 256 * 64 * 4


@pytest.mark.parametrize("model", [shipped_cost(), RooflineCost()], ids=["shipped", "roofline"])
def test_deduplication_makes_the_exchange_cheaper(model):
    tables = tuple(TableSpec(f"t{k}", 100_000, 64, 20.0) for k in range(8))
    repeated = tuple(replace(t, dedup=Dedup(16, 1.0)) for t in tables)
    placement = Placement.of(k % 4 for k in range(8))
    plain, dedup = (
        model.cost(Task(each, (2**40,) * 4, 16384), placement).phase("forward_comm")[0] for each in (tables, repeated)
    )
    assert dedup < plain
    assert dedup - _latency(model, 4) < 0.2 * (plain - _latency(model, 4))


def _latency(model, devices):
    return float(model.exchange.ms(volumes_of([1.0] * devices))[0])


def test_a_model_with_an_exchange_fills_the_communication_phases(tmp_path):
    exchange = fit_exchange(made_up(60, 2) + made_up(60, 4))
    fitted = fit_network(made_up_samples(40), FitOptions(epochs=1))
    model = LearnedCost(fitted.networks, fitted.hardware, fitted.measured_on, fitted.ranges, exchange)
    model.save(tmp_path / "model.pt")
    task = Task(SMALL, (2**40,) * 3, 64)
    placement = Placement.of(k % 2 for k in range(len(SMALL)))
    loaded = LearnedCost.load(tmp_path / "model.pt")
    assert loaded.exchange == exchange
    cost = loaded.cost(task, placement)
    # A device that sends nothing computes nothing, and waits for the collectives like every other.
    assert cost.phases[2, [0, 3]].tolist() == [0, 0]
    assert (cost.phase("forward_comm") == cost.phase("forward_comm")[0]).all()
    assert cost.phase("forward_comm")[0] > 0
    assert (fitted.cost(task, placement).phase("forward_comm") == 0).all()
    with pytest.warns(OutOfRangeWarning, match="9 devices are outside the 2 to 4"):
        model.table_states(Task(SMALL, (2**40,) * 9, 64))
    with pytest.warns(OutOfRangeWarning, match="4 devices on 2 hosts"):
        model.table_states(Task(SMALL, (2**40,) * 4, 64, topology=Topology(2)))
    alone = model.cost(Task(SMALL, (2**40,), 64), Placement((0,) * len(SMALL)))
    assert alone.phase("backward_comm").tolist() == [0]


def test_samples_round_trip_and_bad_times_are_refused(tmp_path):
    samples = made_up(3, 2)
    write_exchanges(tmp_path / "x.parquet", samples)
    assert read_exchanges(tmp_path / "x.parquet") == samples
    write_exchanges(tmp_path / "x.parquet", [samples[0], replace(samples[1], forward_ms=(1.0, math.nan))])
    with pytest.raises(InputError, match="row 1 has a time that is not positive"):
        read_exchanges(tmp_path / "x.parquet")
