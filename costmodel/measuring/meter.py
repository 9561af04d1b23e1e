"""Measuring what a group of tables costs on this machine: the fused forward, and the backward with its update.

A timed repeat looks up a batch of ids that the one before did not, as training does; the ops themselves are warm.
The median over the repeats is kept, with its spread. Before each group a fixed reference op is timed, so that the
machine's drift can be seen and divided out later.
"""

import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.measuring.allocator import steady_allocator
from shardgym.costmodel.measuring.designs import Design
from shardgym.costmodel.measuring.hardware import this_hardware
from shardgym.costmodel.measuring.samples import GroupSample, SampleFolder, one_hardware
from shardgym.dataio.index_draw import draw_batch
from shardgym.embeddings.shard import EmbeddingShard, OpBatch
from shardgym.embeddings.tables.table_batched import ReusedMemory
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

REFERENCE_TABLES = tuple(TableSpec(f"reference_{k}", rows=200_000, dim=16, pooling=4.0) for k in range(4))
REFERENCE_BATCH_SIZE = 512
CACHED_IDS = 500_000
"""A batch of more ids does not stay in a cache until its next turn, so that one batch will do."""


@public("shardgym.costmodel")
@dataclass(frozen=True)
class Timing:
    """How a group is timed: `repeats` times, or as often as fits into `seconds`, but `fewest` times at least.

    Args:
        warm_up: untimed repeats before.
        repeats: most timed repeats; quick groups reach it.
        batches: different batches of ids, used in turn.
        fewest: timed repeats of the slowest groups.
        seconds: of timing a group.
        noisy_spread: a group whose forward or backward spreads more is measured once more, and the better kept.
    """

    warm_up: int = 1
    repeats: int = 25
    batches: int = 2
    fewest: int = 3
    seconds: float = 0.05
    noisy_spread: float = 0.25


REFERENCE_TIMING = Timing(warm_up=2, repeats=7, batches=1, fewest=7)


@dataclass(frozen=True)
class Latency:
    """Median and spread (interquartile range over median) of the two phases, ms.

    Args:
        repeats: timed repeats that the medians are of.
        attempts: how often the group was measured before its spread was small, or was given up.
    """

    forward_ms: float
    backward_ms: float
    forward_spread: float
    backward_spread: float
    repeats: int
    attempts: int = 1

    @property
    def spread(self) -> float:
        """The larger of the two spreads."""
        return max(self.forward_spread, self.backward_spread)


@public("shardgym.costmodel")
class Meter:
    """Measures groups of tables on one device, laying them all in the same memory.

    On a CPU it first makes the process' allocator steady, see `steady_allocator`.
    """

    def __init__(self, device: str = "cpu", timing: Timing = Timing(), seed: int = 0) -> None:
        if device == "cpu":
            steady_allocator()
        self.device = device
        self.timing = timing
        self.hardware = this_hardware(device)
        self.memory = ReusedMemory(device)
        self.rng = np.random.default_rng(seed)
        self._reference = EmbeddingShard(REFERENCE_TABLES, device=device)
        self._reference_batch = self._batches(self._reference, REFERENCE_BATCH_SIZE, 1)

    def measure(self, tables: Sequence[TableSpec], batch_size: int) -> Latency:
        """Run the tables' fused look-up and update, and time both; once more where the spread is large."""
        shard = EmbeddingShard(tables, self.memory, self.device)
        return self.measure_shard(shard, self._batches(shard, batch_size, self.timing.batches))

    def measure_shard(self, shard: EmbeddingShard, batches: Sequence[list[OpBatch]]) -> Latency:
        """The same for a shard at hand, with the given batches in turn."""
        latency = self._latency(shard, batches)
        if latency.spread > self.timing.noisy_spread:
            again = self._latency(shard, batches)
            latency = replace(min(latency, again, key=lambda one: one.spread), attempts=2)
        return latency

    def _latency(self, shard: EmbeddingShard, batches: Sequence[list[OpBatch]]) -> Latency:
        times = self._timed(shard, batches, self.timing)
        (forward, backward), (forward_spread, backward_spread) = np.median(times, axis=0), _spread(times)
        return Latency(float(forward), float(backward), float(forward_spread), float(backward_spread), len(times))

    def reference_ms(self) -> float:
        """Median forward plus backward of the reference op, ms."""
        return float(np.median(self._timed(self._reference, self._reference_batch, REFERENCE_TIMING).sum(axis=1)))

    def _batches(self, shard: EmbeddingShard, batch_size: int, count: int) -> list[list[OpBatch]]:
        if batch_size * sum(table.pooling for table in shard.tables) > CACHED_IDS:
            count = 1
        drawn = (draw_batch(shard, batch_size, self.rng) for _ in range(count))
        return [[part.to(self.device) for part in batch] for batch in drawn]

    def _timed(self, shard: EmbeddingShard, batches: Sequence[list[OpBatch]], timing: Timing) -> NDArray[np.float64]:
        """(repeats, 2) ms of forward and backward."""
        times: list[tuple[float, float]] = []
        until = self._now() + timing.seconds
        while len(times) < timing.warm_up + timing.repeats:
            if len(times) >= timing.warm_up + timing.fewest and self._now() > until:
                break
            batch = batches[len(times) % len(batches)]
            start = self._now()
            pooled = shard.pool(batch)
            looked_up = self._now()
            grad = torch.full_like(pooled, 1e-3)
            ready = self._now()
            pooled.backward(grad)
            times.append((looked_up - start, self._now() - ready))
        return np.array(times[timing.warm_up :]) * 1e3

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _spread(times: NDArray[np.float64]) -> NDArray[np.float64]:
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75], axis=0)
    return (high - low) / np.maximum(middle, 1e-9)


def measure_design(
    design: Design,
    folder: SampleFolder,
    meter: Meter,
    seconds: float,
    groups: int | None = None,
    progress: Callable[[float, int], None] = lambda seconds_gone, samples: None,
) -> Iterator[GroupSample]:
    """Measure the design's next groups until the time is up or `groups` are in the folder; yields each new sample.

    Every sample is on disk before the next is begun. Groups already in the folder are not measured again.

    Raises:
        InputError: the folder holds samples of another design or another machine.
    """
    finished = _finished_groups(design, folder, meter)
    start = time.monotonic()
    index = 0
    while time.monotonic() - start < seconds and (groups is None or len(finished) < groups):
        while index in finished:
            index += 1
        tables, batch_size = design.group(index), design.batch_size_of(index)
        reference_ms = meter.reference_ms()
        latency = meter.measure(tables, batch_size)
        sample = GroupSample(
            index,
            tables,
            batch_size,
            reference_ms=reference_ms,
            hardware=meter.hardware,
            **vars(latency),
        )
        folder.append([sample])
        finished.add(index)
        progress(time.monotonic() - start, len(finished))
        yield sample
    folder.compact()


def _finished_groups(design: Design, folder: SampleFolder, meter: Meter) -> set[int]:
    """Indices that need no measuring, after a look at whether the folder is this design's and this machine's."""
    samples = folder.finished()
    for sample in samples[-1:]:
        if (sample.tables, sample.batch_size) != (design.group(sample.index), design.batch_size_of(sample.index)):
            raise InputError(
                f"{folder.path}: holds samples of another design (tables, batch size, memory or seed); measure into "
                "another folder, or with the options that this one was begun with"
            )
        one_hardware([*samples, replace(sample, hardware=meter.hardware)], folder.path)
    return {sample.index for sample in samples}
