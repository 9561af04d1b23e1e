"""Measuring, the folder of samples, and the fitted models."""

import math
import os
from dataclasses import replace

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

from shardgym.costmodel.fit import FitOptions, fit_additive, fit_network, phase_errors, split_samples
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.hardware import this_hardware
from shardgym.costmodel.measuring.meter import Meter, Timing, measure_design
from shardgym.costmodel.measuring.samples import SampleFolder, one_hardware
from shardgym.costmodel.networks.training import packed
from shardgym.costmodel.shipped import CARD, GROUPS, shipped_cost
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.errors import InputError
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.tasks import Task
from tests.costmodel.cases import SMALL, design, made_up_samples

QUICK = Timing(warm_up=1, repeats=2, batches=1)


def test_groups_depend_on_seed_and_index_alone_and_fit():
    for index in range(30):
        group = design().group(index)
        assert group == design().group(index)
        assert 1 <= len(group) <= 6
        assert sum(t.bytes() for t in group) <= 2**24
    assert any(design().group(k) != design(seed=1).group(k) for k in range(5))


def test_measuring_resumes_where_it_stopped(tmp_path):
    folder = SampleFolder(tmp_path)
    first = list(measure_design(design(), folder, Meter(timing=QUICK), seconds=60, groups=3))
    second = list(measure_design(design(), folder, Meter(timing=QUICK), seconds=60, groups=5))
    assert [s.index for s in first + second] == [0, 1, 2, 3, 4]
    assert folder.read() == first + second
    assert len(list(tmp_path.iterdir())) == 1
    assert all(s.forward_ms > 0 and s.backward_ms > 0 for s in folder.read())


def test_another_design_is_refused_in_the_same_folder(tmp_path):
    list(measure_design(design(), SampleFolder(tmp_path), Meter(timing=QUICK), seconds=60, groups=2))
    with pytest.raises(InputError, match="another design"):
        list(measure_design(design(seed=7), SampleFolder(tmp_path), Meter(timing=QUICK), seconds=60, groups=4))


def test_a_crash_while_compacting_loses_and_doubles_nothing(tmp_path):
    samples = made_up_samples(4)
    folder = SampleFolder(tmp_path)
    for sample in samples:
        folder.append([sample])
    folder.append(samples)  # merged, but the single parts not yet removed
    assert folder.read() == samples
    folder.compact()
    assert folder.read() == samples
    assert len(list(tmp_path.iterdir())) == 1


@pytest.mark.parametrize("name", ["forward_ms", "backward_spread", "reference_ms"])
@pytest.mark.parametrize("value", [math.nan, -1.0])
def test_an_impossible_value_names_part_and_column(tmp_path, name, value):
    SampleFolder(tmp_path).append([replace(made_up_samples(1)[0], **{name: value})])
    with pytest.raises(InputError, match=rf"part-.*{name}"):
        SampleFolder(tmp_path).read()


def test_damaged_folders_say_what_to_do(tmp_path):
    folder = SampleFolder(tmp_path)
    with pytest.raises(InputError, match="holds no samples; run `shardgym measure"):
        folder.read()
    folder.append(made_up_samples(3))
    part = next(tmp_path.iterdir())
    content = part.read_bytes()
    part.write_bytes(content[: len(content) // 2])
    with pytest.raises(InputError, match=rf"{part.name}.*not a whole Parquet file; delete it"):
        folder.read()
    pq.write_table(pa.table({"index": [1]}), part)
    with pytest.raises(InputError, match="column 'tables' is missing"):
        folder.read()


def test_mixed_hardware_is_refused(tmp_path):
    samples = made_up_samples(2)
    other = replace(samples[1], hardware=replace(samples[1].hardware, threads=2))
    assert one_hardware(samples, tmp_path) == samples[0].hardware
    with pytest.raises(InputError, match="own folder"):
        one_hardware([samples[0], other], tmp_path)


def test_the_network_learns_a_cost_that_is_not_additive():
    split = split_samples(made_up_samples(400), held_out=0.2, seed=0)
    network = fit_network(split.train, FitOptions(epochs=200))
    errors, additive = phase_errors(network, split.test), phase_errors(fit_additive(split.train), split.test)
    assert errors["step"].median_ape < 0.03
    assert errors["step"].median_ape < 0.5 * additive["step"].median_ape
    assert errors["step"].kendall_tau > 0.9


def test_too_few_samples_to_fit():
    with pytest.raises(InputError, match="5 samples are too few"):
        split_samples(made_up_samples(5), 0.2, 0)


@pytest.fixture(scope="module")
def fitted():
    return fit_network(made_up_samples(60), FitOptions(epochs=5))


def test_network_and_cost_model_agree(fitted):
    samples = made_up_samples(6)
    data = packed([(s.tables, s.batch_size) for s in samples], torch.ones(6, 2))
    with torch.no_grad():
        by_network = fitted.networks[0](data.features, data.group_of(), len(data)).numpy()
    for sample, expected in zip(samples, by_network):
        cost = fitted.cost(Task(sample.tables, (2**40, 2**40), 64), Placement((1,) * len(sample.tables)))
        np.testing.assert_allclose([cost.phase("forward")[1], cost.phase("backward")[1]], expected, rtol=1e-4)
        assert cost.phases[0].tolist() == [0, 0, 0, 0]


def test_order_and_padding_change_nothing_at_all(fitted):
    rng = np.random.default_rng(0)
    for _ in range(20):
        tables = [SMALL[t] for t in rng.permutation(len(SMALL))]
        order = rng.permutation(len(tables))
        task, shuffled = Task(tuple(tables), (2**40,) * 3, 64), Task(tuple(tables[t] for t in order), (2**40,) * 3, 64)
        device_of = rng.integers(UNPLACED, 3, size=(5, len(tables)))
        expected = fitted.costs(task, device_of).phases
        assert (fitted.costs(shuffled, device_of[:, order]).phases == expected).all()
        padded = np.concatenate([device_of, np.full((5, 4), UNPLACED)], axis=1)
        more = Task((*tables, *(replace(t, name=f"{t.name}_more") for t in tables[:4])), (2**40,) * 3, 64)
        assert (fitted.costs(more, padded).phases == expected).all()


def test_adding_a_table_never_lowers_a_cost(fitted):
    rng = np.random.default_rng(0)
    task = Task(SMALL, (2**40,), 64)
    device_of = rng.integers(-1, 1, size=(200, len(SMALL)))
    more = np.where(np.arange(len(SMALL)) == rng.integers(len(SMALL), size=(200, 1)), 0, device_of)
    assert (fitted.costs(task, more).phases >= fitted.costs(task, device_of).phases).all()


def test_model_file_round_trips_and_guards_its_hardware(fitted, tmp_path):
    path = tmp_path / "model.pt"
    fitted.save(path)
    loaded = LearnedCost.load(path)
    task = Task(SMALL, (2**40,), 64)
    device_of = np.zeros((1, len(SMALL)), dtype=int)
    assert (loaded.costs(task, device_of).phases == fitted.costs(task, device_of).phases).all()
    with pytest.raises(InputError, match=r"fitted on made up .*--any-hardware"):
        LearnedCost.load(path, here=this_hardware())
    path.write_bytes(os.urandom(100))
    with pytest.raises(InputError, match=r"model\.pt: is not a .*cost network"):
        LearnedCost.load(path)
    with pytest.raises(InputError, match="no such file"):
        LearnedCost.load(tmp_path / "none.pt")


def test_the_shipped_network_needs_no_measuring():
    model = shipped_cost()
    task = Task(dlrm_like(20, seed=77, row_scale=0.1), (2**40,) * 4, 4096)
    cost = model.cost(task, Placement.of(k % 4 for k in range(20)))
    assert (cost.phase("forward") > 0).all()
    assert 0.1 < float(cost.step) < 10_000
    assert GROUPS.stat().st_size < 5_000_000
    assert str(model.hardware) in CARD.read_text()
