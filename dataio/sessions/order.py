"""Which samples a rank's workers read and in which order: a function of seed, epoch and what was read so far."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import numpy as np

from shardgym.problem.errors import InputError


@dataclass(frozen=True)
class RowGroup:
    """One row group of a clustered log: its part, its number there, and its samples."""

    part: int
    number: int
    samples: int


@dataclass(frozen=True)
class Stretch:
    """A part of an epoch that was read with one number of ranks and workers.

    Args:
        world_size: ranks that share the samples.
        workers: of each rank.
        batches: that each rank has handed out.
    """

    world_size: int
    workers: int
    batches: int = 0


Stretches = tuple[Stretch, ...]
"""How an epoch has been read so far; a new one begins where the ranks or workers change."""


@dataclass(frozen=True)
class Lane:
    """What one worker of one rank reads: positions of the epoch's samples, cut into batches.

    Args:
        pieces: rising, disjoint ranges of positions.
        batch_size: samples B of every batch but the last.
    """

    pieces: tuple[range, ...]
    batch_size: int

    @property
    def samples(self) -> int:
        """Positions in all pieces."""
        return sum(map(len, self.pieces))

    @property
    def batches(self) -> int:
        """Batches of the lane."""
        return -(-self.samples // self.batch_size)

    def batch(self, number: int) -> tuple[range, ...]:
        """Positions of one batch."""
        return cut(self.pieces, number * self.batch_size, (number + 1) * self.batch_size)

    def rest(self, batches: int) -> tuple[range, ...]:
        """Positions behind the first batches."""
        return cut(self.pieces, batches * self.batch_size, self.samples)


@dataclass(frozen=True)
class ReadOrder:
    """How a clustered log's samples become batches.

    An epoch has one order of all samples, whoever reads them. Ranks and their workers take runs of it that differ by
    one batch at most.

    Args:
        row_groups: all of them.
        batch_size: samples B per batch.
        window: batches W whose samples are shuffled together; 1 keeps samples of a session together.
        seed: of all shuffles.
        shuffle: whether row groups and sessions come in a new order each epoch.
        drop_last: only whole batches, and as many on every rank; else every sample once.
    """

    row_groups: tuple[RowGroup, ...]
    batch_size: int
    window: int = 1
    seed: int = 0
    shuffle: bool = False
    drop_last: bool = True

    @property
    def samples(self) -> int:
        """Samples of an epoch."""
        return sum(group.samples for group in self.row_groups)

    def generator(self, epoch: int, *purpose: int) -> np.random.Generator:
        """Randomness of one purpose in one epoch."""
        return np.random.default_rng([self.seed, epoch, *purpose])

    def row_group_order(self, epoch: int) -> list[RowGroup]:
        """The row groups in the order in which an epoch's samples come."""
        if not self.shuffle:
            return list(self.row_groups)
        return [self.row_groups[at] for at in self.generator(epoch, 0).permutation(len(self.row_groups)).tolist()]

    def session_order(self, epoch: int, group: RowGroup, sessions: int) -> np.ndarray | None:
        """Order of a row group's session rows; None where they stay."""
        if not self.shuffle:
            return None
        return self.generator(epoch, 2, group.part, group.number).permutation(sessions)

    def window_order(self, epoch: int, window: int) -> np.ndarray:
        """Positions of one window's samples in the order in which they are batched."""
        span = self.batch_size * self.window
        rows = np.arange(window * span, min(self.samples, (window + 1) * span))
        return self.generator(epoch, 1, window).permutation(rows)

    def batches(self, stretches: Stretches, rank: int) -> int:
        """Batches that a rank has in the last stretch, those that it has handed out included."""
        return sum(lane.batches for lane in self.lanes(stretches)[rank])

    def lanes(self, stretches: Stretches) -> list[list[Lane]]:
        """For each rank and worker of the last stretch, what it reads."""
        *before, last = stretches
        left = self._left(tuple(before))
        samples = sum(map(len, left))
        lanes, start = [], 0
        for rank in range(last.world_size):
            own = self._samples_of(samples, last.world_size, rank)
            counts = worker_batches(-(-own // self.batch_size), last.workers)
            sizes = [count * self.batch_size for count in counts]
            # The batch that comes last is the one that may be short.
            sizes[(sum(counts) - 1) % last.workers] -= sum(sizes) - own
            ends = np.cumsum([start, *sizes]).tolist()
            lanes.append([Lane(cut(left, a, b), self.batch_size) for a, b in pairwise(ends)])
            start = ends[-1]
        return lanes

    def _samples_of(self, samples: int, world_size: int, rank: int) -> int:
        """How many of the samples that are left a rank reads; all ranks as many batches, as far as the samples go."""
        per_step = self.batch_size * world_size
        if self.drop_last:
            return samples // per_step * self.batch_size
        whole = max(0, -(-samples // per_step) - 1)
        rest = samples - whole * per_step
        return whole * self.batch_size + rest // world_size + (rank < rest % world_size)

    def _left(self, stretches: Stretches) -> tuple[range, ...]:
        """Positions that no rank has handed out."""
        if not stretches:
            return (range(self.samples),)
        left = list(cut(self._left(stretches[:-1]), self._taken(stretches), self.samples))
        for lanes in self.lanes(stretches):
            done, _ = served([lane.batches for lane in lanes], stretches[-1].batches)
            left += [piece for lane, count in zip(lanes, done) for piece in lane.rest(count)]
        return joined(left)

    def _taken(self, stretches: Stretches) -> int:
        return sum(lane.samples for lanes in self.lanes(stretches) for lane in lanes)


def cut(pieces: Sequence[range], start: int, stop: int) -> tuple[range, ...]:
    """Entries `start` to `stop - 1` of ranges laid one after the other."""
    found, at = [], 0
    for piece in pieces:
        part = piece[max(0, start - at) : max(0, stop - at)]
        if part:
            found.append(part)
        at += len(piece)
    return tuple(found)


def joined(pieces: Sequence[range]) -> tuple[range, ...]:
    """Disjoint ranges in rising order, neighbours made one."""
    merged: list[range] = []
    for piece in sorted((piece for piece in pieces if piece), key=lambda each: each.start):
        if merged and merged[-1].stop == piece.start:
            merged[-1] = range(merged[-1].start, piece.stop)
        else:
            merged.append(piece)
    return tuple(merged)


def resumed(stretches: Stretches, world_size: int, workers: int) -> Stretches:
    """The stretches to read on in: the last one where ranks and workers are the same, else with a new one.

    Raises:
        InputError: ranks or workers have changed too often amid one epoch.
    """
    stretches = tuple(stretch for stretch in stretches if stretch.batches)
    if stretches and (stretches[-1].world_size, stretches[-1].workers) == (world_size, workers):
        return stretches
    if len(stretches) == MOST_STRETCHES:
        raise InputError(
            f"reader state: ranks or workers have changed {MOST_STRETCHES} times amid epoch; go on with "
            f"{stretches[-1].world_size} ranks of {stretches[-1].workers} workers until it ends"
        )
    return (*stretches, Stretch(world_size, workers))


MOST_STRETCHES = 64
"""Changes of ranks or workers amid one epoch, at most."""


def advanced(stretches: Stretches, batches: int) -> Stretches:
    """The same stretches with so many batches handed out in the last one."""
    return (*stretches[:-1], replace(stretches[-1], batches=batches))


def worker_batches(batches: int, workers: int) -> list[int]:
    """Batches of each of a rank's workers, which are served in turn."""
    return [batches // workers + (worker < batches % workers) for worker in range(workers)]


def served(batches: Sequence[int], consumed: int) -> tuple[list[int], int]:
    """How far each worker is after `consumed` batches served in turn, and whose turn it is.

    A worker that has no batch left is passed over, as torch's DataLoader does.

    Args:
        batches: of each worker.
        consumed: 0 or more; beyond their sum all are done.
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
