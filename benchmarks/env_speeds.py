"""The environments' three speeds, for any version of the package: run in a process of its own by `benchmarks.envs`.

Speeds are steps per second of processor time on one thread, so that other work on the machine counts little.
"""

import json
import time
import warnings

import gymnasium as gym
import numpy as np
import torch

import shardgym  # noqa: F401  registers the environments

ENVS = 256
TASKS = 40


def placement_id() -> str:
    """The newest TablePlacement that is registered."""
    return max(name for name in gym.registry if name.startswith("shardgym/TablePlacement-"))


def single(steps: int = 4000) -> float:
    """Of one environment, resets included."""
    env = gym.make(placement_id(), tasks="dlrm-50x4")
    for number in range(TASKS):
        env.reset(options={"task": number})
    actions = np.random.default_rng(0).integers(4, size=steps)
    env.reset(seed=0)
    for action in actions[: steps // 4]:
        if env.step(action)[2]:
            env.reset()
    start = time.process_time()
    for action in actions:
        if env.step(action)[2]:
            env.reset()
    return steps / (time.process_time() - start)


def vector(reward: str, steps: int = 150) -> float:
    """Of the vector twin."""
    env = gym.make_vec(placement_id(), num_envs=ENVS, tasks="dlrm-50x4", reward=reward)
    for number in range(TASKS):
        env.reset(options={"task": number})
    actions = np.random.default_rng(0).integers(4, size=(steps, ENVS))
    env.reset(seed=0)
    start = time.process_time()
    for row in actions:
        env.step(row)
    return actions.size / (time.process_time() - start)


if __name__ == "__main__":
    torch.set_num_threads(1)
    warnings.simplefilter("ignore")
    print(json.dumps({"single": single(), "vector": vector("dense"), "sparse": vector("sparse")}))
