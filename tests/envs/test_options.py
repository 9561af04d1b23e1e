"""TableSharding and FormatPlacement: their masks against enumeration, their plans against the cost model."""

import itertools
import json

import gymnasium as gym
import numpy as np
import pytest

from shardgym.envs.families import family
from shardgym.envs.prices import DEFAULT_BUDGET, DEFAULT_PRICES, FORMATS, read_prices
from shardgym.envs.rewards import REWARD_PER_MS, IllegalActionError
from shardgym.envs.table_options import ColumnSplits, Formats, tensor_train
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TableSpec
from tests.envs.cases import FusedCost, additive, small_task, small_tasks

SHARDING, FORMATS_ID = "shardgym:shardgym/TableSharding-v1", "shardgym:shardgym/FormatPlacement-v1"
SCARCE = [
    small_task(seed, tables=6, devices=3, device_memory=memory)
    for seed, memory in ((0, (9 * 10**8, 7 * 10**8, 3 * 10**8)), (4, (10**9, 10**9, 4 * 10**8)))
]


def pieces_fit(size, count, free):
    """Whether `count` equal pieces fit, by trying every assignment."""
    for device_of in itertools.product(range(len(free)), repeat=count):
        if all(size * device_of.count(d) <= room for d, room in enumerate(free)):
            return True
    return False


def play(env, seed, choose=None):
    """A random legal episode with every mask checked; its last info and the sum of rewards."""
    rng = np.random.default_rng(seed)
    _, info = env.reset(seed=seed)
    episode, done, total = env.unwrapped.episode, False, 0.0
    D = env.unwrapped.settings.layout.max_devices
    rules = env.unwrapped.settings.rules
    while not done:
        task, table = episode.encoded.task, episode.encoded.task.tables[episode.encoded.order[episode.row]]
        options = rules.options(table)
        free = episode.memory_left[: task.devices]
        expected = np.zeros(D + len(options), bool)
        if episode.option < 0:
            for c, option in enumerate(options):
                expected[D + c] = (
                    option is not None
                    and pieces_fit(option.piece.bytes(), option.pieces, free)
                    and option.price <= episode.budget_left + 1e-9
                )
        else:
            expected[: task.devices] = options[episode.option].piece.bytes() <= free
        np.testing.assert_array_equal(info["action_mask"], expected)
        action = int(rng.choice(np.flatnonzero(expected)))
        _, reward, done, _, info = env.step(action)
        total += reward
    return info, total


@pytest.mark.parametrize("model", [additive(), FusedCost()])
@pytest.mark.parametrize("identifier", [SHARDING, FORMATS_ID])
def test_masks_are_exact_and_plans_cost_what_the_model_says(identifier, model):
    tasks = small_tasks() if identifier == SHARDING else small_tasks() + SCARCE
    env, complete = gym.make(identifier, tasks=tasks, cost_model=model), 0
    for seed in range(25):
        info, total = play(env, seed)
        if not info["is_success"]:
            assert info["dead_end"]
            continue
        complete += 1
        decisions = info["decisions"]
        task, placement = decisions.task(), decisions.placement()
        placement.validate(task)
        assert info["step_ms"] == pytest.approx(float(model.cost(task, placement).step), rel=1e-5)
        assert total == pytest.approx(REWARD_PER_MS * info["step_ms"], rel=1e-5)
    assert complete > 5


def test_shards_are_those_of_the_table():
    env = gym.make(SHARDING, tasks=small_tasks(), cost_model=additive())
    for seed in range(8):
        info, _ = play(env, seed)
        if not info["is_success"]:
            continue
        given = env.unwrapped.episode.encoded.task.tables
        counts = [ColumnSplits().counts[c] for c in info["decisions"].options()]
        assert info["decisions"].task().tables == tuple(
            shard for table, count in zip(given, counts) for shard in table.column_shards(count)
        )


@pytest.mark.parametrize(
    ("dim", "allowed"), [(4, [1]), (8, [1, 2]), (12, [1]), (16, [1, 2, 4]), (24, [1, 2]), (64, [1, 2, 4, 8])]
)
def test_a_piece_keeps_a_dim_that_is_a_multiple_of_four(dim, allowed):
    table = TableSpec("a", rows=10_000, dim=dim)
    options = ColumnSplits().options(table)
    assert [option.pieces for option in options if option] == allowed
    assert all(option.piece.dim * option.pieces == dim for option in options if option)
    assert [option.pieces for option in ColumnSplits().options(tensor_train(table, 8)) if option] == [1]


def test_formats_stay_within_the_budget_and_make_overfull_tasks_fit():
    tasks = family("overfull-20x4")
    env = gym.make(FORMATS_ID, tasks=tasks, cost_model=additive())
    for number in range(3):
        _, info = env.reset(options={"task": number})
        done, int8 = False, env.unwrapped.settings.layout.max_devices + FORMATS.index("int8")
        while not done:  # every table in int8, on the device with most room: the hidden plan is of that kind
            left = env.unwrapped.episode.memory_left
            action = int8 if info["action_mask"][int8] else int(left.argmax())
            _, _, done, _, info = env.step(action)
        if info["is_success"]:
            task = info["decisions"].task()
            assert {table.dtype for table in task.tables} == {"int8"}
            info["decisions"].placement().validate(task)
            return
    raise AssertionError("no overfull task was solved in int8")


def test_prices_limit_what_may_be_chosen():
    task = small_task(tables=4)
    D = task.devices
    env = gym.make(FORMATS_ID, tasks=task, cost_model=additive(), prices={"int8": 1.0}, accuracy_budget=0.25)
    obs, info = env.reset(seed=0)
    np.testing.assert_allclose(obs["option_price"], [0, 0.1, 1, 2, 4])
    assert info["action_mask"][D:].tolist() == [1, 1, 1, 0, 0]
    assert obs["budget_left"] == 1
    obs, *_ = env.step(D + 2)
    assert obs["budget_left"] == 0
    obs, _, _, _, info = env.step(0)
    assert info["action_mask"][D:].tolist() == [1, 0, 0, 0, 0]


def test_formats_have_the_bytes_of_their_kind():
    table = TableSpec("a", rows=1_000_000, dim=64, dtype="fp16")
    fp32, fp16, int8, tt32, tt16 = (option.piece for option in Formats().options(table))
    assert (fp32.bytes(), fp16.bytes(), int8.bytes()) == (260_000_000, 132_000_000, 76_000_000)
    assert fp32.bytes() / tt32.bytes() > 50
    assert tt32.bytes() > 2 * tt16.bytes()
    assert [option.price for option in Formats().options(table)] == list(DEFAULT_PRICES.values())
    # Every table in int8 is within the default budget, every table as a tensor train is not.
    assert DEFAULT_PRICES["int8"] < DEFAULT_BUDGET < DEFAULT_PRICES["tt32"]


@pytest.mark.parametrize(
    ("prices", "message"),
    [
        ({"fp8": 1}, "prices: format 'fp8' is unknown; use fp32"),
        ({"int8": -1}, "price of 'int8' is -1"),
        ({"int8": "much"}, "price of 'int8' is 'much'"),
        ({"int8": float("nan")}, "price of 'int8' is nan"),
        ([1], "is a list"),
        ("nowhere.json", "nowhere.json: no such file"),
    ],
)
def test_bad_prices_are_refused(prices, message):
    with pytest.raises(InputError, match=message):
        gym.make(FORMATS_ID, tasks=small_task(), cost_model=additive(), prices=prices)
    with pytest.raises(InputError, match="accuracy_budget is -1"):
        gym.make(FORMATS_ID, tasks=small_task(), cost_model=additive(), accuracy_budget=-1)


def test_prices_are_read_from_a_file(tmp_path):
    path = tmp_path / "prices.json"
    path.write_text(json.dumps({"tt16": 1.5}))
    assert read_prices(path) == DEFAULT_PRICES | {"tt16": 1.5}
    path.write_text("{")
    with pytest.raises(InputError, match=r"prices.json: is not valid JSON"):
        read_prices(path)


def test_a_task_that_fits_under_no_option_is_refused():
    small = small_task(device_memory=(1000, 1000))
    for identifier in (SHARDING, FORMATS_ID):
        with pytest.raises(InputError, match="in its smallest option and the largest device has 1,000"):
            gym.make(identifier, tasks=small, cost_model=additive()).reset()
    # Split eight ways the table fits one device, but all tables exceed all devices.
    table = TableSpec("wide", rows=1_000_000, dim=64)
    scarce = small_task(tables=1, device_memory=(table.column_shards(8)[0].bytes(),) * 2)
    scarce = type(scarce)((table,), scarce.device_memory, 512)
    with pytest.raises(InputError, match="in their smallest options"):
        gym.make(SHARDING, tasks=scarce, cost_model=additive()).reset()


@pytest.mark.parametrize("identifier", [SHARDING, FORMATS_ID])
def test_every_illegal_action_in_both_phases(identifier):
    task = small_task()
    for strict in (False, True):
        for phase in (0, 1):
            env = gym.make(identifier, tasks=task, cost_model=additive(), strict=strict)
            for bad in range(-1, env.action_space.n + 1):
                _, info = env.reset(seed=0)
                if phase:
                    _, _, _, _, info = env.step(task.devices)
                if 0 <= bad < env.action_space.n and info["action_mask"][bad]:
                    continue
                if strict:
                    with pytest.raises(IllegalActionError):
                        env.unwrapped.step(bad)
                    np.testing.assert_array_equal(env.unwrapped.action_masks(), info["action_mask"])
                else:
                    _, reward, terminated, _, info = env.unwrapped.step(bad)
                    assert terminated
                    assert info["illegal_action"]
                    assert reward < 0
