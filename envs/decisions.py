"""What an episode decided, as a task and a placement."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.placement import Placement, Task
from shardgym.envs.encoding import EncodedTask


@dataclass(frozen=True, eq=False)
class Decisions:
    """The options and devices of one finished episode.

    Args:
        encoded: the task that was played.
        chosen: (T,) option of each table, rows in placing order.
        owner: (T, P) device of each piece.
    """

    encoded: EncodedTask
    chosen: NDArray[np.int16]
    owner: NDArray[np.int16]

    def __eq__(self, other: object) -> bool:
        return (
            isinstance(other, Decisions)
            and self.encoded.task == other.encoded.task
            and self.placement() == other.placement()
            and np.array_equal(self.chosen, other.chosen)
        )

    def options(self) -> tuple[int, ...]:
        """Number of the option chosen for each table, in the order of the task's tables."""
        rows = np.argsort(self.encoded.order)
        return tuple(int(c) for c in self.chosen[rows])

    def task(self) -> Task:
        """The task with every table in the form that was chosen for it: column shards apart, formats set."""
        task = self.encoded.task
        if len(self.encoded.bytes) == 1:
            return task
        return Task(
            tuple(part for parts in self._parts() for part in parts), task.device_memory, task.batch_size, task.name
        )

    def placement(self) -> Placement:
        """A device for each table of `task()`."""
        rows = np.argsort(self.encoded.order)
        pieces = self.encoded.pieces[self.chosen, np.arange(len(rows))]
        return Placement(tuple(int(d) for t in rows for d in self.owner[t, : pieces[t]]))

    def _parts(self) -> list[tuple]:
        parts = []
        for row in np.argsort(self.encoded.order):
            option = self.encoded.options[row][self.chosen[row]]
            assert option is not None, "only options that a table has are ever chosen"
            parts.append(option.parts())
        return parts
