"""What an episode decided, as a task and a placement."""

import numpy as np

from shardgym.costmodel.placement import Placement, Task
from shardgym.envs.episode import Board


class Decisions:
    """The options and devices of a finished episode.

    Args:
        board: of the episode once every table is placed.
    """

    def __init__(self, board: Board) -> None:
        self._board = board

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Decisions)
            and self._board.encoded.task == other._board.encoded.task
            and self.options() == other.options()
            and self.placement() == other.placement()
        )

    def __hash__(self) -> int:
        return hash(self.placement())

    def options(self) -> tuple[int, ...]:
        """Number of the option chosen for each table, in the order of the task's tables."""
        return tuple(int(c) for c in self._board.chosen[self._rows()])

    def task(self) -> Task:
        """The task with every table in the form that was chosen for it: column shards apart, formats set."""
        encoded = self._board.encoded
        if len(encoded.bytes) == 1:
            return encoded.task
        parts = []
        for row in self._rows():
            option = encoded.options[row][self._board.chosen[row]]
            assert option is not None, "only options that a table has are ever chosen"
            parts += option.parts()
        return Task(tuple(parts), encoded.task.device_memory, encoded.task.batch_size, encoded.task.name)

    def placement(self) -> Placement:
        """A device for each table of `task()`."""
        board, rows = self._board, self._rows()
        pieces = board.encoded.pieces[board.chosen, np.arange(len(rows))]
        return Placement(tuple(int(d) for row in rows for d in board.owner[row, : pieces[row]]))

    def _rows(self) -> np.ndarray:
        """The row of each of the task's tables."""
        return np.argsort(self._board.encoded.order)
