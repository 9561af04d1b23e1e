"""Speed, memory and size of tensor-train tables: a training step beside nn.EmbeddingBag's and beside naive torch."""

import math
import os
import statistics
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn

from shardgym.embeddings.tables.fused_optimizers import SGD
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.embeddings.tensor_train.shapes import choose_format

ROWS, DIM, RANK, BATCH, BAG = 11_000_000, 64, 32, 4096, 10
# Balanced factors, 734x smaller; choose_format's own are smaller and faster still.
ROW_SHAPE, DIM_SHAPE = (220, 220, 228), (4, 4, 4)
LR = 1e-3
HIT_RATE = 0.9
CRITEO_KAGGLE = (1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306,
                 10, 5652, 2173, 4, 7046547, 18, 15, 286181, 105, 142572)  # fmt: skip
CRITEO_TERABYTE = (9980333, 36084, 17217, 7378, 20134, 3, 7112, 1442, 61, 9758201, 1333352, 313829, 10, 2208, 11156,
                   122, 4, 970, 14, 9994222, 7267859, 9946608, 415421, 12420, 101, 36)  # fmt: skip

Batches = list[Tensor]
OFFSETS = torch.arange(0, BATCH * BAG, BAG)


def zipf(exponent: float, generator: np.random.Generator) -> Callable[[], Tensor]:
    """Batches of ids (BATCH * BAG,), id k with probability ~ (k + 1) ** -exponent."""
    share = np.cumsum(np.arange(1, ROWS + 1, dtype=np.float64) ** -exponent)
    share /= share[-1]
    return lambda: torch.from_numpy(np.searchsorted(share, generator.random(BATCH * BAG)))


def id_streams(steps: int) -> dict[str, Batches]:
    """Batches of every kind of traffic measured."""
    generator = np.random.default_rng(0)
    shuffled = torch.from_numpy(generator.permutation(ROWS))
    head, steep = zipf(1.05, generator), zipf(1.2, generator)
    return {
        "uniform": [torch.from_numpy(generator.integers(0, ROWS, BATCH * BAG)) for _ in range(steps)],
        "zipf_random": [shuffled[head()] for _ in range(steps)],
        "zipf_sorted": [head() for _ in range(steps)],
        "zipf_1.2_sorted": [steep() for _ in range(steps)],
    }


@dataclass
class Contestant:
    """A way to hold the table: forward gives (BATCH, DIM), finish the rest of a training step."""

    forward: Callable[[Tensor], Tensor]
    finish: Callable[[Tensor], None]

    def step(self, ids: Tensor, upstream: Tensor) -> tuple[float, float]:
        """Seconds of one step, and of its forward."""
        start = time.perf_counter()
        out = self.forward(ids)
        middle = time.perf_counter()
        out.backward(upstream)
        self.finish(ids)
        return time.perf_counter() - start, middle - start


def embedding_bag() -> Contestant:
    """nn.EmbeddingBag with sparse gradients and SGD: what everybody has."""
    bag = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    optimizer = torch.optim.SGD(bag.parameters(), lr=LR)

    def finish(ids: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Contestant(lambda ids: bag(ids, OFFSETS), finish)


def tensor_train(**options) -> tuple[TTEmbeddingBag, Contestant]:
    """The table at hand with fused SGD: forward and backward are the whole step."""
    shapes = {"row_shape": ROW_SHAPE, "dim_shape": DIM_SHAPE} | options
    table = TTEmbeddingBag(ROWS, DIM, RANK, optimizer=SGD(LR), **shapes)
    return table, Contestant(lambda ids: table(ids, OFFSETS), lambda ids: None)


def naive_torch() -> Contestant:
    """Core slices gathered a look-up, multiplied by bmm, pooled; plain autograd and SGD."""
    table, _ = tensor_train()
    cores = [nn.Parameter(core.detach().clone()) for core in table.cores]
    optimizer = torch.optim.SGD(cores, lr=LR)
    p2, p3 = ROW_SHAPE[1:]

    def forward(ids: Tensor) -> Tensor:
        first = cores[0].squeeze(1)[ids // (p2 * p3)]  # (L, q1, r1)
        second = cores[1].flatten(2)[ids // p3 % p2]  # (L, r1, q2 r2)
        third = cores[2].squeeze(3)[ids % p3]  # (L, r2, q3)
        rows = torch.bmm(torch.bmm(first, second).reshape(len(ids), -1, RANK), third)
        return rows.reshape(BATCH, BAG, DIM).sum(1)

    def finish(ids: Tensor) -> None:
        optimizer.step()
        optimizer.zero_grad()

    return Contestant(forward, finish)


@dataclass(frozen=True)
class Race:
    """Contestants that run on the same batches: the quick ones on all, the slow ones on every `rarely`-th."""

    batches: Batches
    quick: dict[str, Contestant]
    slow: dict[str, Contestant]
    rarely: int = 8


def run_races(races: dict[str, Race], warm: int = 2) -> dict[str, dict[str, tuple[float, float]]]:
    """Median milliseconds of a step and of its forward. All races advance together: each median spans the run."""
    upstream = torch.randn(BATCH, DIM)
    times: dict[str, dict[str, list[tuple[float, float]]]] = {traffic: {} for traffic in races}
    for k in range(max(len(race.batches) for race in races.values())):
        for traffic, race in races.items():
            runners = race.quick | (race.slow if k % race.rarely == 0 else {})
            for name, contestant in runners.items():
                times[traffic].setdefault(name, []).append(contestant.step(race.batches[k], upstream))

    def median(steps: list[tuple[float, float]], which: int) -> float:
        return 1e3 * statistics.median(step[which] for step in steps[min(warm, len(steps) - 1) :])

    return {
        traffic: {name: (median(steps, 0), median(steps, 1)) for name, steps in found.items()}
        for traffic, found in times.items()
    }


def measure_speed(steps: int) -> tuple[dict[str, dict], dict[str, float]]:
    """Milliseconds by traffic and contestant; and of the cache: its rows, its hit rate."""
    streams = id_streams(steps)
    quick = {"embedding_bag": embedding_bag(), "tensor_train": tensor_train()[1]}
    quick["tensor_train_chosen_shape"] = tensor_train(row_shape=None, dim_shape=None)[1]
    slow = {"naive_torch": naive_torch()}
    races = {traffic: Race(batches, quick, slow) for traffic, batches in streams.items()}
    steep = streams["zipf_1.2_sorted"]
    table, cached = cached_table(steep)
    races["zipf_1.2_cached"] = Race(steep, {"embedding_bag": quick["embedding_bag"], "tensor_train": cached}, {})
    measured = run_races(races)
    stats = table.cache_stats()
    return measured, {"rows": stats.capacity, "hit_rate": stats.hit_rate}


def cached_table(batches: Batches) -> tuple[TTEmbeddingBag, Contestant]:
    """A table with a cache of the rows that answer 90% of the look-ups; its tracking is on, as in training."""
    ids, counts = torch.unique(torch.cat(batches), return_counts=True)
    covered = counts.sort(descending=True).values.cumsum(0) / counts.sum()
    table, contestant = tensor_train(cache_rows=int((covered < HIT_RATE).sum()) + 1)
    table.cache.tracker.add(ids, counts)
    table.cache_populate()
    return table, contestant


class OtherProcesses:
    """The share of the machine's processor time that other processes used, as /proc/stat has it."""

    def __init__(self) -> None:
        self._start = self._read()

    def _read(self) -> tuple[float, float, float]:
        ticks = [int(number) for number in Path("/proc/stat").read_text().split("\n", 1)[0].split()[1:9]]
        idle = ticks[3] + ticks[4]
        second = os.sysconf("SC_CLK_TCK")
        return (sum(ticks) - idle) / second, sum(ticks) / second, time.process_time()

    def share(self) -> float:
        """Since the start; near 0 on a quiet machine. Above 0.05, times with two threads are not to be trusted."""
        busy, whole, own = (now - then for now, then in zip(self._read(), self._start))
        return max(0.0, (busy - own) / whole)


def step_memory_mb() -> float:
    """Peak memory of one uniform step beyond what lay there before it, outputs included, in a fresh process."""
    code = "from benchmarks.tensor_train_speed import print_step_memory; print_step_memory()"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return float(done.stdout.strip().splitlines()[-1])


def print_step_memory() -> None:
    """Prints the growth of the peak resident set during one step, MB; a small step first loads what stays loaded."""
    table, contestant = tensor_train()
    table(torch.zeros(1, 1, dtype=torch.int64)).sum().backward()
    ids, upstream = torch.randint(0, ROWS, (BATCH * BAG,)), torch.randn(BATCH, DIM)
    with open("/proc/self/clear_refs", "w") as file:
        file.write("5")  # resets the peak
    before = _status_kb("VmRSS")
    contestant.step(ids, upstream)
    print((_status_kb("VmHWM") - before) / 1024)


def _status_kb(name: str) -> int:
    with open("/proc/self/status") as file:
        return next(int(line.split()[1]) for line in file if line.startswith(name))


def compression(sizes: tuple[int, ...], dim: int, rank: int, compressed: int = 7) -> float:
    """Numbers of all tables dense, over those held with the largest `compressed` in tensor-train form, with padding."""
    largest = sorted(sizes, reverse=True)
    compressed_numbers = sum(choose_format(rows, dim, rank).parameters() for rows in largest[:compressed])
    return sum(sizes) * dim / (compressed_numbers + sum(largest[compressed:]) * dim)


def compressions() -> dict[str, float]:
    """The published cases of TT-Rec: Criteo Kaggle (D = 16) and Terabyte (D = 64), the seven largest tables."""
    return {
        "kaggle_r32": compression(CRITEO_KAGGLE, 16, 32),
        "kaggle_r8": compression(CRITEO_KAGGLE, 16, 8),
        "terabyte_r8": compression(CRITEO_TERABYTE, 64, 8),
    }


def largest_padding() -> float:
    """The largest share of padding rows among the compressed Criteo tables."""
    sizes = sorted(CRITEO_KAGGLE, reverse=True)[:7]
    return max(math.prod(choose_format(rows, 16, 32).row_shape) / rows - 1 for rows in sizes)
