"""Encoded tasks in padded arrays, shared by the episodes of a vector environment."""

from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np

from shardgym.envs.encoding import EncodedTask
from shardgym.envs.observation import Layout
from shardgym.envs.table_rows import NOTHING, TableRows
from shardgym.problem.tasks import Task
from shardgym.problem.topology import Topology

NO_SLOT = -1


class TaskStore:
    """Encoded tasks in padded arrays, a slot each; the least recently used slot that no episode plays is given anew.

    Args:
        encode: makes a task into arrays.
        layout: sizes to pad to.
        capacity: slots; more than the episodes that play at once.
    """

    BLOCK = 16  # slots that the arrays grow by

    def __init__(self, encode: Callable[[Task], EncodedTask], layout: Layout, capacity: int) -> None:
        self.encode, self.layout, self.capacity = encode, layout, capacity
        self.encoded: list[EncodedTask] = []
        self.players: list[int] = []
        self._slots: OrderedDict[int, int] = OrderedDict()  # by id(task), least recently used first
        C, T, D = max(1, layout.options), layout.max_tables, layout.max_devices
        self.rows = TableRows(layout.features)
        self.index = np.full((0, C, T), NOTHING)  # row in `rows` of each table under each option
        self.single_table_costs = np.zeros((0, C, T), np.float32)
        self.volumes = np.zeros((0, C, T, 0))  # V is known with the first task
        self.bytes = np.zeros((0, C, T), np.int64)
        self.memory = np.zeros((0, C, T), np.float32)  # shares of the task's largest device
        self.pieces = np.zeros((0, C, T), np.int64)
        self.price = np.zeros((0, C, T), np.float64)
        self.device_memory = np.zeros((0, D), np.int64)
        self.tables_of, self.devices_of = np.zeros(0, np.int64), np.zeros(0, np.int64)
        self.budget, self.worst_ms = np.zeros(0), np.zeros(0)
        self.context = np.zeros(
            0, np.int64
        )  # tasks of one number agree in all that a price depends on beside the tables
        self._contexts: dict[tuple[int, int, Topology | None], int] = {}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        # A copy's tasks are other objects than the original's.
        self._slots = OrderedDict((id(self.encoded[slot].task), slot) for slot in self._slots.values())

    def take(self, task: Task) -> int:
        """The slot of a task, encoded now if it is new; `give_back` ends its use."""
        slot = self._slots.get(id(task))
        if slot is None:
            encoded = self.encode(task)
            slot = self._free_slot()
            self._fill(slot, encoded)
            self._slots[id(task)] = slot
        else:
            self._slots.move_to_end(id(task))
        self.players[slot] += 1
        return slot

    def give_back(self, slot: int) -> None:
        """One episode no longer plays this slot's task."""
        if slot != NO_SLOT:
            self.players[slot] -= 1

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
        for name, array in list(vars(self).items()):
            if isinstance(array, np.ndarray):
                more = np.zeros((self.BLOCK, *array.shape[1:]), array.dtype)
                setattr(self, name, np.concatenate([array, more]))

    def _fill(self, slot: int, encoded: EncodedTask) -> None:
        T, task = len(encoded.order), encoded.task
        if self.volumes.shape[-1] != encoded.volumes.shape[-1]:
            self.volumes = np.zeros((*self.bytes.shape, encoded.volumes.shape[-1]))
        for name in ("single_table_costs", "volumes", "bytes", "memory", "pieces", "price"):
            padded = getattr(self, name)[slot]
            padded[:] = 0
            padded[:, :T] = getattr(encoded, name)
        self.tables_of[slot], self.devices_of[slot] = T, task.devices
        self.budget[slot], self.worst_ms[slot] = encoded.budget, encoded.worst_ms
        self.device_memory[slot] = -1  # less than any table needs, where there is no device
        self.device_memory[slot, : task.devices] = task.device_memory
        self.context[slot] = self._contexts.setdefault(
            (task.batch_size, task.devices, task.topology), len(self._contexts)
        )
        self._fill_rows(slot, encoded)
        kept = encoded.without_tables()
        if slot == len(self.encoded):
            self.encoded.append(kept)
        else:
            self.encoded[slot] = kept

    def _fill_rows(self, slot: int, encoded: EncodedTask) -> None:
        """Point to the rows of the task's tables, and give up those of the slot's task before."""
        index, context = self.index[slot], int(self.context[slot])
        before = index[index != NOTHING].tolist()
        index[:] = NOTHING
        for choice, (features, states) in enumerate(zip(encoded.features, encoded.states)):
            for row, t in enumerate(encoded.order.tolist()):
                place = (choice, context)
                index[choice, row] = self.rows.use(encoded.task.tables[t], place, features[row], states[row])
        self.rows.release(before)
