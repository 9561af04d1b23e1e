"""DreamShard as an algorithm of Stable-Baselines3, and the recurrent policy beside it."""

import dataclasses

import gymnasium as gym
import numpy as np
import pytest
import torch
from stable_baselines3.common.callbacks import BaseCallback
from stable_baselines3.common.env_util import make_vec_env
from stable_baselines3.common.evaluation import evaluate_policy
from stable_baselines3.common.monitor import Monitor

import shardgym  # noqa: F401  registers the environments
from shardgym.agents.learning.agent import decide, raw_features
from shardgym.agents.learning.dreamshard import DreamShard, Schedules
from shardgym.agents.learning.rnn import train_rnn
from shardgym.agents.learning.training import TrainingOptions
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.problem.costs import StepCost
from shardgym.problem.errors import InputError
from tests.agents.cases import ADDITIVE, best_by_enumeration, make_task, packed_task, step_of

ID = "shardgym/TablePlacement-v1"
TASKS = [make_task(8, 3, seed, slack=3.0) for seed in range(4)]
QUICK = Schedules(measured=4, cost_steps=40, cost_batch=32, policy_steps=2)


def make_env(**keywords):
    return gym.make(ID, **({"tasks": TASKS, "cost_model": ADDITIVE} | keywords))


class CountingMeasure:
    """Costs by a model, counting what is measured."""

    def __init__(self):
        self.calls = 0

    def cost(self, task, placement) -> StepCost:
        self.calls += 1
        return ADDITIVE.cost(task, placement)

    costs = ADDITIVE.costs


class StopAfter(BaseCallback):
    def __init__(self, steps: int) -> None:
        super().__init__()
        self.steps = steps

    def _on_step(self) -> bool:
        return self.n_calls < self.steps


def test_learns_with_tensorboard_progress_bar_and_measures_what_the_schedule_says(tmp_path):
    measure = CountingMeasure()
    model = DreamShard(
        "DreamShardPolicy", make_env(), measure=measure, schedules=QUICK, seed=0, tensorboard_log=str(tmp_path)
    )
    model.learn(2 * 4 * 8, progress_bar=True)
    assert measure.calls == len(model.measurements) == 8
    assert model.num_timesteps == 2 * 4 * 8
    assert model.iterations == 2
    assert list(tmp_path.rglob("events.out.tfevents.*"))
    assert np.isfinite(evaluate_policy(model, Monitor(make_env()), n_eval_episodes=3)[0])


def test_a_callback_stops_it():
    model = DreamShard("DreamShardPolicy", make_env(), schedules=QUICK, seed=0).learn(10_000, callback=StopAfter(20))
    assert model.num_timesteps == 20


def test_saved_and_loaded_it_predicts_bit_for_bit_alike_and_keeps_its_measurements(tmp_path):
    env = make_env()
    model = DreamShard("DreamShardPolicy", env, schedules=QUICK, seed=0).learn(32)
    model.save(tmp_path / "model")
    again = DreamShard.load(tmp_path / "model", env=env)
    for a, b in zip(model.policy.state_dict().values(), again.policy.state_dict().values()):
        assert torch.equal(a, b)
    assert len(again.measurements) == len(model.measurements)
    observation, _ = env.reset(seed=3)
    assert model.predict(observation, deterministic=True)[0] == again.predict(observation, deterministic=True)[0]
    again.learn(32, reset_num_timesteps=False)
    assert again.num_timesteps == 64


def test_the_same_seed_learns_the_same():
    first, second = (
        DreamShard("DreamShardPolicy", make_env(), schedules=QUICK, seed=1).learn(64).policy.state_dict()
        for _ in range(2)
    )
    assert all(torch.equal(first[name], second[name]) for name in first)


def test_vectorised_environments_are_measured_alike():
    env = make_vec_env(ID, n_envs=3, env_kwargs={"tasks": TASKS, "cost_model": ADDITIVE})
    model = DreamShard("DreamShardPolicy", env, schedules=QUICK, seed=0).learn(48)
    assert len(model.measurements) >= 4


def test_from_an_observation_it_decides_as_from_the_episode_itself():
    task = make_task(8, 3, 2)
    env = make_env(tasks=[task])
    model = DreamShard("DreamShardPolicy", env, schedules=QUICK, seed=0).learn(32)
    model.policy.requires_grad_(False)
    policy, rng = model.policy, np.random.default_rng(0)
    torch.nn.init.normal_(policy.placing.scorer)
    episode = Construction(CostedTask.of(task, policy.estimate()), 1)
    # The environment orders by its own cost model; follow that order.
    order = CostedTask.of(task, ADDITIVE).order
    episode.costed = dataclasses.replace(episode.costed, order=order)
    encodings = policy.placing.encoder(raw_features(task))
    sums = torch.zeros(1, 3, encodings.shape[1])
    observation, info = env.reset(seed=0)
    while not episode.done:
        after = episode.costs_after()
        expected = policy.placing.logits(sums, encodings[episode.table], decide(episode, after))
        got = policy.logits({name: torch.from_numpy(v[None]).float() for name, v in observation.items()})
        np.testing.assert_allclose(got, expected, rtol=2e-3, atol=2e-3)
        device = int(rng.choice(np.flatnonzero(info["action_mask"])))
        sums[0, device] += encodings[episode.table]
        episode.place(np.array([device]), after)
        observation, _, _, _, info = env.step(device)


@pytest.mark.slow
def test_it_reaches_the_enumerated_optimum_of_a_small_task():
    task = make_task(8, 2, 1)
    env = make_env(tasks=[task])
    schedules = Schedules(policy_steps=30, episodes=64)
    model = DreamShard("DreamShardPolicy", env, schedules=schedules, seed=0).learn(10 * 10 * 8)
    _, optimum = best_by_enumeration(task, ADDITIVE)
    mean, _ = evaluate_policy(model, Monitor(env), n_eval_episodes=1)
    assert -100 * mean <= optimum * 1.05


def test_another_environment_is_refused():
    with pytest.raises(InputError, match="give an environment of shardgym"):
        DreamShard("DreamShardPolicy", "CartPole-v1")


def test_the_recurrent_policy_learns_fits_and_knows_its_devices():
    task = make_task(8, 2, 1, slack=2.0)
    options = TrainingOptions(updates=120, episodes=128, learning_rate=1e-3)
    planner = train_rnn([task], ADDITIVE, options)
    _, optimum = best_by_enumeration(task, ADDITIVE)
    assert step_of(task, ADDITIVE, planner.plan(task, 1.0)) <= optimum * 1.1
    packed = packed_task(devices=2, pieces=6, slack=1.02)
    planner.plan(packed, 5.0).validate(packed)
    with pytest.raises(InputError, match="trained on 2 devices and task 'case' has 3"):
        planner.plan(make_task(8, 3), 1.0)
    with pytest.raises(InputError, match="one number of devices"):
        train_rnn([task, make_task(8, 3)], ADDITIVE, options)
