"""The analytic cost model: closed forms, and the properties that bounds stand on."""

from dataclasses import replace

import numpy as np
import pytest

from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.pricing.roofline_machines import A100, CPU_CORE, MACHINES
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.costs import COMPUTE, FORWARD, FORWARD_COMM
from shardgym.problem.placements import Placement
from shardgym.problem.tables import TableSpec, TensorTrainFormat
from shardgym.problem.tasks import Task

TABLES = dlrm_like(30, seed=5)


def task(batch_size=4096, devices=3, tables=TABLES):
    return Task(tuple(tables), (2**50,) * devices, batch_size)


def test_a_memory_bound_table_costs_its_bytes_over_the_bandwidth():
    table = TableSpec("t", rows=10**8, dim=128, pooling=10.0)  # every id once: nothing is repeated
    lookups = 65536 * 10
    moved = lookups * (128 * 4 + 8) + 65536 * 128 * 4
    expected = 1e3 * (moved / 2039e9 + A100.launch + A100.table_overhead)
    cost = RooflineCost(A100).cost(task(65536, 1, [table]), Placement((0,)))
    assert cost.phases[0, FORWARD] == pytest.approx(expected, rel=1e-4)
    assert cost.phases[0, FORWARD_COMM] == 0  # one device exchanges nothing


def test_an_exchange_takes_as_long_as_the_device_that_sends_most():
    tables = [TableSpec("a", 100, 64), TableSpec("b", 100, 16)]
    costs = RooflineCost(A100).cost(task(4096, 2, tables), Placement((0, 1))).phase("forward_comm")
    expected = 1e3 * (A100.link_latency + A100.peer_latency + 4096 * 64 * 4 / A100.link_bandwidth)
    assert costs == pytest.approx([expected, expected], rel=1e-5)


@pytest.mark.parametrize("machine", MACHINES.values(), ids=list(MACHINES))
@pytest.mark.parametrize("batch_size", [64, 65536])
def test_costs_grow_with_tables_and_stay_above_the_floors(machine, batch_size):
    model, made = RooflineCost(machine), task(batch_size)
    rng = np.random.default_rng(0)
    device_of = rng.integers(-1, 3, size=(200, len(TABLES)))
    costs = model.costs(made, device_of).phases
    unplaced = device_of == -1
    more = np.where(unplaced & (rng.random(device_of.shape) < 0.3), rng.integers(0, 3, size=device_of.shape), device_of)
    assert (model.costs(made, more).phases >= costs * (1 - 1e-6)).all()
    on_device = (device_of[:, None, :] == np.arange(3)[:, None]).astype(float)  # (N, D, T)
    assert (on_device @ model.table_floors(made) <= costs[..., COMPUTE] * (1 + 1e-5)).all()


def test_a_device_costs_the_same_asked_for_alone_or_among_others():
    model, made = RooflineCost(A100), task(4096)
    device_of = np.random.default_rng(0).integers(0, 3, size=len(TABLES))
    sums = (device_of[None, :] == np.arange(3)[:, None]).astype(np.float32) @ model.table_states(made)
    together = model.device_ms(sums, made)
    for device in range(3):
        assert (model.device_ms(sums[device], made) == together[device]).all()


def test_fusion_is_less_than_additive_for_few_bags_and_more_when_caches_overflow():
    few = task(64, 1)
    model = RooflineCost(A100)
    together = model.costs(few, np.zeros((1, len(TABLES)), dtype=int)).phases[0, 0, FORWARD]
    assert together < 0.7 * model.device_ms(model.table_states(few), few)[:, 0].sum()
    hot = tuple(0.0 if k != 6 else 1.0 for k in range(17))
    many = [TableSpec(f"t{k}", 10**6, 128, 50.0, hot) for k in range(8)]  # each fits the cache, all do not
    crowded = task(65536, 1, many)
    core = RooflineCost(CPU_CORE)
    alone = core.single_table_costs(crowded)
    assert core.costs(crowded, np.zeros((1, 8), dtype=int)).phases.sum() > 1.2 * alone.sum()


def test_a_tensor_train_pays_in_operations_what_it_saves_in_bytes():
    dense = TableSpec("t", 10**6, 64, 10.0)
    compressed = replace(dense, tensor_train=TensorTrainFormat((64, 64), (100, 100, 100), (4, 4, 4)))
    model = RooflineCost(CPU_CORE)
    costs = [
        model.costs(task(4096, 1, [t]), np.zeros((1, 1), dtype=int)).phases[0, 0, FORWARD] for t in (dense, compressed)
    ]
    assert costs[1] > 2 * costs[0]


def test_it_says_that_it_is_analytic():
    assert "no measurement" in RooflineCost(A100).measured_on
    assert all("(analytic)" in machine.name for machine in MACHINES.values())
