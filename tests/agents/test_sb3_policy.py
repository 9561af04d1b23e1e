"""The policy under PPO, A2C and MaskablePPO: legality, invariances, save and load, other sizes."""

import gymnasium as gym
import numpy as np
import pytest
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import A2C, PPO
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import shardgym  # noqa: F401  registers the environments
from shardgym.agents.learning.sb3_policies import (
    ActionFeatures,
    MaskablePlacementPolicy,
    PlacementActorCriticPolicy,
    transfer,
)
from shardgym.problem.errors import InputError
from shardgym.registration import ENTRY_POINTS
from tests.agents.cases import FusedCost, best_by_enumeration, make_task

ALGORITHMS = (
    (PPO, PlacementActorCriticPolicy, {"n_steps": 64}),
    (A2C, PlacementActorCriticPolicy, {}),
    (MaskablePPO, MaskablePlacementPolicy, {"n_steps": 64}),
)
NAMES = [algorithm.__name__ for algorithm, _, _ in ALGORITHMS]
TASKS = [make_task(8, 3, seed, slack=1.8) for seed in range(4)]


@pytest.fixture(autouse=True)
def one_thread():
    """Threads split the rows of a matrix product, and its rounding then depends on a row's place."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def make_env(name="shardgym/TablePlacement-v1", **keywords):
    return gym.make(name, **({"tasks": TASKS, "cost_model": FusedCost()} | keywords))


def observations_of(env, count: int = 12) -> list[dict[str, np.ndarray]]:
    rng, seen = np.random.default_rng(0), []
    observation, info = env.reset(seed=0)
    while len(seen) < count:
        seen.append(observation)
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        observation, _, done, _, info = env.step(int(action))
        if done:
            observation, info = env.reset()
    return seen


def batch(observations):
    return {name: torch.from_numpy(np.stack([o[name] for o in observations])) for name in observations[0]}


def logits(policy, observations):
    return policy.get_distribution(batch(observations)).distribution.logits


@pytest.mark.parametrize("name", list(ENTRY_POINTS))
@pytest.mark.parametrize(("algorithm", "policy", "keywords"), ALGORITHMS, ids=NAMES)
def test_learns_saves_and_loads_bit_for_bit_on_every_environment(tmp_path, name, algorithm, policy, keywords):
    env = make_env(name)
    model = algorithm(policy, env, seed=0, **keywords).learn(128)
    model.save(tmp_path / "model")
    again = algorithm.load(tmp_path / "model", env=env)
    for a, b in zip(model.policy.state_dict().values(), again.policy.state_dict().values()):
        assert torch.equal(a, b)
    for observation in observations_of(env):
        assert model.predict(observation, deterministic=True)[0] == again.predict(observation, deterministic=True)[0]


@pytest.mark.parametrize("name", list(ENTRY_POINTS))
def test_never_chooses_what_is_not_legal_without_any_mask_plumbing(name):
    env = make_env(name)
    policy = PPO(PlacementActorCriticPolicy, env, seed=0).policy
    torch.nn.init.normal_(policy.action_net.scorer.weight, std=20)
    for observation in observations_of(env):
        shares = policy.get_distribution(batch([observation])).distribution.probs[0].detach()
        assert float(shares[torch.from_numpy(observation["legal"]) == 0].sum()) == 0
        action, _ = policy.predict(observation, deterministic=False)
        assert observation["legal"][int(action)]


@torch.no_grad()
def test_padding_changes_nothing():
    small, large = make_env(), make_env(max_tables=13, max_devices=5)
    policy = PPO(PlacementActorCriticPolicy, small, seed=0).policy
    wide = PPO(PlacementActorCriticPolicy, large, seed=1).policy
    torch.nn.init.normal_(policy.action_net.scorer.weight)
    wide.load_state_dict(policy.state_dict())
    for narrow, padded in zip(observations_of(small), observations_of(large)):
        scores = policy.action_net(policy.extract_features(batch([narrow])))
        same = wide.action_net(wide.extract_features(batch([padded])))[:, :3]
        np.testing.assert_allclose(scores, same, rtol=1e-5, atol=1e-5)
        values = policy.predict_values(batch([narrow])), wide.predict_values(batch([padded]))
        np.testing.assert_allclose(*values, rtol=1e-5, atol=1e-5)


@torch.no_grad()
def test_the_placed_tables_may_stand_in_any_order():
    env = make_env()
    features = ActionFeatures(env.observation_space)
    observation = batch([observations_of(env, 6)[5]])
    placed = int(observation["cursor"][0, 0])
    turned = dict(observation)
    rows = torch.cat([torch.arange(placed).flip(0), torch.arange(placed, 8)])
    turned["tables"] = observation["tables"].reshape(1, 8, -1)[:, rows].reshape(1, -1)
    turned["device_of"] = observation["device_of"][:, rows]
    floats = [{k: v.float() for k, v in o.items()} for o in (observation, turned)]
    np.testing.assert_allclose(features(floats[0]), features(floats[1]), rtol=1e-5, atol=1e-6)


@torch.no_grad()
def test_logits_follow_a_permutation_of_the_devices():
    env = make_env()
    features = ActionFeatures(env.observation_space)
    observation = {k: v.float() for k, v in batch([observations_of(env, 6)[5]]).items()}
    order = torch.tensor([2, 0, 1])
    turned = dict(observation)
    for name in ("memory_left", "device_exists", "legal"):
        turned[name] = observation[name][:, order]
    turned["device_costs"] = observation["device_costs"].reshape(1, 3, 4)[:, order].reshape(1, -1)
    place = {int(old): new for new, old in enumerate(order)} | {-1: -1, -2: -2}
    turned["device_of"] = torch.tensor([[float(place[int(d)]) for d in observation["device_of"][0]]])
    np.testing.assert_allclose(features(turned), features(observation)[:, order], rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(("algorithm", "policy", "keywords"), ALGORITHMS, ids=NAMES)
def test_transfer_to_other_sizes_and_back(tmp_path, algorithm, policy, keywords):
    env = make_env()
    model = algorithm(policy, env, seed=0, **keywords).learn(64)
    model.save(tmp_path / "model")
    big = make_env(tasks=[make_task(20, 6, 9)])
    moved = transfer(algorithm, tmp_path / "model", big)
    mean, _ = evaluate_policy(moved, Monitor(big), n_eval_episodes=1)
    assert np.isfinite(mean)
    moved.save(tmp_path / "moved")
    back = transfer(algorithm, tmp_path / "moved", env)
    for observation in observations_of(env):
        assert back.predict(observation, deterministic=True)[0] == model.predict(observation, deterministic=True)[0]


def test_transfer_of_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="no such file"):
        transfer(PPO, tmp_path / "none", make_env())


def test_another_environment_is_refused():
    with pytest.raises(InputError, match="no field 'device_of'"):
        PPO(PlacementActorCriticPolicy, gym.make("CartPole-v1"))


def test_ppo_reaches_the_enumerated_optimum_of_a_small_task():
    model, task = FusedCost(), make_task(6, 2, seed=2)
    env = make_env(tasks=[task])
    agent = PPO(
        PlacementActorCriticPolicy, env, n_steps=384, batch_size=128, learning_rate=3e-3, ent_coef=0.003, seed=0
    ).learn(20 * 384)  # fmt: skip
    _, optimum = best_by_enumeration(task, model)
    mean, _ = evaluate_policy(agent, Monitor(env), n_eval_episodes=1)
    assert -100 * mean <= optimum * 1.02
