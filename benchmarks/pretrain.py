"""Train the agent that ships with the package: `python -m benchmarks.pretrain [--minutes M]`.

On the training halves of the suite's families, under the shipped cost network. Deterministic for a number of updates.
"""

import argparse

import torch

from shardgym.agents.pretrained import AGENT
from shardgym.agents.training import TrainingOptions, TrainingStatus, train_agent
from shardgym.console import bar
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
    with bar("train the shipped agent", total=options.updates) as shown:

        def show(status: TrainingStatus) -> None:
            shown.at(status.update, f"step {status.step_ratio:.4f}, {status.steps_per_second:,.0f} steps/s")

        agent = train_agent(tasks, shipped_cost(), options, show)
    agent.trained_on += f", training halves of {', '.join(FAMILIES)}, shipped cost network"
    agent.save(AGENT)
    print(f"wrote {AGENT} ({AGENT.stat().st_size:,} bytes)")


if __name__ == "__main__":
    main()
