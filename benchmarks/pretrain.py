"""Train the agent that ships with the package: `python -m benchmarks.pretrain [--minutes M]`.

On the training halves of the suite's families, under the shipped cost network. Deterministic for a number of updates.
"""

import argparse

import torch

from shardgym import workflow
from shardgym.agents.learning.pretrained import AGENT
from shardgym.agents.learning.training import TrainingOptions
from shardgym.cli.console import progress_bars
from shardgym.costmodel.shipped import shipped_cost
from shardgym.envs.families import family

FAMILIES = {
    "dlrm-20x4": 30, "dlrm-50x4": 30, "dlrm-100x4": 20, "dlrm-80x8": 30, "tight-20x4": 15, "tight-50x4": 15,
    "mixed-20x4": 15, "mixed-50x4": 15,
}  # fmt: skip
"""Training tasks of each family."""


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--updates", type=int, default=400)
    parser.add_argument("--episodes", type=int, default=128)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    tasks = [family(name).task(number, "train") for name, count in FAMILIES.items() for number in range(count)]
    options = TrainingOptions(updates=arguments.updates, episodes=arguments.episodes)
    with progress_bars() as progress:
        agent = workflow.train(tasks, shipped_cost(), options, progress)
    agent.trained_on += f", training halves of {', '.join(FAMILIES)}, shipped cost network"
    agent.save(AGENT)
    print(f"wrote {AGENT} ({AGENT.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
