"""A task as arrays: encoded once, then shared by every episode that plays it."""

from collections import OrderedDict
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.features import table_features
from shardgym.costmodel.placement import Task
from shardgym.costmodel.summed import SummedCostModel
from shardgym.embeddings.errors import InputError
from shardgym.envs.observation import Layout
from shardgym.envs.options import Option, Rules

ORDERS = ("cost", "bytes", "given")
"""Orders in which tables are placed: descending predicted cost alone (DreamShard), descending bytes, as given."""


@dataclass(frozen=True)
class EncodedTask:
    """The T tables of a task in placing order, each under C options.

    Args:
        task: what was encoded.
        order: (T,) index in `task.tables` of each row.
        options: T rows of C options, None where a table lacks one.
        features: (C, T, F) of one piece.
        states: (C, T, H) what one piece adds to its device's state.
        alone: (C, T) ms, predicted cost of one piece alone on a device.
        bytes: (C, T) memory of one piece.
        pieces: (C, T) pieces to place, 0 where the table lacks the option.
        price: (C, T) points of accuracy.
        budget: points that may be spent.
        worst_ms: ms that a failed episode is worth at best: every table alone, one after another.
    """

    task: Task
    order: NDArray[np.int64]
    options: tuple[tuple[Option | None, ...], ...]
    features: NDArray[np.float32]
    states: NDArray[np.float32]
    alone: NDArray[np.float32]
    bytes: NDArray[np.int64]
    pieces: NDArray[np.int64]
    price: NDArray[np.float64]
    budget: float
    worst_ms: float


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
    alone = np.stack([cost_model.single_table_costs(variant) for variant in variants])
    by = _placing_order(order, alone[0], table_bytes[0])
    return EncodedTask(
        task=task,
        order=by,
        options=tuple(options[t] for t in by),
        features=np.stack([table_features(v.tables, v.batch_size) for v in variants])[:, by],
        states=np.stack([cost_model.table_states(v) for v in variants])[:, by].astype(np.float32),
        alone=alone[:, by],
        bytes=table_bytes[:, by],
        pieces=pieces[:, by],
        price=price[:, by],
        budget=rules.budget(task),
        worst_ms=float((alone * pieces).max(axis=0).sum()),
    )


def _variant(task: Task, row: Sequence[Option | None]) -> Task:
    """The task with one piece of each table under an option."""
    return Task(tuple(option.piece for option in row if option), task.device_memory, task.batch_size, task.name)


def _placing_order(order: str, alone: NDArray[np.float32], table_bytes: NDArray[np.int64]) -> NDArray[np.int64]:
    if order == "given":
        return np.arange(len(alone))
    return np.argsort(-(alone if order == "cost" else table_bytes), kind="stable")


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


class TaskStore:
    """Encoded tasks in padded arrays, a slot each; the least recently used slot that no episode plays is given anew.

    Args:
        layout: sizes to pad to.
        rules, cost_model, order: how tasks are encoded.
        capacity: slots; more than the episodes that play at once.
    """

    BLOCK = 16  # slots that the arrays grow by

    def __init__(self, layout: Layout, rules: Rules, cost_model: SummedCostModel, order: str, capacity: int) -> None:
        self.layout, self.rules, self.cost_model, self.order, self.capacity = (
            layout, rules, cost_model, order, capacity,
        )  # fmt: skip
        self.encoded: list[EncodedTask] = []
        self.players: list[int] = []
        self._slots: OrderedDict[int, int] = OrderedDict()  # by id(task), least recently used first
        C, T, D = max(1, layout.options), layout.max_tables, layout.max_devices
        self.tables = np.zeros((0, C, T, layout.features), np.float32)
        self.states = np.zeros((0, C, T, 0), np.float32)  # (slots, C, T, H): H is known with the first task
        self.alone = np.zeros((0, C, T), np.float32)
        self.bytes = np.zeros((0, C, T), np.int64)
        self.memory = np.zeros((0, C, T), np.float32)  # shares of the task's largest device
        self.pieces = np.zeros((0, C, T), np.int64)
        self.price = np.zeros((0, C, T), np.float64)
        self.device_memory = np.zeros((0, D), np.int64)
        self.context = np.zeros(0, np.int64)  # tasks of one number agree in all that device costs may depend on
        self._contexts: dict[tuple[int, int], int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy's tasks are other objects than the original's.
        self._slots = OrderedDict((id(self.encoded[slot].task), slot) for slot in self._slots.values())

    def take(self, task: Task) -> int:
        """The slot of a task, encoded now if it is new; `give_back` ends its use."""
        slot = self._slots.get(id(task))
        if slot is None:
            self._check(task)
            encoded = encode(task, self.rules, self.cost_model, self.order)
            slot = self._free_slot()
            self._fill(slot, encoded)
        self._slots[id(task)] = slot
        self._slots.move_to_end(id(task))
        self.players[slot] += 1
        return slot

    def give_back(self, slot: int) -> None:
        """One episode no longer plays this slot's task."""
        self.players[slot] -= 1

    def _check(self, task: Task) -> None:
        for what, has, most in (
            ("tables", len(task.tables), self.layout.max_tables),
            ("devices", task.devices, self.layout.max_devices),
        ):
            if has > most:
                raise InputError(f"task {task.name!r} has {has} {what} and max_{what} is {most}; raise max_{what}")

    def _free_slot(self) -> int:
        if len(self.encoded) >= self.capacity:
            for key, slot in self._slots.items():
                if self.players[slot] == 0:
                    del self._slots[key]
                    return slot
        if len(self.encoded) == len(self.bytes):
            self._grow()
        self.players.append(0)
        return len(self.players) - 1

    def _grow(self) -> None:
        for name in ("tables", "states", "alone", "bytes", "memory", "pieces", "price", "device_memory", "context"):
            old = getattr(self, name)
            setattr(self, name, np.concatenate([old, np.zeros((self.BLOCK, *old.shape[1:]), old.dtype)]))

    def _fill(self, slot: int, encoded: EncodedTask) -> None:
        if not self.encoded:
            self.states = np.zeros((*self.states.shape[:-1], encoded.states.shape[-1]), np.float32)
        T, task = len(encoded.order), encoded.task
        for name in ("alone", "bytes", "pieces", "price", "states"):
            padded = getattr(self, name)[slot]
            padded[:] = 0
            padded[:, :T] = getattr(encoded, name)
        self.tables[slot] = 0
        self.tables[slot, :, :T] = encoded.features
        self.memory[slot] = self.bytes[slot] / max(task.device_memory)
        self.device_memory[slot] = -1  # less than any table needs, where there is no device
        self.device_memory[slot, : task.devices] = task.device_memory
        self.context[slot] = self._contexts.setdefault((task.batch_size, task.devices), len(self._contexts))
        if slot == len(self.encoded):
            self.encoded.append(encoded)
        else:
            self.encoded[slot] = encoded
