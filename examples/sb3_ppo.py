"""Train MaskablePPO on the suite and evaluate it on held-out tasks: `python examples/sb3_ppo.py [STEPS]`."""

import sys

from sb3_contrib import MaskablePPO
from sb3_contrib.common.maskable.evaluation import evaluate_policy

from shardgym.agents import make_vec

steps = int(sys.argv[1]) if len(sys.argv) > 1 else 200_000
train = make_vec("shardgym/TablePlacement-v1", 32, seed=0, tasks="dlrm-20x4")
test = make_vec("shardgym/TablePlacement-v1", 32, seed=1, tasks="dlrm-20x4/test", reward="sparse")

model = MaskablePPO("MultiInputPolicy", train, n_steps=40, batch_size=320, ent_coef=0.01, seed=0, verbose=1)
before, _ = evaluate_policy(model, test, n_eval_episodes=64)
model.learn(steps, progress_bar=False)
after, spread = evaluate_policy(model, test, n_eval_episodes=64)
print(f"held-out return: {before:.3f} before, {after:.3f} (standard deviation {spread:.3f}) after {steps:,} steps")
