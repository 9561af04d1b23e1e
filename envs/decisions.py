"""What an episode decided, as a task and a placement."""

from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from shardgym.envs.encoding import EncodedTask
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task


@public("shardgym.envs")
class Decisions:
    """The options and devices of a finished episode.

    Args:
        encoded: the task.
        chosen: (T or more,) options, rows in placing order.
        device_of: (T * P or more,) devices.
        max_pieces: P.
    """

    def __init__(
        self, encoded: EncodedTask, chosen: NDArray[np.int16], device_of: NDArray[np.int16], max_pieces: int
    ) -> None:
        self._encoded, self._chosen, self._owner, self._max_pieces = encoded, chosen, device_of, max_pieces

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Decisions)
            and self._encoded.task == other._encoded.task
            and self.options() == other.options()
            and self.placement() == other.placement()
        )

    def __hash__(self) -> int:
        return hash(self.placement())

    def options(self) -> tuple[int, ...]:
        """Number of the option chosen for each table, in the order of the task's tables."""
        return tuple(int(c) for c in self._chosen[self._rows()])

    def task(self) -> Task:
        """The task with every table in the form that was chosen for it: column shards apart, formats set."""
        encoded = self._encoded
        if len(encoded.bytes) == 1:
            return encoded.task
        parts: list[TableSpec] = []
        for row in self._rows():
            parts += encoded.option(row, int(self._chosen[row])).parts()
        return replace(encoded.task, tables=tuple(parts))

    def placement(self) -> Placement:
        """A device for each table of `task()`."""
        rows = self._rows()
        pieces = self._encoded.pieces[self._chosen[: len(rows)], np.arange(len(rows))]
        device_of = self._owner[: len(rows) * self._max_pieces].reshape(len(rows), -1)  # (T * P,) -> (T, P)
        return Placement.of(device for row in rows for device in device_of[row, : pieces[row]])

    def _rows(self) -> np.ndarray:
        """The row of each of the task's tables."""
        return np.argsort(self._encoded.order)
