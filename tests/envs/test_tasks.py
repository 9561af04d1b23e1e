"""Families, sources and task files: the same everywhere, halves apart, promises kept."""

import itertools
import pickle

import numpy as np
import pytest

from shardgym.dataio.tables.public_tables import CRITEO_TERABYTE_ROWS
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.dataio.tables.table_files import read_tables
from shardgym.envs.families import FAMILIES, family
from shardgym.envs.tasks import FamilyTasks, as_source
from shardgym.problem.errors import InputError
from shardgym.problem.placements import Placement
from shardgym.problem.task_files import read_tasks, write_tasks
from tests.envs.cases import small_task, small_tasks


@pytest.mark.parametrize("name", FAMILIES)
def test_a_family_is_a_function_of_its_name_half_and_number(name):
    first, again = family(name), pickle.loads(pickle.dumps(family(name)))
    for half, number in itertools.product(("train", "test"), (0, first.count("test") - 1)):
        task = first.task(number, half)
        assert task == again.task(number, half)
        assert task.name == f"{name}-v2/{half}/{number}"
        assert len(task.tables) <= first.tables
        assert task.devices <= first.devices
    assert first.task(0) != first.task(1)


@pytest.mark.parametrize("name", [name for name in FAMILIES if not name.startswith("criteo")])
def test_halves_share_no_table_and_sizes_are_as_named(name):
    tasks = family(name)
    count, devices = map(int, name.split("-")[1].split("x"))
    drawn = {half: {t.name for k in range(5) for t in tasks.task(k, half).tables} for half in ("train", "test")}
    assert not drawn["train"] & drawn["test"]
    task = tasks.task(3)
    assert (len(task.tables), task.devices) == (count, devices)


def test_criteo_halves_share_no_table_shape():
    for name in ("criteo-kaggle", "criteo-terabyte"):
        dims = [{t.dim for task in family(name).all_tasks(half) for t in task.tables} for half in ("train", "test")]
        assert not dims[0] & dims[1]
        for task in family(name).all_tasks("train"):
            task.require_room()
    # MLPerf's DLRM states 187,767,399 rows in all and 96.1 GB in fp32 at dim 128.
    assert sum(CRITEO_TERABYTE_ROWS) == 187_767_399


@pytest.mark.parametrize("name", ["tight-20x4", "tight-50x4", "tight-100x8"])
def test_tight_tasks_are_85_to_99_percent_full_and_have_a_plan(name):
    for half in ("train", "test"):
        for number in range(10):
            task = family(name).task(number, half)
            fill = task.table_bytes.sum() / sum(task.device_memory)
            assert 0.85 <= fill <= 0.99
            Placement(hidden_plan(task)).validate(task)


def hidden_plan(task):
    """Subset-sum by search: fill each device to its memory, most constrained first, with random restarts."""
    rng = np.random.default_rng(0)
    sizes, room = task.table_bytes, np.array(task.device_memory)
    for _ in range(5000):
        left, device_of = room.copy(), np.full(len(sizes), -1)
        for t in np.argsort(-sizes * rng.uniform(0.7, 1.4, len(sizes))):
            fits = np.flatnonzero(left >= sizes[t])
            if not len(fits):
                break
            share = left[fits] / room[fits]
            device_of[t] = fits[share.argmax()] if rng.random() < 0.8 else rng.choice(fits)
            left[device_of[t]] -= sizes[t]
        else:
            return tuple(int(d) for d in device_of)
    raise AssertionError(f"no plan found for {task.name}")


@pytest.mark.parametrize("name", ["overfull-20x4", "overfull-50x4"])
def test_dense_tables_exceed_the_memory_of_overfull_tasks(name):
    for number in range(10):
        task = family(name).task(number)
        assert task.table_bytes.sum() > 1.2 * sum(task.device_memory)


def test_mixed_tasks_hold_tensor_trains_and_repeating_tables():
    tables = [table for k in range(5) for table in family("mixed-50x4").task(k).tables]
    assert any(table.tensor_train for table in tables)
    assert 0.3 < np.mean([table.dedup.factor() > 1 for table in tables]) < 0.7


def test_a_family_draws_from_tables_of_ones_own(public_file):
    tables = read_tables(public_file("dlrm_tables_856.parquet"), default_dim=16)
    tasks = family("dlrm-50x4", tables=tables)
    train, test = ({t.name for k in range(20) for t in tasks.task(k, half).tables} for half in ("train", "test"))
    assert not train & test
    assert train | test <= {table.name for table in tables}


@pytest.mark.parametrize(
    ("call", "message"),
    [
        (lambda: family("dlrm-50x4").task(100), "no train task 100; give 0 to 99"),
        (lambda: family("dlrm-50x4").task(0, "dev"), "half is 'dev'"),
        (lambda: family("dlrm-50x4", tables=dlrm_like(60, 0)), "needs 100 tables and there are 60"),
        (lambda: family("none-50x4"), "no family 'none-50x4'"),
        (lambda: as_source(iter([])).draw(np.random.default_rng(0)), "generator has ended"),
        (lambda: as_source(lambda rng: 3).draw(np.random.default_rng(0)), "gave a int; let it give a Task"),
        (lambda: as_source(lambda rng: 3).task(0), "have no numbers"),
    ],
)
def test_what_no_source_has_is_refused(call, message):
    with pytest.raises(InputError, match=message):
        call()


def test_every_form_of_tasks_becomes_a_source(tmp_path):
    path = tmp_path / "tasks.json"
    write_tasks(path, small_tasks())
    assert list(read_tasks(path)) == small_tasks()
    rng = np.random.default_rng(0)
    assert as_source(str(path)).task(2) == as_source(path).task(2) == small_tasks()[2]
    assert as_source(small_task()).draw(rng) == small_task()
    assert as_source(lambda generator: small_task(int(generator.integers(9)))).draw(rng).name.startswith("small")
    assert as_source(iter(small_tasks())).draw(rng) == small_tasks()[0]
    half = as_source("dlrm-20x4-v2/test")
    assert isinstance(half, FamilyTasks)
    assert half.task(3) == family("dlrm-20x4").task(3, "test")
    assert as_source(half) is half
    assert as_source(family("dlrm-20x4")).task(3) == family("dlrm-20x4").task(3)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "is not valid JSON"),
        ("{}", "field 'tasks' is missing"),
        ('{"tasks": [3]}', "task 0 is not an object"),
        ('{"tasks": [{"tables": []}]}', "task 0: field 'device_memory' is missing"),
        ('{"tasks": [{"tables": [], "device_memory": [1.5], "batch_size": 1}]}', r"'device_memory' is \[1.5\]"),
        ('{"tasks": [{"tables": [{"name": "a"}], "device_memory": [1], "batch_size": 1}]}', "field 'rows' is missing"),
        ('{"tasks": [{"tables": [], "device_memory": [1], "batch_size": 1}]}', "tables is empty"),
    ],
)
def test_a_bad_task_file_is_refused_by_name_and_field(tmp_path, text, message):
    path = tmp_path / "bad.json"
    path.write_text(text)
    with pytest.raises(InputError, match=f"bad.json.*{message}"):
        read_tasks(path)
