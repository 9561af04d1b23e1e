"""How devices are connected, and how fast each computes."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

BETWEEN_HOSTS = 12.5e9
"""Bytes/s of a device's link to other hosts where a topology names none: 100 Gbit/s Ethernet, the same order as
TorchRec's CROSS_NODE_BANDWIDTH (torchrec.distributed.planner.constants)."""


@public("shardgym")
@dataclass(frozen=True)
class Topology:
    """Devices in hosts: device d is in host d // devices_per_host; the last host may have fewer.

    Args:
        devices_per_host: devices that share a host's memory or NVLink, >= 1.
        within_bandwidth: bytes/s that a device sends inside its host, and as much that it receives; None leaves it to
            the cost model (its fitted coefficients, or its machine's link).
        between_bandwidth: bytes/s that a device sends to other hosts, and as much that it receives.
        speeds: compute speed of each device relative to the one that the cost model describes; None for all alike.

    Raises:
        InputError: names the field that does not fit.
    """

    devices_per_host: int
    within_bandwidth: float | None = None
    between_bandwidth: float = BETWEEN_HOSTS
    speeds: tuple[float, ...] | None = None

    def __post_init__(self) -> None:
        if type(self.devices_per_host) is not int or self.devices_per_host < 1:
            raise InputError(f"topology: devices_per_host is {self.devices_per_host!r}; give at least 1")
        for name in ("within_bandwidth", "between_bandwidth"):
            value = getattr(self, name)
            if name == "within_bandwidth" and value is None:
                continue
            if not _is_positive(value):
                raise InputError(f"topology: {name} is {value!r}; give bytes per second, more than 0")
        if self.speeds is not None and not (self.speeds and all(map(_is_positive, self.speeds))):
            raise InputError(f"topology: speeds is {self.speeds!r}; give a number above 0 per device, or None")

    def require_devices(self, devices: int, task: str) -> None:
        """Refuse a topology that does not fit a task's devices.

        Raises:
            InputError: speeds are given for another number of devices.
        """
        if self.speeds is not None and len(self.speeds) != devices:
            raise InputError(
                f"task {task!r}: topology.speeds has {len(self.speeds)} numbers for {devices} devices; give one each"
            )

    def hosts(self, devices: int) -> int:
        """Hosts that so many devices fill."""
        return -(-devices // self.devices_per_host)


def topology_to_record(topology: Topology | None) -> dict[str, Any] | None:
    """The topology as a JSON object; `topology_from_record` reads it back."""
    return None if topology is None else asdict(topology)


def topology_from_record(record: Any, where: str) -> Topology | None:
    """Make a topology of a JSON object, or None of null.

    Raises:
        InputError: names an unknown or ill-typed field.
    """
    if record is None:
        return None
    if not isinstance(record, Mapping) or "devices_per_host" not in record:
        raise InputError(f"{where}: field 'topology' is {record!r}; give an object with devices_per_host, or null")
    unknown = sorted(set(record) - {field.name for field in fields(Topology)})
    if unknown:
        raise InputError(f"{where}: topology has an unknown field {unknown[0]!r}; remove it")
    values = dict(record)
    if isinstance(values.get("speeds"), list):
        values["speeds"] = tuple(values["speeds"])
    return Topology(**values)


def _is_positive(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < float("inf")
