"""Features and states of tables, once for each table however many tasks hold it."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

NOTHING = 0
"""The row of padding: zeros."""


class TableRows:
    """Rows of two arrays, counted by use and given anew when nobody uses them.

    A row is known by a table and by the context that its state depends on.

    Args:
        features: F.
    """

    def __init__(self, features: int) -> None:
        self.features = np.zeros((1, features), np.float32)  # (rows, F)
        self.states = np.zeros((1, 0), np.float32)  # (rows, H): H is known with the first state
        self._known: dict[tuple[int, Any], int] = {}
        self._keys: list[tuple[Any, Any] | None] = [None]  # the object itself, so that its id stays its own
        self._uses = [1]
        self._free: list[int] = []

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy's objects are others than the original's.
        self._known = {(id(key[0]), key[1]): row for row, key in enumerate(self._keys) if key is not None}

    def use(self, table: Any, context: Any, features: NDArray[np.float32], state: NDArray[np.float32]) -> int:
        """The row of a table in a context, filled with its features (F,) and state (H,) where it is new."""
        row = self._known.get((id(table), context))
        if row is None:
            row = self._free.pop() if self._free else self._new_row(len(state))
            self._known[id(table), context] = row
            self._keys[row] = (table, context)
            self.features[row], self.states[row] = features, state
        self._uses[row] += 1
        return row

    def release(self, rows: list[int]) -> None:
        """End one use of each of the rows."""
        for row in rows:
            self._uses[row] -= 1
            key = self._keys[row]
            if self._uses[row] == 0 and key is not None:
                del self._known[id(key[0]), key[1]]
                self._keys[row] = None
                self._free.append(row)

    def _new_row(self, width: int) -> int:
        if self.states.shape[1] != width:
            self.states = np.zeros((len(self.states), width), np.float32)
        row = len(self._keys)
        self._keys.append(None)
        self._uses.append(0)
        if row == len(self.features):
            more = max(64, row // 4)
            self.features = np.concatenate([self.features, np.zeros((more, self.features.shape[1]), np.float32)])
            self.states = np.concatenate([self.states, np.zeros((more, width), np.float32)])
        return row
