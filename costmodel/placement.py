"""What is decided and what it costs: Task, Placement, StepCost, and the protocol of cost models."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from shardgym.embeddings.errors import InputError
from shardgym.embeddings.tables import TableSpec

PHASES = ("forward", "forward_comm", "backward_comm", "backward")
"""The parts of a training step, each ended by a barrier across devices."""

UNPLACED = -1


@dataclass(frozen=True)
class Task:
    """Tables to place on devices.

    Args:
        tables: T tables (or column shards), names unique.
        device_memory: bytes of memory of each of the D devices; they may differ.
        batch_size: bags a step over all devices (the global batch), >= 1.
        name: for reports.

    Raises:
        InputError: names the field that does not fit.
    """

    tables: tuple[TableSpec, ...]
    device_memory: tuple[int, ...]
    batch_size: int
    name: str = "task"

    def __post_init__(self) -> None:
        if not self.tables:
            raise InputError(f"task {self.name!r}: tables is empty; give at least one table")
        twice = [name for name, count in Counter(table.name for table in self.tables).items() if count > 1]
        if twice:
            raise InputError(f"task {self.name!r}: table name {twice[0]!r} is given twice; rename one of them")
        if not self.device_memory or min(self.device_memory) <= 0:
            raise InputError(f"task {self.name!r}: device_memory is {self.device_memory}; give bytes for each device")
        if self.batch_size < 1:
            raise InputError(f"task {self.name!r}: batch_size is {self.batch_size}; give at least 1")

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return len(self.device_memory)

    @cached_property
    def table_bytes(self) -> NDArray[np.int64]:
        """Memory of each table, (T,) bytes."""
        return np.array([table.bytes() for table in self.tables], dtype=np.int64)

    def require_room(self) -> None:
        """Refuse a task that no placement can satisfy for a reason that shows at once.

        Raises:
            InputError: a table is larger than every device, or all tables than all devices.
        """
        largest = int(self.table_bytes.argmax())
        if self.table_bytes[largest] > max(self.device_memory):
            raise InputError(
                f"task {self.name!r}: table {self.tables[largest].name!r} takes {self.table_bytes[largest]:,} bytes "
                f"and the largest device has {max(self.device_memory):,}; give more device memory, or compress or "
                "split the table"
            )
        if self.table_bytes.sum() > sum(self.device_memory):
            raise InputError(
                f"task {self.name!r}: the tables take {self.table_bytes.sum():,} bytes and the {self.devices} devices "
                f"have {sum(self.device_memory):,}; give more devices or memory, or compress tables"
            )


@dataclass(frozen=True)
class Placement:
    """A device for each table of a task, in the order of `task.tables`."""

    devices: tuple[int, ...]

    def validate(self, task: Task) -> None:
        """Check that every table has a device of the task and that every device has room.

        Raises:
            InputError: names the first table or device that does not fit.
        """
        if len(self.devices) != len(task.tables):
            raise InputError(
                f"placement: has {len(self.devices)} devices for the {len(task.tables)} tables of {task.name!r}; "
                "give one device a table"
            )
        for table, device in zip(task.tables, self.devices):
            if not 0 <= device < task.devices:
                raise InputError(
                    f"placement: table {table.name!r} is on device {device}; {task.name!r} has devices 0 to "
                    f"{task.devices - 1}"
                )
        used = self.memory(task)
        for device, (bytes_used, capacity) in enumerate(zip(used, task.device_memory)):
            if bytes_used > capacity:
                raise InputError(
                    f"placement: device {device} holds {bytes_used:,} bytes and has {capacity:,}; move tables away "
                    "or give it more memory"
                )

    def memory(self, task: Task) -> NDArray[np.int64]:
        """Bytes used on each device, (D,)."""
        used = np.zeros(task.devices, dtype=np.int64)
        np.add.at(used, np.array(self.devices), task.table_bytes)
        return used

    def tables_on(self, device: int) -> tuple[int, ...]:
        """Indices of the tables on one device."""
        return tuple(t for t, owner in enumerate(self.devices) if owner == device)

    def to_json(self, task: Task) -> dict[str, Any]:
        """The placement by table name, as `from_json` reads it."""
        return {"task": task.name, "devices": {t.name: int(d) for t, d in zip(task.tables, self.devices)}}

    @classmethod
    def from_json(cls, record: dict[str, Any], task: Task) -> "Placement":
        """Read a placement of this task's tables and validate it.

        Raises:
            InputError: when a table is missing or unknown, or the placement is not legal.
        """
        by_name = record.get("devices")
        if not isinstance(by_name, dict):
            raise InputError("placement: field 'devices' is missing; give an object from table name to device")
        names = [table.name for table in task.tables]
        odd = sorted(set(by_name) ^ set(names))
        if odd:
            raise InputError(
                f"placement: table {odd[0]!r} is in only one of the plan and the task; plan this task again"
            )
        placement = cls(tuple(by_name[name] for name in names))
        placement.validate(task)
        return placement


@dataclass(frozen=True)
class StepCost:
    """Milliseconds of each phase on each device, for one placement or for many at once.

    Args:
        phases: (..., D, 4) ms, the last axis in the order of `PHASES`.
    """

    phases: NDArray[np.floating]

    def phase(self, name: str) -> NDArray[np.floating]:
        """(..., D) ms of one phase."""
        return self.phases[..., PHASES.index(name)]

    @property
    def step(self) -> NDArray[np.floating]:
        """(...,) ms of the step. Collectives are barriers, so each phase lasts as long as its slowest device."""
        return self.phases.max(axis=-2).sum(axis=-1)

    @property
    def max_of_sums(self) -> NDArray[np.floating]:
        """(...,) ms by DreamShard's rule (arXiv 2210.02023): the slowest device's own sum of phases."""
        return self.phases.sum(axis=-1).max(axis=-1)


class CostModel(Protocol):
    """What a placement costs."""

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Cost of one placement; phases (D, 4)."""
        ...

    def costs(self, task: Task, owners: NDArray[np.integer]) -> StepCost:
        """Costs of N placements, owners (N, T) with `UNPLACED` allowed; phases (N, D, 4)."""
        ...
