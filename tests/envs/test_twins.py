"""The vector twins against N single environments under gymnasium's own SyncVectorEnv, step by step."""

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.vector import AutoresetMode, SyncVectorEnv

from shardgym.costmodel.shipped import shipped_cost
from shardgym.envs.rewards import IllegalActionError
from shardgym.problem.errors import InputError
from tests.envs.cases import FusedCost, additive, small_task, small_tasks

IDS = ["shardgym/TablePlacement-v1", "shardgym/TableSharding-v1", "shardgym/FormatPlacement-v1"]


def pair(name, count=5, **keywords):
    keywords = {"tasks": small_tasks(), "cost_model": additive()} | keywords
    twin = gym.make_vec(name, num_envs=count, **keywords)
    singles = SyncVectorEnv(
        [lambda: gym.make(name, **keywords) for _ in range(count)], autoreset_mode=AutoresetMode.SAME_STEP
    )
    return twin, singles


def assert_same(ours, theirs, where):
    """Equal structure; numbers within 1e-6."""
    if isinstance(theirs, dict):
        assert set(ours) == set(theirs), where
        for key in theirs:
            assert_same(ours[key], theirs[key], f"{where}.{key}")
    elif isinstance(theirs, np.ndarray) and theirs.dtype == object:
        for n, (a, b) in enumerate(zip(ours, theirs, strict=True)):
            assert_same(a, b, f"{where}[{n}]")
    elif isinstance(theirs, np.ndarray):
        assert ours.dtype == theirs.dtype, where
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6, err_msg=where)
    else:
        assert ours == theirs, where


@pytest.mark.parametrize("reward", ["dense", "sparse"])
@pytest.mark.parametrize("name", IDS)
def test_twin_steps_as_single_environments_do(name, reward):
    twin, singles = pair(name, reward=reward, max_devices=6)
    rng = np.random.default_rng(0)
    for seed in (7, None, [3, 1, 4, 1, 5]):
        (obs, info), (obs1, info1) = twin.reset(seed=seed), singles.reset(seed=seed)
        if seed is None:  # both go on with the generators that the first reset seeded
            assert_same(obs["tables"], obs1["tables"], "second reset")
        for step in range(60):
            assert_same(obs, obs1, f"observation {step}")
            assert_same(info, info1, f"info {step}")
            mask = info["action_mask"]
            # Mostly legal actions, now and then any, illegal ones and such that are no actions at all among them.
            actions = np.array([rng.choice(np.flatnonzero(row)) for row in mask])
            wild = rng.random(len(actions)) < 0.05
            actions = np.where(wild, rng.integers(0, mask.shape[1], len(actions)), actions)
            ours, theirs = twin.step(actions), singles.step(actions)
            for k, what in enumerate(("observation", "reward", "terminated", "truncated", "info")):
                assert_same(ours[k], theirs[k], f"{what} {step}")
            obs, info, obs1, info1 = ours[0], ours[4], theirs[0], theirs[4]


@pytest.mark.parametrize("name", IDS)
def test_twin_agrees_under_a_fused_cost_with_other_batch_sizes_and_devices(name):
    twin, singles = pair(name, cost_model=FusedCost())
    (obs, info), (obs1, _) = twin.reset(seed=1), singles.reset(seed=1)
    rng = np.random.default_rng(1)
    for step in range(80):
        assert_same(obs, obs1, f"observation {step}")
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in info["action_mask"]])
        (obs, reward, _, _, info), (obs1, reward1, _, _, _) = twin.step(actions), singles.step(actions)
        np.testing.assert_allclose(reward, reward1, atol=1e-6)


@pytest.mark.filterwarnings("ignore::shardgym.costmodel.pricing.ranges.OutOfRangeWarning")
@pytest.mark.parametrize("name", IDS)
def test_twin_agrees_under_the_shipped_network_when_all_episodes_go_in_step(name):
    twin, singles = pair(name, cost_model=None, tasks=small_tasks()[:1])
    (obs, info), (obs1, _) = twin.reset(seed=1), singles.reset(seed=1)
    rng = np.random.default_rng(1)
    for step in range(20):
        assert_same(obs, obs1, f"observation {step}")
        action = rng.choice(np.flatnonzero(info["action_mask"].all(axis=0)))
        (obs, reward, _, _, info), (obs1, reward1, _, _, _) = (env.step(np.full(5, action)) for env in (twin, singles))
        np.testing.assert_allclose(reward, reward1, rtol=1e-5, atol=1e-6)


def test_no_devices_cost_nothing_by_the_shipped_network():
    none = shipped_cost().table_states(small_task())[:0, None]  # (0, 1 device, H)
    assert shipped_cost().device_ms(none, small_task()).shape == (0, 1, 2)


def test_streams_of_fresh_tasks_reuse_the_slots_of_finished_ones():
    def fresh(rng):
        return small_task(int(rng.integers(1_000_000)), tables=int(rng.integers(1, 5)), devices=2)

    keywords = {"tasks": fresh, "max_tables": 5, "max_devices": 2}
    twin, singles = pair(IDS[0], count=3, **keywords)
    twin.unwrapped.episodes.store.capacity = 4
    (obs, info), (obs1, _) = twin.reset(seed=1), singles.reset(seed=1)
    rng = np.random.default_rng(1)
    for step in range(60):
        assert_same(obs, obs1, f"observation {step}")
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in info["action_mask"]])
        (obs, _, _, _, info), (obs1, *_) = twin.step(actions), singles.step(actions)
    store = twin.unwrapped.episodes.store
    assert len(store.encoded) == 4
    # Tables that no kept task holds have given up their rows, all but the row of padding.
    held = {(id(table), e.task.batch_size) for e in store.encoded for table in e.task.tables}
    assert len(store.rows._known) == len(held) == len(store.rows._keys) - 1 - len(store.rows._free)


def test_a_table_is_kept_once_for_all_tasks_that_hold_it():
    env = gym.make_vec(IDS[0], num_envs=2, tasks="dlrm-100x4", cost_model=additive())
    for number in range(20):
        env.reset(options={"task": number})
    store = env.unwrapped.episodes.store
    distinct = {table.name for e in store.encoded for table in e.task.tables}
    assert len(store.encoded) == 20
    assert len(store.rows._known) == len(distinct) < 20 * 100 / 4


def test_observed_arrays_are_never_written_to_again():
    for name in IDS:
        twin = gym.make_vec(name, num_envs=3, tasks=small_tasks(), cost_model=additive())
        obs, info = twin.reset(seed=0)
        rng, seen = np.random.default_rng(0), []
        for _ in range(40):
            seen.append((obs, {key: field.copy() for key, field in obs.items()}))
            actions = np.array([rng.choice(np.flatnonzero(row)) for row in info["action_mask"]])
            obs, _, _, _, info = twin.step(actions)
        for observed, copied in seen:
            assert_same(observed, copied, name)


def test_reset_mask_begins_only_those_episodes():
    twin, singles = pair(IDS[0], count=4)
    for env in (twin, singles):
        env.reset(seed=0)
        env.step(np.zeros(4, int))
    mask = np.array([True, False, True, False])
    ours, theirs = (env.reset(options={"reset_mask": mask.copy()}) for env in (twin, singles))
    assert_same(ours[0], theirs[0], "masked reset")
    assert (ours[1]["_action_mask"] == mask).all()
    with pytest.raises(ValueError, match="reset_mask"):
        twin.reset(options={"reset_mask": np.zeros(4, bool)})
    with pytest.raises(ValueError, match="3 seeds for 4 environments"):
        twin.reset(seed=[1, 2, 3])


@pytest.mark.parametrize("name", IDS)
def test_a_strict_twin_raises_before_anything_changes(name):
    twin = gym.make_vec(name, num_envs=3, tasks=small_tasks(), cost_model=additive(), strict=True)
    obs, info = twin.reset(seed=0)
    bad = int(np.flatnonzero(info["action_mask"][1] == 0)[0]) if not info["action_mask"][1].all() else 99
    actions = np.array([np.flatnonzero(row)[0] for row in info["action_mask"]])
    actions[1] = bad
    with pytest.raises(IllegalActionError, match=f"action {bad} is not legal"):
        twin.step(actions)
    assert_same(twin.unwrapped.episodes.observe(), obs, "after refusal")


def test_bad_constructions_are_refused():
    for keywords, message in (({"num_envs": 0}, "num_envs is 0"), ({"num_envs": 2, "reward": "no"}, "reward is 'no'")):
        with pytest.raises(InputError, match=message):
            gym.make_vec(IDS[0], tasks=small_tasks(), cost_model=additive(), **keywords)
    with pytest.raises(InputError, match="render_mode is 'human'"):
        gym.make_vec(IDS[0], num_envs=2, tasks=small_tasks(), cost_model=additive(), render_mode="human")
