"""A device for each table of a task."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, SupportsInt

import numpy as np
from numpy.typing import NDArray

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

UNPLACED = -1
"""The device of a table that is not placed yet, in arrays (..., T) of devices."""


@public("shardgym")
@dataclass(frozen=True)
class Placement:
    """A device for each table of a task.

    Args:
        device_of: (T,) device of each table, in the order of `task.tables`.
    """

    device_of: tuple[int, ...]

    @classmethod
    def of(cls, device_of: Iterable[SupportsInt]) -> "Placement":
        """From any integers, such as a row (T,) of an array."""
        return cls(tuple(int(device) for device in device_of))

    def array(self) -> NDArray[np.int64]:
        """The device of each table, (T,)."""
        return np.array(self.device_of, dtype=np.int64)

    def validate(self, task: Task) -> None:
        """Check that every table has a device of the task and that every device has room.

        Raises:
            InputError: names the first table or device that does not fit.
        """
        if len(self.device_of) != len(task.tables):
            raise InputError(
                f"placement: has {len(self.device_of)} devices for the {len(task.tables)} tables of {task.name!r}; "
                "give one device per table"
            )
        for table, device in zip(task.tables, self.device_of):
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
        np.add.at(used, self.array(), task.table_bytes)
        return used

    def tables_on(self, device: int) -> tuple[int, ...]:
        """Indices of the tables on one device."""
        return tuple(t for t, home in enumerate(self.device_of) if home == device)

    def to_json(self, task: Task) -> dict[str, Any]:
        """The placement by table name, as `from_json` reads it."""
        return {"task": task.name, "device_of": {t.name: int(d) for t, d in zip(task.tables, self.device_of)}}

    @classmethod
    def from_json(cls, record: dict[str, Any], task: Task) -> "Placement":
        """Read a placement of this task's tables and validate it.

        Raises:
            InputError: when a table is missing or unknown, or the placement is not legal.
        """
        by_name = record.get("device_of")
        if not isinstance(by_name, Mapping):
            raise InputError("placement: field 'device_of' is missing; give an object from table name to device")
        names = [table.name for table in task.tables]
        unpaired = sorted(set(by_name) ^ set(names))
        if unpaired:
            raise InputError(
                f"placement: table {unpaired[0]!r} is in only one of the plan and the task; plan this task again"
            )
        wrong = [name for name in names if type(by_name[name]) is not int]
        if wrong:
            raise InputError(
                f"placement: table {wrong[0]!r} is on device {by_name[wrong[0]]!r}; give the device's number, from 0"
            )
        placement = cls(tuple(by_name[name] for name in names))
        placement.validate(task)
        return placement
