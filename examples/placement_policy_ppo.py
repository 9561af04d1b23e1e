"""PPO with the placement policy, then at another size: `python examples/placement_policy_ppo.py [STEPS]`."""

import sys

from stable_baselines3 import PPO
from stable_baselines3.common.evaluation import evaluate_policy

from shardgym.agents import PlacementActorCriticPolicy, make_vec, transfer

ID = "shardgym/TablePlacement-v1"
steps = int(sys.argv[1]) if len(sys.argv) > 1 else 60_000
train = make_vec(ID, 32, seed=0, tasks="dlrm-20x4")
model = PPO(PlacementActorCriticPolicy, train, n_steps=100, batch_size=800, n_epochs=4, learning_rate=1e-3, gamma=1.0)
model.learn(steps).save("placement_ppo")
for tasks in ("dlrm-20x4/test", "dlrm-80x8/test"):
    held_out = make_vec(ID, 16, seed=1, tasks=tasks, reward="sparse")
    mean, spread = evaluate_policy(transfer(PPO, "placement_ppo", held_out), held_out, n_eval_episodes=32)
    print(f"{tasks}: step {-100 * mean:.1f} ms (standard deviation {100 * spread:.1f})")
