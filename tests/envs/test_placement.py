"""TablePlacement against a plain re-computation of every observation, reward and mask."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from shardgym.costmodel.pricing.features import table_features
from shardgym.envs.observation import PADDING, Layout
from shardgym.envs.rewards import REWARD_PER_MS, IllegalActionError
from shardgym.problem.errors import InputError
from shardgym.problem.placements import Placement
from tests.envs.cases import additive, small_task, small_tasks

ID = "shardgym:shardgym/TablePlacement-v1"


def make(**keywords):
    return gym.make(ID, **({"tasks": small_tasks(), "cost_model": additive()} | keywords))


@pytest.mark.parametrize("order", ["cost", "bytes", "given"])
@pytest.mark.parametrize("number", range(4))
def test_every_observation_is_what_a_plain_recomputation_gives(order, number):
    env, model, task = make(order=order, max_devices=5, max_tables=12), additive(), small_tasks()[number]
    alone = model.single_table_costs(task)
    key = {"cost": -alone, "bytes": -task.table_bytes, "given": np.zeros(len(alone))}[order]
    rows = np.argsort(key, kind="stable")
    rng, unit, device_of = np.random.default_rng(number), max(task.device_memory), np.full(len(rows), -1)
    obs, info = env.reset(seed=number, options={"task": number})
    total, done = 0.0, False
    for step in range(len(rows) + 1):
        batch = {name: field[None] for name, field in obs.items()}
        seen = {name: field[0] for name, field in Layout.of(env.observation_space).unflatten(batch).items()}
        left = np.array(task.device_memory) - [task.table_bytes[device_of == d].sum() for d in range(task.devices)]
        t = rows[min(step, len(rows) - 1)]
        features = table_features(task.tables, task.batch_size)
        np.testing.assert_allclose(seen["tables"][: len(rows)], features[rows])
        assert not seen["tables"][len(rows) :].any()
        np.testing.assert_allclose(seen["current"], features[t])
        np.testing.assert_array_equal(seen["device_of"][: len(rows), 0], device_of[rows])
        assert (seen["device_of"][len(rows) :] == PADDING).all()
        assert (seen["cursor"], seen["table_count"]) == (min(step, len(rows) - 1), len(rows))
        np.testing.assert_allclose(seen["memory_left"], np.pad(left / unit, (0, 5 - task.devices)), rtol=1e-6)
        np.testing.assert_allclose(seen["current_memory"], task.table_bytes[t] / unit, rtol=1e-6)
        np.testing.assert_allclose(seen["current_cost"], alone[t], rtol=1e-5)
        expected = model.costs(task, device_of[None])
        np.testing.assert_allclose(seen["device_costs"][: task.devices], expected.phases[0], rtol=1e-4, atol=1e-5)
        assert seen["device_exists"].tolist() == [1] * task.devices + [0] * (5 - task.devices)
        legal = np.pad(left >= task.table_bytes[t], (0, 5 - task.devices)) & (step < len(rows))
        np.testing.assert_array_equal(seen["legal"], legal)
        np.testing.assert_array_equal(info["action_mask"], legal)
        if done or not legal.any():
            break
        action = rng.choice(np.flatnonzero(legal))
        device_of[t] = action
        obs, reward, done, truncated, info = env.step(action)
        total += reward
        assert not truncated
    if info["is_success"]:
        placement = Placement(tuple(device_of))
        placement.validate(task)
        assert info["decisions"].placement() == placement
        assert info["decisions"].task() == task
        assert info["step_ms"] == pytest.approx(float(model.cost(task, placement).step), rel=1e-5)
        assert total == pytest.approx(REWARD_PER_MS * info["step_ms"], rel=1e-5)
    else:
        assert info["dead_end"]
        assert total < REWARD_PER_MS * alone.sum()


@pytest.mark.parametrize("seed", range(5))
def test_dense_and_sparse_rewards_sum_to_the_same_return(seed):
    returns = []
    for reward in ("dense", "sparse"):
        env = make(reward=reward)
        _, info = env.reset(seed=seed)
        rng, rewards, done = np.random.default_rng(seed), [], False
        while not done:
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            _, step_reward, done, _, info = env.step(action)
            rewards.append(step_reward)
        returns.append(sum(rewards))
        if reward == "sparse":
            assert not any(rewards[:-1])
    assert returns[0] == pytest.approx(returns[1], rel=1e-6)


def test_every_illegal_action_ends_the_episode_and_changes_nothing_else():
    task = small_task(room=1.0)
    for bad in range(6):
        env = make(tasks=[task], max_devices=6)
        before, info = env.reset(seed=0)
        moves = 0
        while info["action_mask"][bad] and moves < 7:
            before, _, _, _, info = env.step(bad)
            moves += 1
        assert not info["action_mask"][bad]
        after, reward, terminated, truncated, info = env.step(bad)
        assert terminated
        assert not truncated
        assert info["illegal_action"]
        assert not info["is_success"]
        assert reward < 0
        for name in before:
            np.testing.assert_array_equal(before[name], after[name])


def test_strict_raises_with_the_mask_and_leaves_the_episode_going():
    env = make(tasks=[small_task()], max_devices=6, strict=True)
    _, info = env.reset(seed=0)
    for bad in (3, 5, -1, 6):
        with pytest.raises(IllegalActionError, match=f"action {bad} is not legal"):
            env.unwrapped.step(bad)
    with pytest.raises(IllegalActionError) as caught:
        env.unwrapped.step(4)
    np.testing.assert_array_equal(caught.value.mask, info["action_mask"])
    env.unwrapped.step(0)


@pytest.mark.parametrize(
    ("keywords", "message"),
    [
        ({"tasks": []}, "tasks: the list is empty"),
        ({"tasks": 7}, "tasks: a int gives no tasks"),
        ({"tasks": "dlrm-50"}, "no family 'dlrm-50'; give one of dlrm-20x4"),
        ({"tasks": "dlrm-50x4/valid"}, "has no half 'valid'"),
        ({"tasks": "dlrm-50x4-v9"}, "has no version '9'"),
        ({"tasks": "nowhere.json"}, "nowhere.json: no such file"),
        ({"tasks": lambda rng: small_task()}, "max_tables is not known"),
        ({"max_tables": 4}, "max_tables is 4 and the tasks have up to 11"),
        ({"max_devices": 0}, "max_devices is 0"),
        ({"max_devices": 2.5}, "max_devices is 2.5"),
        ({"reward": "sometimes"}, "reward is 'sometimes'"),
        ({"order": "random"}, "order is 'random'"),
        ({"cost_model": 3}, "cost model: is a int"),
        ({"cost_model": "nowhere.pt"}, "nowhere.pt': is no file"),
    ],
)
def test_a_bad_construction_is_one_clear_error(keywords, message):
    with pytest.raises(InputError, match=message):
        make(**keywords)


def test_a_task_that_cannot_be_placed_is_refused_at_reset():
    big = small_task(device_memory=(1000, 1000))
    with pytest.raises(InputError, match="the largest device has 1,000"):
        make(tasks=[big]).reset()
    stream = make(tasks=lambda rng: small_task(), max_tables=6, max_devices=4)
    with pytest.raises(InputError, match="has 8 tables and max_tables is 6; raise max_tables"):
        stream.reset()
    with pytest.raises(InputError, match="no task 9"):
        make().reset(options={"task": 9})
    with pytest.raises(InputError, match="device_memory"):
        small_task(device_memory=())


def test_one_device_has_one_way():
    env = make(tasks=[small_task(3, tables=3, devices=1)])
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        check_env(make(tasks=[small_task(3, tables=1, devices=1)]).unwrapped)
    _, info = env.reset(seed=0)
    for _ in range(3):
        assert info["action_mask"].tolist() == [1]
        _, _, done, _, info = env.step(0)
    assert done
    assert info["is_success"]
