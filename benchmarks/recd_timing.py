"""Timing of steps against each other: interleaved rounds in one process, medians, so that drift hits all alike."""

import os

# Idle OpenMP threads must not spin where other work shares the cores; torch reads this when it loads.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import statistics
import time
from collections.abc import Callable, Mapping

import torch

THREADS = 2
WARM_UP = 2


def medians(steps: Mapping[str, Callable[[], object]], rounds: int = 15, threads: int = THREADS) -> dict[str, float]:
    """Median milliseconds of each step; every round runs all of them once, in turn."""
    torch.set_num_threads(threads)
    for step in steps.values():
        for _ in range(WARM_UP):
            step()
    taken: dict[str, list[float]] = {name: [] for name in steps}
    for _ in range(rounds):
        for name, step in steps.items():
            start = time.perf_counter()
            step()
            taken[name].append(1000 * (time.perf_counter() - start))
    return {name: statistics.median(times) for name, times in taken.items()}


def speedup(before: Callable[[], object], after: Callable[[], object], rounds: int = 15) -> float:
    """How many times faster `after` is than `before`."""
    taken = medians({"before": before, "after": after}, rounds)
    return taken["before"] / taken["after"]
