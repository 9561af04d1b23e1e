"""What makes measurements and held-out errors trustworthy: the design, drift, splits, ranges, the allocator."""

import warnings
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import qmc

from shardgym.costmodel.fit import FitOptions, fit_network
from shardgym.costmodel.measuring.drift import drift_factors, without_drift
from shardgym.costmodel.measuring.meter import Meter, Timing
from shardgym.costmodel.measuring.wide_design import AXES, WideDesign
from shardgym.costmodel.pricing.features import unique_rows
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning, table_format
from shardgym.costmodel.splits import split_by_tables
from shardgym.dataio.index_draw import draw_ids
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.errors import InputError
from shardgym.problem.tables import Dedup
from shardgym.problem.tasks import Task
from tests.costmodel.cases import SMALL, made_up_samples


def test_any_prefix_of_the_wide_design_covers_its_space():
    design = WideDesign(seed=3)
    groups = [(design.group(k), design.batch_size_of(k)) for k in range(150)]
    assert groups[7] == (design.group(7), design.batch_size_of(7))
    sizes = [len(tables) for tables, _ in groups]
    batches = [bags for _, bags in groups]
    assert (min(sizes), max(sizes) > 45) == (1, True)
    assert (min(batches) < 600, max(batches) > 40_000) == (True, True)
    assert all(sum(t.bytes() for t in tables) <= design.max_bytes for tables, _ in groups)
    assert len({tables[0].name.split("_")[0] for tables, _ in groups}) > 40
    assert {table_format(t) for tables, _ in groups for t in tables} == {"fp32", "fp16"}
    places = np.array([list(design._point(k).values()) for k in range(150)])
    random = np.random.default_rng(0).random((150, len(AXES)))
    assert qmc.discrepancy(places) < 0.6 * qmc.discrepancy(random)


def test_drift_is_found_under_the_references_noise():
    rng = np.random.default_rng(0)
    drift = 1 + 0.2 * np.sin(np.linspace(0, 6, 400))
    reference = drift * rng.lognormal(0, 0.1, 400)
    found = drift_factors(reference)
    truth = drift / np.median(drift)
    assert np.abs(found / truth - 1).mean() < 0.3 * np.abs(reference / np.median(reference) / truth - 1).mean()
    samples = [replace(s, reference_ms=r) for s, r in zip(made_up_samples(400), reference)]
    corrected = without_drift(samples)
    assert corrected[3].forward_ms == pytest.approx(samples[3].forward_ms / found[3])


def test_held_out_groups_hold_no_table_that_was_trained_on():
    design = WideDesign(pools=10, pool_size=8, max_tables=8)
    template = made_up_samples(1)[0]
    samples = [replace(template, index=k, tables=design.group(k)) for k in range(120)]
    split = split_by_tables(samples, 0.2, seed=1)
    names = [{t.name for s in part for t in s.tables} for part in (split.train, split.test)]
    assert not names[0] & names[1]
    assert len(split.train) + len(split.test) == 120
    assert 0.15 * 120 < len(split.test) < 0.4 * 120
    with pytest.raises(InputError, match="no table can be held out"):
        split_by_tables(made_up_samples(60), 0.2, seed=0)


def test_costs_outside_the_measured_ranges_are_flagged():
    model = fit_network(made_up_samples(40), FitOptions(epochs=1))
    wide = replace(SMALL[0], name="wide", dim=4096)
    with pytest.warns(OutOfRangeWarning, match=r"dim 4096 of table 'wide' \(1 of 13 tables\) is outside"):
        model.table_states(Task((*SMALL, wide), (2**40,), 64))
    repeating = tuple(replace(t, dedup=Dedup(16, 0.9)) for t in SMALL)
    with pytest.warns(OutOfRangeWarning, match=r"format fp32\+dedup was not measured"):
        model.table_states(Task(repeating, (2**40,), 64))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        inside = Task(made_up_samples(1)[0].tables, (2**40,), 64)
        model.table_states(inside)


def test_a_noisy_group_is_measured_again_and_marked():
    steady = Meter(timing=Timing(warm_up=1, repeats=3, batches=1, noisy_spread=1e9))
    never_content = Meter(timing=Timing(warm_up=1, repeats=3, batches=1, noisy_spread=-1.0))
    assert steady.measure(SMALL[:2], 32).attempts == 1
    assert never_content.measure(SMALL[:2], 32).attempts == 2


def test_slow_groups_are_timed_less_often():
    hurried = Meter(timing=Timing(warm_up=0, repeats=50, batches=1, fewest=3, seconds=0.0, noisy_spread=1e9))
    assert hurried.measure(SMALL[:1], 32).repeats == 3


@pytest.mark.parametrize("batch_size", [512, 8192, 65536])
def test_expected_unique_rows_are_those_of_drawn_batches(batch_size):
    rng = np.random.default_rng(1)
    for table in dlrm_like(8, seed=9):
        lookups = int(batch_size * table.pooling)
        if lookups:
            drawn = len(np.unique(draw_ids(table, lookups, rng)))
            assert unique_rows(table, lookups) == pytest.approx(drawn, rel=0.05, abs=3)
