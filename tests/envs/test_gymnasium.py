"""What Gymnasium's users expect of every id: its checkers, twin rollouts, copies, processes, and its known traps."""

import copy
import itertools
import pickle
import warnings

import gymnasium as gym
import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from gymnasium.vector import AsyncVectorEnv, AutoresetMode
from stable_baselines3.common.env_checker import check_env as sb3_check_env

import shardgym
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning
from shardgym.problem.task_files import write_tasks
from shardgym.registration import ENTRY_POINTS, register_all
from tests.envs.cases import additive, small_task, small_tasks
from tests.envs.test_twins import assert_same

IDS = list(ENTRY_POINTS)
SIZES = [{}, {"max_tables": 16, "max_devices": 6}]


def fresh_task(rng):
    return small_task(int(rng.integers(1000)), tables=int(rng.integers(2, 7)))


def make(name, **keywords):
    return gym.make(f"shardgym:{name}", **({"tasks": small_tasks(), "cost_model": additive()} | keywords))


def play(env, seed, episodes=1):
    """Random legal episodes: every observation, reward and mask."""
    rng, trace = np.random.default_rng(seed), []
    for _ in range(episodes):
        obs, info = env.reset(seed=seed if not trace else None)
        done = False
        while not done:
            trace.append((obs, info["action_mask"]))
            obs, reward, done, _, info = env.step(int(rng.choice(np.flatnonzero(info["action_mask"]))))
            trace.append((obs, reward, done, info["action_mask"]))
    return trace


def assert_same_trace(one, other):
    assert len(one) == len(other)
    for step, (a, b) in enumerate(zip(one, other)):
        for x, y in zip(a, b):
            assert_same(x, y, f"step {step}")


KEYWORDS = [
    *itertools.product(["dense", "sparse"], ["cost", "bytes", "given"], [None, "ansi", "rgb_array"]),
    ("dense", "cost", "human"),  # once: a window is slow
]


@pytest.mark.parametrize(("reward", "order", "render_mode"), KEYWORDS)
@pytest.mark.parametrize("name", IDS)
def test_both_checkers_pass_without_a_warning(name, reward, order, render_mode, monkeypatch):
    monkeypatch.setenv("MPLBACKEND", "agg")
    for sizes in SIZES:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env = make(name, reward=reward, order=order, render_mode=render_mode, **sizes)
            check_env(env.unwrapped)
            sb3_check_env(env)
            env.close()
        assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("name", IDS)
def test_both_checkers_pass_for_every_form_of_tasks_and_for_the_default(name, tmp_path):
    path = tmp_path / "tasks.json"
    write_tasks(path, small_tasks())
    sized = {"max_tables": 8, "max_devices": 3}
    forms = [{"tasks": str(path)}, {"tasks": path}, {"tasks": small_task()}, {"tasks": fresh_task} | sized,
             {"tasks": "tight-20x4/test"}, {"tasks": "mixed-20x4"}]  # fmt: skip
    if name == "shardgym/FormatPlacement-v1":
        forms += [{"prices": {"int8": 0.2}, "accuracy_budget": 0.4}, {"tasks": "overfull-20x4"}]
    for keywords in forms:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            env = make(name, **keywords)
            check_env(env.unwrapped)
            sb3_check_env(env)
        assert [str(warning.message) for warning in caught] == []


@pytest.mark.parametrize("name", IDS)
def test_both_checkers_pass_with_the_default_tasks_and_the_shipped_network(name):
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        env = gym.make(f"shardgym:{name}")
        check_env(env.unwrapped)
        sb3_check_env(env)
    # The shipped network says so where it has not measured a format that may be chosen.
    beyond = OutOfRangeWarning if name == "shardgym/FormatPlacement-v1" else ()
    assert [str(warning.message) for warning in caught if not issubclass(warning.category, beyond)] == []


@pytest.mark.parametrize("name", IDS)
def test_the_same_seed_gives_the_same_rollouts_over_three_resets(name):
    one, other = (play(make(name), seed=5, episodes=3) for _ in range(2))
    assert_same_trace(one, other)
    env = make(name)
    env.reset(seed=5)
    first = play(env, seed=5, episodes=3)
    assert_same_trace(first, one)


def test_reset_without_a_seed_goes_on_with_the_same_generator():
    env = make(IDS[0])
    names = []
    for seed in (3, None, None, 3, None, None):
        env.reset(seed=seed)
        names.append(env.unwrapped.episode.encoded.task.name)
    assert names[:3] == names[3:]
    assert len({tuple(play(make(IDS[0]), seed=s)[0][0]["current"]) for s in range(12)}) > 1


@pytest.mark.parametrize("name", IDS)
def test_copies_and_pickles_play_on_as_the_original_does(name):
    env = make(name)
    _, info = env.reset(seed=1)
    env.step(int(np.flatnonzero(info["action_mask"])[0]))
    for twin in (pickle.loads(pickle.dumps(env)), copy.deepcopy(env)):
        mask = twin.unwrapped.action_masks()
        np.testing.assert_array_equal(mask, env.unwrapped.action_masks())
        assert_same_trace(play(twin, seed=2, episodes=3), play(make(name), seed=2, episodes=3))
    vector = gym.make_vec(name, num_envs=3, tasks=small_tasks(), cost_model=additive())
    vector.reset(seed=1)
    twin = pickle.loads(pickle.dumps(vector))
    for _ in range(30):
        actions = np.array([np.flatnonzero(row)[-1] for row in vector.unwrapped.action_masks()])
        for a, b in zip(vector.step(actions), twin.step(actions)):
            assert_same(a, b, name)


def test_specs_are_json_and_registering_twice_changes_nothing():
    before = {name: gym.spec(name) for name in IDS}
    register_all()
    for name in IDS:
        spec = gym.spec(name)
        assert spec is before[name]
        assert gym.envs.registration.EnvSpec.from_json(spec.to_json()) == spec
        assert spec.max_episode_steps is None
        headings = ["Description", "Action Space", "Observation Space", "Starting State", "Rewards", "Episode End",
                    "Information", "Arguments", "References", "Version History"]  # fmt: skip
        page = make(name).unwrapped.__doc__
        places = [page.index(f"## {heading}") for heading in headings]
        assert places == sorted(places)
    assert shardgym.__version__


def test_wrappers_reach_the_masks_and_the_decisions():
    env = gym.wrappers.RecordEpisodeStatistics(gym.wrappers.TimeLimit(make(IDS[0]), 500))
    _, info = env.reset(seed=0)
    np.testing.assert_array_equal(env.get_wrapper_attr("action_masks")(), info["action_mask"])
    assert env.action_space.sample(info["action_mask"]) in np.flatnonzero(info["action_mask"])
    assert info["action_mask"].dtype == np.int8


@pytest.mark.parametrize("name", IDS)
def test_vector_statistics_count_whole_episodes(name):
    keywords = {"tasks": small_tasks(), "cost_model": additive()}
    env = gym.wrappers.vector.RecordEpisodeStatistics(gym.make_vec(name, num_envs=4, **keywords))
    assert env.metadata["autoreset_mode"] is AutoresetMode.SAME_STEP
    obs, info = env.reset(seed=0)
    rng, returns, seen = np.random.default_rng(0), np.zeros(4), 0
    for _ in range(80):
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in info["action_mask"]])
        before = obs
        obs, reward, done, _, info = env.step(actions)
        returns += reward
        for n in np.flatnonzero(done):
            assert info["episode"]["r"][n] == pytest.approx(returns[n])
            # The last observation is of the episode that ended, the returned one of a new episode.
            final = info["final_obs"][n]
            np.testing.assert_array_equal(final["table_count"], before["table_count"][n])
            assert (obs["device_of"][n] < 0).all()
            assert (final["device_of"] >= 0).any()
            returns[n], seen = 0, seen + 1
    assert seen > 8


@pytest.mark.parametrize("context", [pytest.param("spawn", marks=pytest.mark.slow), "fork"])
def test_asynchronous_processes_play_the_same(context):
    count, keywords = 2, {"tasks": small_tasks(), "cost_model": additive()}
    env = AsyncVectorEnv(
        [lambda: gym.make(f"shardgym:{IDS[0]}", **keywords)] * count,
        context=context,
        autoreset_mode=AutoresetMode.SAME_STEP,
    )
    twin = gym.make_vec(IDS[0], num_envs=count, **keywords)
    (obs, _), (obs1, info1) = env.reset(seed=3), twin.reset(seed=3)
    for _ in range(12):
        assert_same(obs1, obs, "observation")
        actions = np.array([np.flatnonzero(row)[-1] for row in info1["action_mask"]])
        (obs, reward, *_), (obs1, reward1, _, _, info1) = env.step(actions), twin.step(actions)
        np.testing.assert_allclose(reward1, reward, atol=1e-6)
    env.close()


@pytest.mark.parametrize(
    ("name", "steps", "tasks"),
    [
        (IDS[0], 1_000_000, small_tasks()),
        (IDS[1], 200_000, small_tasks()),
        (IDS[2], 200_000, [small_task(s, tables=6, devices=2, room=0.6) for s in range(4)]),
    ],
)
def test_many_random_legal_steps_hold_no_illegal_step_and_no_nan(name, steps, tasks):
    N = 1000
    env = gym.make_vec(name, num_envs=N, tasks=tasks, cost_model=additive(), strict=True)
    obs, info = env.reset(seed=0)
    rng, finished = np.random.default_rng(0), 0
    floats = [key for key, box in env.single_observation_space.spaces.items() if box.dtype == np.float32]
    for _ in range(steps // N):
        mask = info["action_mask"]
        assert mask.any(axis=1).all()
        # The legal action of the largest random number.
        actions = np.where(mask, rng.random(mask.shape), -1).argmax(axis=1)
        obs, reward, done, _, info = env.step(actions)
        assert np.isfinite(reward).all()
        assert all(np.isfinite(obs[key]).all() for key in floats)
        assert (obs["memory_left"] >= 0).all()
        if done.any():
            assert not info["final_info"]["illegal_action"].any()
            finished += int(done.sum())
    assert finished > steps // 50
