"""Whether a cost model finds the best of many placements: ranked by it, then measured."""

from dataclasses import dataclass, replace

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.measuring.meter import Meter, Timing
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.dataio.index_draw import bag_lengths, draw_ids
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.embeddings.shard import EmbeddingShard, OpBatch
from shardgym.problem.costs import COMPUTE
from shardgym.problem.tasks import Task

DEVICES = 4
PLACEMENTS = 30
SEED = 90_000
"""Of the tasks' tables; the shipped measurements drew theirs from other seeds."""
TIMING = Timing(warm_up=1, repeats=3, fewest=3, batches=1, noisy_spread=0.25)
ROUNDS = 2
"""All placements are measured so often, one after another, and their times averaged."""


@dataclass(frozen=True)
class Ranked:
    """One task's placements: predicted and measured forward and backward step ms, (PLACEMENTS,) each."""

    predicted: NDArray[np.float64]
    measured: NDArray[np.float64]

    @property
    def ratio(self) -> float:
        """Measured cost of the one predicted best over the best measured."""
        return float(self.measured[self.predicted.argmin()] / self.measured.min())


@dataclass(frozen=True)
class MeasuredTask:
    """A task of unseen tables, its placements (PLACEMENTS, T), and their measured step ms (PLACEMENTS,)."""

    task: Task
    device_of: NDArray[np.int64]
    measured: NDArray[np.float64]

    def ranked(self, model: SummedCostModel) -> Ranked:
        """The same with what a model predicts."""
        phases = model.costs(self.task, self.device_of).phases[..., COMPUTE]  # (PLACEMENTS, D, 2)
        return Ranked(phases.max(axis=1).sum(axis=-1), self.measured)


def measure_task(number: int, meter: Meter) -> MeasuredTask:
    """Measure the placements of one task."""
    rng = np.random.default_rng([SEED, number])
    tables = dlrm_like(int(rng.integers(12, 25)), SEED + number, row_scale=0.02)
    tables = tuple(replace(table, dtype="fp16" if number % 2 else "fp32") for table in tables)
    task = Task(tables, (2**40,) * DEVICES, int(rng.choice([512, 1024])))
    device_of = diverse_placements(task, rng)
    batch = [_lists(table, task.batch_size, rng) for table in tables]
    rounds = [_measured_steps(task, device_of, batch, meter) for _ in range(ROUNDS)]
    return MeasuredTask(task, device_of, np.mean(rounds, axis=0))


def diverse_placements(task: Task, rng: np.random.Generator) -> NDArray[np.int64]:
    """(PLACEMENTS, T) device_of: largest first onto the lightest device, by many ideas of size; a fifth are random."""
    device_of = []
    for k in range(PLACEMENTS):
        if k % 5 == 4:
            device_of.append(rng.integers(DEVICES, size=len(task.tables)))
            continue
        powers = rng.uniform(0, 1.2, size=3)
        size = np.array(
            [t.dim ** powers[0] * (t.pooling + 0.1) ** powers[1] * t.rows ** (powers[2] / 4) for t in task.tables]
        )
        device_of.append(_largest_first(size * rng.lognormal(0, 0.2, size=len(size))))
    return np.array(device_of)


def _largest_first(size: NDArray[np.float64]) -> NDArray[np.int64]:
    loads, device_of = np.zeros(DEVICES), np.zeros(len(size), dtype=np.int64)
    for t in np.argsort(-size):
        device_of[t] = loads.argmin()
        loads[device_of[t]] += size[t]
    return device_of


def _lists(table, batch_size: int, rng: np.random.Generator) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ids and lengths of one table: drawn once a task, so that placements differ in nothing else."""
    lengths = bag_lengths(table.pooling, batch_size, rng)
    return draw_ids(table, int(lengths.sum()), rng), lengths


def _measured_steps(task: Task, device_of: NDArray[np.int64], lists: list, meter: Meter) -> NDArray[np.float64]:
    """Slowest forward plus slowest backward over the devices of each placement, ms; equal shards are measured once."""
    known: dict[tuple[int, ...], tuple[float, float]] = {(): (0.0, 0.0)}
    steps = []
    for row in device_of:
        shares = [tuple(np.flatnonzero(row == device).tolist()) for device in range(DEVICES)]
        for members in shares:
            if members not in known:
                shard = EmbeddingShard([task.tables[t] for t in members], meter.memory)
                latency = meter.measure_shard(shard, [[_joined([lists[t] for t in members])]])
                known[members] = latency.forward_ms, latency.backward_ms
        steps.append(np.max([known[members] for members in shares], axis=0).sum())
    return np.array(steps)


def _joined(lists: list) -> OpBatch:
    ids = np.concatenate([own for own, _ in lists])
    offsets = np.concatenate([[0], np.cumsum(np.concatenate([lengths for _, lengths in lists]))])
    return OpBatch(torch.from_numpy(ids), torch.from_numpy(offsets))
