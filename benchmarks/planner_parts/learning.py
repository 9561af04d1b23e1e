"""How fast agents learn: batched against unbatched training, DreamShard's schedule, PPO from a short script."""

import argparse
import time
from typing import Any

import gymnasium as gym
import numpy as np
import torch
from sb3_contrib import MaskablePPO
from stable_baselines3 import PPO

import shardgym  # noqa: F401  registers the environments
from shardgym.agents.learning.agent import Agent, decide
from shardgym.agents.learning.dreamshard import DreamShard
from shardgym.agents.learning.policy_network import PlacementPolicy
from shardgym.agents.learning.sb3_policies import MaskablePlacementPolicy, PlacementActorCriticPolicy
from shardgym.agents.learning.sb3_vec_env import make_vec
from shardgym.agents.learning.training import TrainingOptions, train_agent
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.costmodel.shipped import shipped_cost
from shardgym.envs.families import family

PPO_FAMILY = "dlrm-20x4"
PPO_STEPS = 60_000


def training(arguments: argparse.Namespace) -> dict[str, Any]:
    """Steps per second with learning, batched, and over an unbatched loop; medians of interleaved runs."""
    tasks = [family("dlrm-50x4").task(number, "train") for number in range(4)]
    model = shipped_cost()
    batched, looped = [], []
    for _ in range(3):
        statuses: list[Any] = []
        train_agent(tasks, model, TrainingOptions(updates=12, episodes=256), statuses.append)
        # The first updates pay for warm caches and allocations.
        placed = (statuses[-1].steps_per_second * statuses[-1].seconds) * 10 / 12
        batched.append(placed / (statuses[-1].seconds - statuses[1].seconds))
        looped.append(loop_steps_per_second(model, tasks[0]))
    fast, slow = float(np.median(batched)), float(np.median(looped))
    return {"training_steps_per_s": fast, "training_loop_steps_per_s": slow, "training_vs_loop": fast / slow}


def loop_steps_per_second(model: SummedCostModel, task: Any, episodes: int = 4) -> float:
    """One episode after another, every placed table encoded again at every step, as the published code does."""
    policy = PlacementPolicy(len(FEATURE_NAMES))
    optimizer = torch.optim.Adam(policy.parameters(), 1e-3)
    costed = CostedTask.of(task, model)
    D, began = task.devices, time.perf_counter()
    likelihoods, returns = [], []
    for _ in range(episodes):
        episode, likelihood = Construction(costed, 1), torch.zeros(())
        while not episode.done:
            features = torch.from_numpy(table_features(task.tables, task.batch_size))
            on_device = torch.from_numpy(episode.device_of[0][None, :] == np.arange(D)[:, None]).float()  # (D, T)
            encodings = policy.encoder(features)
            states = model.table_states(task)
            episode.sums[0] = on_device.numpy() @ states
            episode.compute = model.device_ms(episode.sums, task)
            after = episode.costs_after()
            logits = policy.logits((on_device @ encodings)[None], encodings[episode.table], decide(episode, after))
            drawn = torch.distributions.Categorical(logits=logits)
            action = drawn.sample()
            likelihood = likelihood + drawn.log_prob(action)[0]
            episode.place(action.numpy(), after)
        likelihoods.append(likelihood)
        returns.append(-float(episode.steps()[0]))
    value = torch.tensor(returns)
    optimizer.zero_grad()
    loss = -(torch.stack(likelihoods) * (value - value.mean()) / (value.std() + 1e-6)).mean()
    loss.backward()
    optimizer.step()
    return episodes * len(task.tables) / (time.perf_counter() - began)


def schedule(arguments: argparse.Namespace) -> dict[str, Any]:
    """DreamShard's published schedule at 50 tables and 4 devices, its measuring time taken off."""
    env = make_vec("shardgym/TablePlacement-v1", 10, seed=0, tasks="dlrm-50x4", cost_model=shipped_cost())
    model = DreamShard("DreamShardPolicy", env, seed=0)
    began = time.perf_counter()
    model.learn(10 * 10 * 50)  # ten iterations of ten placements of 50 tables
    seconds = time.perf_counter() - began - model.seconds_measuring
    return {"schedule_s": seconds, "schedule_measured_placements": len(model.measurements)}


def ppo(agent: Agent, tasks: int) -> dict[str, Any]:
    """PPO and MaskablePPO, as from a short script, over the agent on the same held-out tasks (mean of ratios)."""
    model = agent.cost_model
    held_out = family(PPO_FAMILY).all_tasks()[: 2 * tasks]
    ours = np.array([float(model.cost(task, agent.plan(task)).step) for task in held_out])
    results: dict[str, Any] = {}
    test = gym.make("shardgym/TablePlacement-v1", tasks=held_out, cost_model=model)
    for key, algorithm, policy in (
        ("ppo", PPO, PlacementActorCriticPolicy),
        ("maskable_ppo", MaskablePPO, MaskablePlacementPolicy),
    ):
        env = make_vec("shardgym/TablePlacement-v1", 32, seed=0, tasks=PPO_FAMILY, cost_model=model)
        began = time.perf_counter()
        learner = algorithm(policy, env, n_steps=100, batch_size=800, n_epochs=4, learning_rate=1e-3, gamma=1.0, seed=0)
        learner.learn(PPO_STEPS)
        results[f"{key}_training_s"] = time.perf_counter() - began
        theirs = np.array([_episode(learner, test, number) for number in range(len(held_out))])
        results[f"{key}_vs_agent"] = float((theirs / ours).mean())
    return results


def _episode(learner: Any, env: gym.Env, number: int) -> float:
    """Predicted step of the learner's placement of a task."""
    observation, info = env.reset(options={"task": number})
    done = False
    while not done:
        action, _ = learner.predict(observation, deterministic=True)
        observation, _, done, _, info = env.step(int(action))
    return float(info.get("step_ms", np.inf))
