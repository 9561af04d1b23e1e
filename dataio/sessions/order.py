"""Which samples a rank's workers read and in which order: a function of seed, epoch and batch number alone."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np


@dataclass(frozen=True)
class RowGroup:
    """One row group of a clustered log: its part, its number there, and its samples."""

    part: int
    number: int
    samples: int


@dataclass(frozen=True)
class ReadOrder:
    """How a clustered log's row groups become batches.

    Args:
        row_groups: all of them.
        batch_size: samples B per batch.
        window: batches W whose samples are shuffled together; 1 keeps samples of a session together.
        world_size: ranks that share the log.
        seed: of all shuffles.
        shuffle: whether row groups and sessions come in a new order each epoch.
        drop_last: only whole batches, and as many on every rank; else every sample once.
    """

    row_groups: tuple[RowGroup, ...]
    batch_size: int
    window: int = 1
    world_size: int = 1
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = True

    def shard(self, epoch: int, rank: int, worker: int, workers: int) -> list[RowGroup]:
        """Row groups of one worker of one rank."""
        picked = self._order(epoch)[rank + self.world_size * worker :: self.world_size * workers]
        return [self.row_groups[at] for at in picked.tolist()]

    def _order(self, epoch: int) -> np.ndarray:
        if self.shuffle:
            return self.generator(epoch, 0).permutation(len(self.row_groups))
        return np.arange(len(self.row_groups))

    def generator(self, epoch: int, *purpose: int) -> np.random.Generator:
        """Randomness of one purpose in one epoch."""
        return np.random.default_rng([self.seed, epoch, *purpose])

    def batches(self, epoch: int, rank: int, workers: int) -> list[int]:
        """Batches of each of a rank's workers in an epoch."""
        sizes = np.array([group.samples for group in self.row_groups], dtype=np.int64)[self._order(epoch)]
        shards = self.world_size * workers
        samples = np.array([sizes[shard::shards].sum() for shard in range(shards)]).reshape(workers, self.world_size)
        if self.drop_last:
            return (samples.min(1) // self.batch_size).tolist()
        return (-(-samples[:, rank] // self.batch_size)).tolist()

    def window_rows(self, epoch: int, rank: int, worker: int, window: int, samples: int) -> range | np.ndarray:
        """Positions, in a worker's stream of `samples`, of the samples of a window in the order they are batched."""
        span = self.batch_size * self.window
        rows = range(window * span, min(samples, (window + 1) * span))
        if self.window == 1:
            return rows
        return self.generator(epoch, 1, rank, worker, window).permutation(np.array(rows))

    def session_order(self, epoch: int, group: RowGroup, counts: np.ndarray) -> np.ndarray | None:
        """Order of a row group's samples: its sessions, of `counts` samples, shuffled; None where they stay."""
        if not self.shuffle:
            return None
        starts = np.cumsum(counts) - counts
        sessions = self.generator(epoch, 2, group.part, group.number).permutation(counts.size)
        lengths = counts[sessions]
        ends = np.cumsum(lengths)
        return np.repeat(starts[sessions] - (ends - lengths), lengths) + np.arange(counts.sum())


def served(batches: Sequence[int], consumed: int) -> tuple[list[int], int]:
    """How far each worker is after `consumed` batches served in turn, and whose turn it is.

    A worker that has no batch left is passed over, as torch's DataLoader does.

    Args:
        batches: of each worker.
        consumed: between 0 and their sum.
    """
    rounds = 0
    while sum(min(count, rounds + 1) for count in batches) <= consumed and rounds < max(batches, default=0):
        rounds += 1
    done = [min(count, rounds) for count in batches]
    left = consumed - sum(done)
    for worker, count in enumerate(batches):
        if count > rounds:
            if left == 0:
                return done, worker
            done[worker] += 1
            left -= 1
    return done, 0
