"""A task as arrays, encoded once for all the episodes that play it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.features import table_features
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.observation import Layout
from shardgym.envs.table_options import Option, Rules
from shardgym.problem.errors import InputError
from shardgym.problem.tasks import Task

ORDERS = ("cost", "bytes", "given")
"""Orders in which tables are placed: descending predicted cost alone (DreamShard), descending bytes, as given."""


@dataclass(frozen=True)
class EncodedTask:
    """The T tables of a task in placing order, each under C options.

    Args:
        task: what was encoded.
        order: (T,) index in `task.tables` of each row.
        rules: give the options of a table.
        features: (C, T, F) of one piece.
        states: (C, T, H) what one piece adds to its device's state.
        volumes: (C, T, V) what one piece adds to what its device sends.
        single_table_costs: (C, T) ms, predicted step with one piece alone, on a device.
        bytes: (C, T) memory of one piece.
        memory: (C, T) the same as a share of the task's largest device.
        pieces: (C, T) pieces to place, 0 where the table lacks the option.
        price: (C, T) points of accuracy.
        budget: points that may be spent.
        worst_ms: ms that a failed episode is worth at best: every table alone, one after another.
    """

    task: Task
    order: NDArray[np.int64]
    rules: Rules
    features: NDArray[np.float32]
    states: NDArray[np.float32]
    volumes: NDArray[np.float64]
    single_table_costs: NDArray[np.float32]
    bytes: NDArray[np.int64]
    memory: NDArray[np.float32]
    pieces: NDArray[np.int64]
    price: NDArray[np.float64]
    budget: float
    worst_ms: float

    def option(self, row: int, choice: int) -> Option:
        """How the table of a row is held under an option that it has."""
        option = self.rules.options(self.task.tables[self.order[row]])[choice]
        assert option is not None, "only options that a table has are ever chosen"
        return option

    def without_tables(self) -> "EncodedTask":
        """The same without features and states, which are most of it, for whoever has them elsewhere."""
        return replace(self, features=self.features[:, :0].copy(), states=self.states[:, :0].copy())


def encode(task: Task, rules: Rules, cost_model: SummedCostModel, order: str) -> EncodedTask:
    """Encode every table under every option.

    Raises:
        InputError: no placement can exist, for a reason that shows at once.
    """
    options = [rules.options(table) for table in task.tables]  # T rows of C
    price = np.array([[o.price if o else 0.0 for o in row] for row in options]).T
    pieces = np.array([[o.pieces if o else 0 for o in row] for row in options]).T
    variants = [_variant(task, [row[c] or row[0] for row in options]) for c in range(len(rules.names))]
    table_bytes = np.stack([variant.table_bytes for variant in variants])
    _require_room(task, table_bytes, pieces)
    single_table_costs = np.stack([cost_model.single_table_costs(variant) for variant in variants])
    by = _placing_order(order, single_table_costs[0], table_bytes[0])
    return EncodedTask(
        task=task,
        order=by,
        rules=rules,
        features=np.stack([table_features(v.tables, v.batch_size) for v in variants])[:, by],
        states=np.stack([cost_model.table_states(v) for v in variants])[:, by],
        volumes=np.stack([cost_model.table_volumes(v) for v in variants])[:, by],
        single_table_costs=single_table_costs[:, by],
        bytes=table_bytes[:, by],
        memory=(table_bytes[:, by] / max(task.device_memory)).astype(np.float32),
        pieces=pieces[:, by],
        price=price[:, by],
        budget=rules.budget(task),
        worst_ms=float((single_table_costs * pieces).max(axis=0).sum() / min(1.0, task.speeds.min())),
    )


def _variant(task: Task, row: Sequence[Option | None]) -> Task:
    """The task with one piece of each table under an option."""
    return replace(task, tables=tuple(option.piece for option in row if option))


def _placing_order(
    order: str, single_table_costs: NDArray[np.float32], table_bytes: NDArray[np.int64]
) -> NDArray[np.int64]:
    if order == "given":
        return np.arange(len(single_table_costs))
    return np.argsort(-(single_table_costs if order == "cost" else table_bytes), kind="stable")


def _require_room(task: Task, table_bytes: NDArray[np.int64], pieces: NDArray[np.int64]) -> None:
    """Refuse a task that does not fit under any options."""
    if len(table_bytes) == 1:
        task.require_room()
        return
    nothing = np.iinfo(np.int64).max
    piece = np.where(pieces > 0, table_bytes, nothing).min(axis=0)  # (T,)
    whole = np.where(pieces > 0, table_bytes * pieces, nothing).min(axis=0)
    largest = int(piece.argmax())
    if piece[largest] > max(task.device_memory):
        raise InputError(
            f"task {task.name!r}: table {task.tables[largest].name!r} takes {piece[largest]:,} bytes in its smallest "
            f"option and the largest device has {max(task.device_memory):,}; give more device memory"
        )
    if whole.sum() > sum(task.device_memory):
        raise InputError(
            f"task {task.name!r}: the tables take {whole.sum():,} bytes in their smallest options and the "
            f"{task.devices} devices have {sum(task.device_memory):,}; give more devices or memory"
        )


class TaskEncoder:
    """Encodes tasks for one layout, and keeps the last ones.

    Args:
        layout: sizes that a task must fit.
        rules, cost_model, order: how tasks are encoded.
        capacity: encoded tasks that are kept.
    """

    def __init__(self, layout: Layout, rules: Rules, cost_model: SummedCostModel, order: str, capacity: int) -> None:
        self.layout, self.rules, self.cost_model, self.order = layout, rules, cost_model, order
        self.capacity = capacity
        self._kept: OrderedDict[int, EncodedTask] = OrderedDict()  # by id(task), least recently used first

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy's tasks are other objects than the original's.
        self._kept = OrderedDict((id(encoded.task), encoded) for encoded in self._kept.values())

    def __call__(self, task: Task) -> EncodedTask:
        """The task as arrays.

        Raises:
            InputError: it is larger than the layout, or no placement of it can exist.
        """
        encoded = self._kept.pop(id(task), None)
        if encoded is None:
            self.layout.require_fit(len(task.tables), task.devices, task.name)
            encoded = encode(task, self.rules, self.cost_model, self.order)
            if len(self._kept) >= self.capacity:
                self._kept.popitem(last=False)
        self._kept[id(task)] = encoded
        return encoded
