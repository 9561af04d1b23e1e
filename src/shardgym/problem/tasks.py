"""What is to be placed, and where: the Task."""

from collections import Counter
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec
from shardgym.problem.topology import Topology


@public("shardgym")
@dataclass(frozen=True)
class Task:
    """Tables to place on devices.

    Args:
        tables: T tables (or column shards), names unique.
        device_memory: bytes of memory of each of the D devices; they may differ.
        batch_size: bags per step over all devices (the global batch), >= 1.
        name: for reports.
        topology: hosts, bandwidths and speeds of the devices; None for equal devices on one host.

    Raises:
        InputError: names the field that does not fit.
    """

    tables: tuple[TableSpec, ...]
    device_memory: tuple[int, ...]
    batch_size: int
    name: str = "task"
    topology: Topology | None = None

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
        if self.topology is not None:
            self.topology.require_devices(self.devices, self.name)

    @property
    def devices(self) -> int:
        """Number of devices D."""
        return len(self.device_memory)

    @cached_property
    def speeds(self) -> NDArray[np.float32]:
        """Relative compute speed of each device, (D,)."""
        if self.topology is None or self.topology.speeds is None:
            return np.ones(self.devices, dtype=np.float32)
        return np.array(self.topology.speeds, dtype=np.float32)

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
