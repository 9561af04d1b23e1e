"""Stable-Baselines3 and sb3-contrib over the suite: the bridge, plain make_vec_env, and their known traps."""

import warnings

import gymnasium as gym
import numpy as np
import pytest
from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.callbacks import MaskableEvalCallback
from sb3_contrib.common.maskable.evaluation import evaluate_policy as evaluate_maskable
from sb3_contrib.common.maskable.utils import get_action_masks, is_masking_supported
from stable_baselines3 import A2C, DQN, PPO
from stable_baselines3.common.callbacks import EvalCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.vec_env import DummyVecEnv, SubprocVecEnv

from shardgym.agents.learning.sb3_vec_env import make_vec
from shardgym.problem.errors import InputError
from shardgym.registration import ENTRY_POINTS
from tests.envs.cases import additive, small_task, small_tasks
from tests.envs.test_twins import assert_same

IDS = list(ENTRY_POINTS)
KEYWORDS = {"tasks": small_tasks(), "cost_model": additive()}
SMALL = {"n_steps": 16, "batch_size": 32, "n_epochs": 1, "seed": 0}


def legal(masks, rng):
    return np.array([rng.choice(np.flatnonzero(row)) for row in masks])


@pytest.mark.parametrize("name", IDS)
def test_the_bridge_gives_what_a_dummy_vec_env_gives(name):
    ours = make_vec(name, 4, seed=3, monitor=False, **KEYWORDS)
    theirs = make_vec_env(f"shardgym:{name}", 4, seed=3, env_kwargs=KEYWORDS)
    obs, obs1 = ours.reset(), theirs.reset()
    rng, ended = np.random.default_rng(0), 0
    for step in range(60):
        assert_same(dict(obs), dict(obs1), f"observation {step}")
        masks = get_action_masks(ours)
        np.testing.assert_array_equal(masks, get_action_masks(theirs))
        actions = legal(masks, rng)
        actions[rng.random(4) < 0.03] = 0
        (obs, reward, done, infos), (obs1, reward1, done1, infos1) = ours.step(actions), theirs.step(actions)
        np.testing.assert_allclose(reward, reward1, atol=1e-6)
        np.testing.assert_array_equal(done, done1)
        for info, info1 in zip(infos, infos1):
            # Monitor adds the episode's statistics; the bridge leaves them to VecMonitor.
            ended += "terminal_observation" in info
            assert set(info1) - set(info) <= {"episode", "TimeLimit.truncated"}
            for key in set(info) - {"decisions"}:
                assert_same(info[key], info1[key], f"{key} {step}")
            assert info.get("decisions") == info1.get("decisions")
    assert ended > 8


def test_masks_are_found_through_every_vec_env():
    for env in (make_vec(IDS[0], 2, **KEYWORDS), make_vec_env(f"shardgym:{IDS[0]}", 2, env_kwargs=KEYWORDS)):
        env.reset()
        assert is_masking_supported(env)
        assert get_action_masks(env).shape == (2, 4)
        assert not is_masking_supported(make_vec_env("CartPole-v1", 1))


def test_subprocesses_know_the_ids_and_send_the_masks():
    env = make_vec_env(
        f"shardgym:{IDS[0]}", 2, seed=3, env_kwargs=KEYWORDS, vec_env_cls=SubprocVecEnv,
        vec_env_kwargs={"start_method": "spawn"},
    )  # fmt: skip
    twin = make_vec(IDS[0], 2, seed=3, **KEYWORDS)
    assert_same(dict(twin.reset()), dict(env.reset()), "reset")
    np.testing.assert_array_equal(get_action_masks(twin), get_action_masks(env))
    actions = legal(get_action_masks(env), np.random.default_rng(0))
    assert_same(dict(twin.step(actions)[0]), dict(env.step(actions)[0]), "step")
    env.close()


@pytest.mark.parametrize("name", IDS)
@pytest.mark.parametrize("algorithm", [PPO, A2C, DQN, MaskablePPO])
def test_every_algorithm_learns_without_a_word(name, algorithm):
    env = make_vec(name, 4, seed=0, **KEYWORDS)
    settings = {
        A2C: {"n_steps": 8, "seed": 0},
        DQN: {"buffer_size": 500, "learning_starts": 32, "batch_size": 16, "seed": 0},
    }
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        model = algorithm("MultiInputPolicy", env, **settings.get(algorithm, SMALL)).learn(128)
    assert [str(w.message) for w in caught if issubclass(w.category, UserWarning)] == []
    assert all(np.isfinite(p.detach().numpy()).all() for p in model.policy.parameters())
    assert len(model.ep_info_buffer) > 0


def test_a_masked_agent_never_acts_illegally_in_learning_or_evaluation():
    env, held_out = (make_vec(IDS[0], 4, seed=s, strict=True, **KEYWORDS) for s in (0, 9))
    callback = MaskableEvalCallback(held_out, n_eval_episodes=4, eval_freq=32, verbose=0)
    model = MaskablePPO("MultiInputPolicy", env, **SMALL).learn(256, callback=callback)
    mean, _ = evaluate_maskable(model, held_out, n_eval_episodes=6)
    assert np.isfinite(mean)
    single = gym.make(f"shardgym:{IDS[0]}", strict=True, **KEYWORDS)
    obs, info = single.reset(seed=0)
    done = False
    while not done:
        action, _ = model.predict(obs, action_masks=single.unwrapped.action_masks(), deterministic=True)
        obs, _, done, _, info = single.step(int(action))
    assert "is_success" in info


def test_an_agent_that_ignores_masks_is_told_by_reward_and_flag():
    env = make_vec(IDS[0], 4, seed=0, **(KEYWORDS | {"max_devices": 12}))
    model = PPO("MultiInputPolicy", env, **SMALL)
    with warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always")
        mean, _ = evaluate_policy(model, env, n_eval_episodes=8, deterministic=False)
        model.learn(64, callback=EvalCallback(env, n_eval_episodes=2, eval_freq=8, verbose=0))
    assert [str(w.message) for w in caught if issubclass(w.category, UserWarning)] == []
    assert mean < 0
    env.reset()
    _, rewards, done, infos = env.step(np.full(4, 11))
    assert done.all()
    assert (rewards < 0).all()
    assert all(info["illegal_action"] for info in infos)


def test_a_thousand_actions_are_no_trouble_for_a_masked_distribution():
    env = make_vec(IDS[0], 2, seed=0, strict=True, **(KEYWORDS | {"max_devices": 1000}))
    model = MaskablePPO("MultiInputPolicy", env, **SMALL).learn(128)
    assert np.isfinite(model.logger.name_to_value.get("train/loss", 0.0))


def test_a_model_saved_on_one_family_plays_another_within_the_same_sizes(tmp_path):
    sizes = {"max_tables": 40, "max_devices": 4, "cost_model": additive()}
    model = MaskablePPO("MultiInputPolicy", make_vec(IDS[0], 2, tasks="dlrm-20x4", **sizes), **SMALL)
    model.save(tmp_path / "model")
    other = make_vec(IDS[0], 2, tasks="tight-20x4/test", seed=1, **sizes)
    loaded = MaskablePPO.load(tmp_path / "model", env=other)
    obs, masks = other.reset(), get_action_masks(other)
    for policy in (model, loaded):
        actions, _ = policy.predict(obs, action_masks=masks, deterministic=True)
        assert masks[np.arange(2), actions].all()
    with pytest.raises(ValueError, match=r"spaces? do not match"):
        MaskablePPO.load(tmp_path / "model", env=make_vec(IDS[0], 2, tasks="dlrm-80x8", cost_model=additive()))


def test_seeds_options_attributes_and_images():
    env = make_vec(IDS[0], 3, monitor=False, render_mode="rgb_array", **KEYWORDS)
    env.seed(5)
    first = env.reset()
    env.seed(5)
    assert_same(dict(env.reset()), dict(first), "seeded again")
    env.set_options({"task": 3})
    assert (env.reset()["table_count"] == 3).all()
    env.set_options([{"task": 0}, {"task": 1}, {"task": 0}])
    with pytest.raises(InputError, match="give one dict"):
        env.reset()
    assert env.get_attr("num_envs") == [3, 3, 3]
    env.set_attr("note", 1)
    assert env.get_attr("note", [0]) == [1]
    with pytest.raises(InputError, match="leave indices out"):
        env.set_attr("note", 2, indices=[0])
    with pytest.raises(AttributeError, match="no method 'fly'"):
        env.env_method("fly")
    assert env.env_is_wrapped(gym.Wrapper) == [False] * 3
    assert np.asarray(env.render("rgb_array")).ndim == 3
    with pytest.raises(InputError, match="CartPole-v1: is no environment of shardgym"):
        make_vec("CartPole-v1", 2)


def test_decisions_of_the_bridge_are_legal_placements():
    env = make_vec(IDS[1], 2, seed=0, tasks=[small_task()], cost_model=additive())
    env.reset()
    rng, checked = np.random.default_rng(0), 0
    while checked < 3:
        _, _, _, infos = env.step(legal(get_action_masks(env), rng))
        for info in infos:
            if info.get("is_success"):
                info["decisions"].placement().validate(info["decisions"].task())
                checked += 1


def test_dummy_vec_env_of_the_registered_class_needs_no_wrapper():
    env = DummyVecEnv([lambda: gym.make(f"shardgym:{IDS[2]}", **KEYWORDS)])
    PPO("MultiInputPolicy", env, **(SMALL | {"batch_size": 16})).learn(32)
