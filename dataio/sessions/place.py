"""Where a reading stands, in memory that a data set's worker processes share with the process that started them."""

import warnings
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch

from shardgym.dataio.sessions.order import MOST_STRETCHES, Stretch, Stretches, advanced, resumed
from shardgym.problem.errors import InputError

STATE_VERSION = 2
_MOST_WORKERS = 1024


@dataclass(frozen=True)
class ReadPlace:
    """A place in the epochs.

    Args:
        epoch: which one.
        stretches: how it has been read so far.
    """

    epoch: int = 0
    stretches: Stretches = ()

    def under(self, world_size: int, workers: int) -> "ReadPlace":
        """The same place for so many ranks and workers (`order.resumed`)."""
        return replace(self, stretches=resumed(self.stretches, world_size, workers))

    def after(self, batches: int) -> "ReadPlace":
        """The place at which so many batches of the last stretch are handed out."""
        return replace(self, stretches=advanced(self.stretches, batches))

    @property
    def consumed(self) -> int:
        """Batches handed out in the last stretch."""
        return self.stretches[-1].batches if self.stretches else 0

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` takes them."""
        stretches = [[each.world_size, each.workers, each.batches] for each in self.stretches if each.batches]
        return {"version": STATE_VERSION, "epoch": self.epoch, "stretches": stretches}

    @classmethod
    def from_dict(cls, state: Mapping[str, Any]) -> "ReadPlace":
        """The place that `to_dict` wrote.

        Raises:
            InputError: a state of another version, or that is none.
        """
        if state.get("version") != STATE_VERSION:
            raise InputError(
                f"reader state: version {state.get('version')} is not {STATE_VERSION}; start the epoch again"
            )
        try:
            return cls(int(state["epoch"]), tuple(Stretch(*map(int, each)) for each in state["stretches"]))
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"reader state: cannot be read ({error!r}); start the epoch again") from None


class SharedPlace:
    """The place at which the next pass begins, seen by worker processes that are started or kept alive."""

    def __init__(self) -> None:
        # How often it was set, epoch, number of stretches, and the stretches; then what each worker has read last.
        self._numbers = torch.zeros(3 + 3 * (MOST_STRETCHES + 1), dtype=torch.int64).share_memory_()
        self._read_by = torch.full((_MOST_WORKERS,), -1, dtype=torch.int64).share_memory_()

    def set(self, place: ReadPlace) -> None:
        """Let the next pass begin here."""
        flat = [number for each in place.stretches for number in (each.world_size, each.workers, each.batches)]
        numbers = torch.tensor([int(self._numbers[0]) + 1, place.epoch, len(place.stretches), *flat])
        self._numbers[: len(numbers)] = numbers

    def was_read(self) -> bool:
        """Whether a worker has begun a pass since the place was set."""
        return bool((self._read_by == self._numbers[0]).any())

    def read(self, worker: int, shuffled: bool) -> ReadPlace:
        """Where a worker's pass begins.

        A worker that reads the same place twice was started by a loader that tells the data set nothing: that is an
        error amid an epoch, and repeats the order, with a warning, where the samples are shuffled.

        Raises:
            InputError: the place lies amid an epoch and was read before.
        """
        times_set, epoch, count = self._numbers[:3].tolist()
        flat = self._numbers[3 : 3 + 3 * count].tolist()
        again = int(self._read_by[worker % _MOST_WORKERS]) == times_set
        self._read_by[worker % _MOST_WORKERS] = times_set
        place = ReadPlace(epoch, tuple(Stretch(*flat[3 * k : 3 * k + 3]) for k in range(count)))
        if again and place.consumed:
            raise InputError(
                "the rest of a resumed epoch is asked for twice; call set_epoch with the next epoch before each pass, "
                "or read through SessionLoader"
            )
        if again and shuffled:
            warnings.warn(
                f"epoch {epoch} is read again in the same order; call set_epoch before each pass, or read through "
                "SessionLoader",
                stacklevel=3,
            )
        return place
