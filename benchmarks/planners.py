"""Planners on held-out tasks at equal time: `python -m benchmarks.planners [--tasks N] [--parts a,b] [--seconds S]`.

Asserts that all price alike before anything is timed. Prints a table per part, then one JSON object as the last line.
"""

import argparse
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table

from benchmarks.planner_parts import learning, quality, scale
from benchmarks.price_identity import price_identity
from shardgym.agents.learning.pretrained import pretrained_agent
from shardgym.costmodel.shipped import shipped_cost

PARTS: dict[str, Callable[[argparse.Namespace], dict[str, Any]]] = {
    "training": learning.training,
    "schedule": learning.schedule,
    "agent": lambda arguments: quality.agent_greedy(shipped(), arguments.tasks, arguments.seconds),
    "portfolio": lambda arguments: quality.portfolio_to_bound(arguments.tasks, arguments.seconds),
    "rl_worth": lambda arguments: quality.rl_worth(shipped(), arguments.tasks),
    "scale": lambda arguments: scale.scale(shipped()),
    "measured": lambda arguments: quality.measured(shipped(), arguments.seconds),
    "ppo": lambda arguments: learning.ppo(shipped(), arguments.tasks),
}


def shipped() -> Any:
    """The shipped agent on the shipped cost network."""
    return pretrained_agent(shipped_cost())


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--tasks", type=int, default=8, help="held-out tasks per family")
    parser.add_argument("--seconds", type=float, default=1.0, help="budget of the portfolio")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--parts", default=",".join(PARTS))
    arguments = parser.parse_args(argv)
    torch.set_num_threads(arguments.threads)
    results: dict[str, Any] = {"price_identity": price_identity(shipped_cost())}
    console = Console()
    for part in arguments.parts.split(","):
        began = time.perf_counter()
        found = PARTS[part](arguments)
        results |= found
        console.print(shown(part, found, time.perf_counter() - began))
    print(json.dumps(results))


def shown(part: str, results: dict[str, Any], seconds: float) -> Table:
    """A part's numbers for the terminal."""
    table = Table(title=f"{part} ({seconds:.0f} s)")
    table.add_column("key")
    table.add_column("value", justify="right")
    for key, value in results.items():
        rows = value.items() if isinstance(value, dict) else [("", value)]
        for name, number in rows:
            text = f"{number:,.4g}" if isinstance(number, int | float | np.floating) else str(number)
            table.add_row(f"{key}.{name}" if name else key, text)
    return table


if __name__ == "__main__":
    main()
