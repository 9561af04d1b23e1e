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

from shardgym.costmodel.groups import GroupDesign
from shardgym.costmodel.hardware import this_hardware
from shardgym.costmodel.samples import Sample, SampleFolder, one_hardware
from shardgym.dataio.index_draw import draw_indices
from shardgym.embeddings.errors import InputError
from shardgym.embeddings.shard import EmbeddingShard
from shardgym.embeddings.table_batched import ReusedMemory
from shardgym.embeddings.tables import TableSpec

REFERENCE_TABLES = tuple(TableSpec(f"reference_{k}", rows=200_000, dim=16, pooling=4.0) for k in range(4))
REFERENCE_BATCH_SIZE = 512


@dataclass(frozen=True)
class Timing:
    """How a group is timed."""

    warm_up: int = 2
    repeats: int = 7
    batches: int = 3
    """Different batches of ids, used in turn."""


@dataclass(frozen=True)
class Latency:
    """Median and spread (interquartile range over median) of the two phases, ms."""

    forward_ms: float
    backward_ms: float
    forward_spread: float
    backward_spread: float


class Meter:
    """Measures groups of tables on one device, laying them all in the same memory."""

    def __init__(self, device: str = "cpu", timing: Timing = Timing(), seed: int = 0) -> None:
        self.device = device
        self.timing = timing
        self.hardware = this_hardware(device)
        self.memory = ReusedMemory(device)
        self.rng = np.random.default_rng(seed)
        self._reference = EmbeddingShard(REFERENCE_TABLES, device=device)
        self._reference_batch = self._batches(REFERENCE_TABLES, REFERENCE_BATCH_SIZE, 1)

    def measure(self, tables: Sequence[TableSpec], batch_size: int) -> Latency:
        """Run the tables' fused look-up and update, and time both."""
        shard = EmbeddingShard(tables, self.memory, self.device)
        batches = self._batches(tables, batch_size, self.timing.batches)
        times = self._timed(shard, batches, self.timing.warm_up, self.timing.repeats)
        (forward, backward), (forward_spread, backward_spread) = np.median(times, axis=0), _spread(times)
        return Latency(float(forward), float(backward), float(forward_spread), float(backward_spread))

    def reference_ms(self) -> float:
        """Median forward plus backward of the reference op, ms."""
        return float(np.median(self._timed(self._reference, self._reference_batch, 1, 5).sum(axis=1)))

    def _batches(self, tables: Sequence[TableSpec], batch_size: int, count: int) -> list[tuple[torch.Tensor, ...]]:
        drawn = (draw_indices(tables, batch_size, self.rng) for _ in range(count))
        return [tuple(part.to(self.device) for part in batch) for batch in drawn]

    def _timed(
        self, shard: EmbeddingShard, batches: list[tuple[torch.Tensor, ...]], warm_up: int, repeats: int
    ) -> NDArray[np.float64]:
        """(repeats, 2) ms of forward and backward."""
        times = []
        for repeat in range(warm_up + repeats):
            indices, offsets = batches[repeat % len(batches)]
            start = self._now()
            pooled = shard(indices, offsets)
            looked_up = self._now()
            grad = torch.full_like(pooled, 1e-3)
            ready = self._now()
            pooled.backward(grad)
            times.append((looked_up - start, self._now() - ready))
        return np.array(times[warm_up:]) * 1e3

    def _now(self) -> float:
        if self.device == "cuda":
            torch.cuda.synchronize()
        return time.perf_counter()


def _spread(times: NDArray[np.float64]) -> NDArray[np.float64]:
    low, middle, high = np.quantile(times, [0.25, 0.5, 0.75], axis=0)
    return (high - low) / np.maximum(middle, 1e-9)


def measure_design(
    design: GroupDesign,
    folder: SampleFolder,
    meter: Meter,
    seconds: float,
    groups: int | None = None,
    progress: Callable[[float, int], None] = lambda seconds_gone, samples: None,
) -> Iterator[Sample]:
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
        tables = design.group(index)
        reference_ms = meter.reference_ms()
        latency = meter.measure(tables, design.batch_size)
        sample = Sample(
            index,
            tables,
            design.batch_size,
            repeats=meter.timing.repeats,
            reference_ms=reference_ms,
            hardware=meter.hardware,
            **vars(latency),
        )
        folder.append([sample])
        finished.add(index)
        progress(time.monotonic() - start, len(finished))
        yield sample
    folder.compact()


def _finished_groups(design: GroupDesign, folder: SampleFolder, meter: Meter) -> set[int]:
    """Indices that need no measuring, after a look at whether the folder is this design's and this machine's."""
    samples = folder.finished()
    for sample in samples[-1:]:
        if sample.tables != design.group(sample.index) or sample.batch_size != design.batch_size:
            raise InputError(
                f"{folder.path}: holds samples of another design (tables, batch size, memory or seed); measure into "
                "another folder, or with the options that this one was begun with"
            )
        one_hardware([*samples, replace(sample, hardware=meter.hardware)], folder.path)
    return {sample.index for sample in samples}
