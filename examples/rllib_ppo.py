"""Train RLlib's PPO on the suite: `pip install 'shardgym[rllib]'`, then `python examples/rllib_ppo.py [UPDATES]`.

RLlib's default networks take flat observations, so the Dict is flattened; they do not see the masks, and an illegal
action ends an episode at a penalty. dlrm-20x4 leaves room everywhere.
"""

import sys

import gymnasium as gym
from ray.rllib.algorithms.ppo import PPOConfig
from ray.tune.registry import register_env

import shardgym  # noqa: F401  registers the ids

updates = int(sys.argv[1]) if len(sys.argv) > 1 else 20


def make(config):
    """One flattened environment."""
    return gym.wrappers.FlattenObservation(gym.make("shardgym:shardgym/TablePlacement-v1", **config))


register_env("table-placement", make)
config = (
    PPOConfig()
    .environment("table-placement", env_config={"tasks": "dlrm-20x4"})
    .env_runners(num_env_runners=0, num_envs_per_env_runner=4)
    .training(train_batch_size_per_learner=400, minibatch_size=100, num_epochs=4, gamma=1.0)
)
algorithm = config.build_algo()
for update in range(updates):
    result = algorithm.train()
    print(f"update {update}: mean return {result['env_runners']['episode_return_mean']:.3f}")
algorithm.stop()
