"""The exchange: what the two all-to-alls of a step cost, from ALL devices' volumes and the topology together.

Forward, every device sends the pooled rows of its tables to the devices whose samples they are; backward, their
gradients come the same way back. A collective is over when its slowest device and its fullest link are, and every
device waits for it, one that sends nothing included: so a collective has one duration, not one per device.
"""

from abc import ABC, abstractmethod
from dataclasses import asdict, dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec
from shardgym.problem.topology import BETWEEN_HOSTS, Topology

OUTPUT_BYTES = 4
"""Bytes of a number of a pooled row: outputs and their gradients are fp32 in every format."""


def sent_bytes(table: TableSpec, batch_size: int) -> int:
    """Bytes that a table makes its device send forward, and receive as gradients backward.

    The copy that stays on the device is counted with those that leave it. Of a deduplicated feature only unique rows
    travel (RecD, arXiv 2211.05239): the inverse stays where the samples are. A column shard sends its own columns.

    Args:
        table: the table or column shard.
        batch_size: bags of the global batch.
    """
    return round(batch_size / table.dedup.factor()) * table.dim * OUTPUT_BYTES


@public("shardgym.costmodel")
class Exchange(ABC):
    """What the collectives of a step cost."""

    @abstractmethod
    def ms(self, volumes: NDArray[np.float64], topology: Topology | None = None) -> NDArray[np.float32]:
        """Duration of both collectives.

        Args:
            volumes: (..., D, V) what each of ALL D devices of a task sends, of whatever the cost model counts.
            topology: of these devices; None for equal devices on one host, or as the exchange was made for.

        Returns:
            (..., 2) ms, forward and backward; zero where no device sends anything, and for one device.
        """

    def floor(
        self, volumes: NDArray[np.float64], devices: int, topology: Topology | None = None
    ) -> NDArray[np.float64]:
        """Ms that no placement's collectives go below, (2,), from what each table adds, (T, V). Zeros are right."""
        return np.zeros(2)


@public("shardgym.costmodel")
class NoExchange(Exchange):
    """Of models that were fitted without communication: their steps are compute alone, and reports say so."""

    def ms(self, volumes: NDArray[np.float64], topology: Topology | None = None) -> NDArray[np.float32]:
        """Zeros, (..., 2)."""
        return np.zeros((*volumes.shape[:-2], 2), dtype=np.float32)


@dataclass(frozen=True)
class Direction:
    """Coefficients of one collective, none negative.

    Args:
        start: ms of a collective of nothing.
        peer: ms per peer that a device talks to.
        host: ms per byte that all devices of a host send between them: its memory or switch is shared.
        device: ms per byte of the device that sends most.
    """

    start: float = 0.0
    peer: float = 0.0
    host: float = 0.0
    device: float = 0.0


@dataclass(frozen=True)
class Correction:
    """What measurements say beyond the physical form, at one number of devices: added ms, linear between knots.

    Args:
        devices: the number measured.
        total: (K,) bytes of all devices, ascending; total_ms: (2, K) ms at them.
        largest: (L,) bytes of the device that sends most, ascending; largest_ms: (2, L) ms at them.

    Beyond the outermost knots the added ms stay as they are, so that their share fades as volumes grow. Together with
    the physical form they never fall between knots.
    """

    devices: int
    total: tuple[float, ...]
    total_ms: tuple[tuple[float, ...], ...]
    largest: tuple[float, ...]
    largest_ms: tuple[tuple[float, ...], ...]

    @cached_property
    def arrays(self) -> tuple[NDArray[np.float64], ...]:
        """`total`, `total_ms`, `largest`, `largest_ms` as arrays."""
        return tuple(np.array(each) for each in (self.total, self.total_ms, self.largest, self.largest_ms))


FADE_DOUBLINGS = 0.5
"""Outside the measured numbers of devices the correction fades as exp(-(doublings / this)^2)."""


@public("shardgym.costmodel")
@dataclass(frozen=True)
class PhysicalExchange(Exchange):
    """Latency per peer, bytes over bandwidth, the slowest device and the fullest link; two levels of hosts.

    ms = start + peer (D - 1) + host * (bytes of the fullest host) + device * (bytes of the largest device), and on
    several hosts + (bytes of the largest device) / `Topology.between_bandwidth`. Where the topology gives a bandwidth
    within the host, the two middle terms are (bytes of the largest device) / that. All bytes of a device are counted
    on each level, the part that stays included: at equal bytes per device and equal hosts only the latency grows
    with the number of devices. No term falls when a volume grows.

    Args:
        forward, backward: coefficients.
        devices_per_host: of a task without a topology; None for one host, whatever the number of devices.
        corrections: by measured number of devices, ascending; none of a task with a topology of several hosts.
    """

    forward: Direction
    backward: Direction
    devices_per_host: int | None = None
    corrections: tuple[Correction, ...] = ()

    def ms(self, volumes: NDArray[np.float64], topology: Topology | None = None) -> NDArray[np.float32]:
        """As `Exchange.ms`; volumes (..., D, 1) are bytes."""
        sent = volumes[..., 0]
        devices = sent.shape[-1]
        if devices == 1:
            return np.zeros((*sent.shape[:-1], 2), dtype=np.float32)
        total, largest = sent.sum(axis=-1), sent.max(axis=-1)
        per_host = self._per_host(devices, topology)
        if per_host >= devices:
            return self._ms(total, total, largest, devices, topology)
        host = np.add.reduceat(sent, np.arange(0, devices, per_host), axis=-1).max(axis=-1)
        return self._ms(total, host, largest, devices, topology)

    def floor(
        self, volumes: NDArray[np.float64], devices: int, topology: Topology | None = None
    ) -> NDArray[np.float64]:
        """As `Exchange.floor`: volumes spread evenly, but for the largest table, which is whole on some device."""
        if devices == 1:
            return np.zeros(2)
        total = volumes.sum(keepdims=True)[0]  # (1,)
        largest = np.maximum(total / devices, volumes.max(initial=0.0))
        hosts = -(-devices // self._per_host(devices, topology))
        host = np.maximum(total / hosts, largest)
        return self._ms(total, host, largest, devices, topology)[0].astype(np.float64)

    def _per_host(self, devices: int, topology: Topology | None) -> int:
        """Devices of a host that the exchange is priced with."""
        return topology.devices_per_host if topology is not None else self.devices_per_host or devices

    def _ms(
        self,
        total: NDArray[np.float64],
        host: NDArray[np.float64],
        largest: NDArray[np.float64],
        devices: int,
        topology: Topology | None,
    ) -> NDArray[np.float32]:
        """(..., 2) ms from the bytes (...) of all devices, of the fullest host and of the largest device."""
        within = topology.within_bandwidth if topology is not None else None
        between = topology.between_bandwidth if topology is not None else BETWEEN_HOSTS
        several = self._per_host(devices, topology) < devices
        weight, correction = (0.0, None) if several or within else self._correction(devices)
        ms = np.empty((*np.shape(total), 2), dtype=np.float32)
        for k, one in enumerate((self.forward, self.backward)):
            cost = one.host * host + one.device * largest if within is None else largest * (1e3 / within)
            if several:
                cost = cost + largest * (1e3 / between)
            cost = cost + (one.start + one.peer * (devices - 1))
            if correction is not None:
                totals, total_ms, largests, largest_ms = correction.arrays
                added = np.interp(total, totals, total_ms[k]) + np.interp(largest, largests, largest_ms[k])
                cost = cost + weight * added
            ms[..., k] = cost * (total > 0)
        return ms

    def _correction(self, devices: int) -> tuple[float, Correction | None]:
        """The correction of the nearest measured number of devices, and how much of it holds at this number."""
        if not self.corrections:
            return 0.0, None
        apart = [abs(float(np.log2(devices / one.devices))) for one in self.corrections]
        nearest = int(np.argmin(apart))
        return float(np.exp(-((apart[nearest] / FADE_DOUBLINGS) ** 2))), self.corrections[nearest]

    def measured_devices(self) -> tuple[int, int] | None:
        """Least and most devices that it was fitted on, or None."""
        return (self.corrections[0].devices, self.corrections[-1].devices) if self.corrections else None

    def to_record(self) -> dict[str, Any]:
        """Plain numbers, as `from_record` reads them."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict[str, Any]) -> "PhysicalExchange":
        """The inverse of `to_record`."""
        return cls(
            Direction(**record["forward"]),
            Direction(**record["backward"]),
            record["devices_per_host"],
            tuple(
                Correction(
                    one["devices"],
                    tuple(one["total"]),
                    tuple(map(tuple, one["total_ms"])),
                    tuple(one["largest"]),
                    tuple(map(tuple, one["largest_ms"])),
                )
                for one in record["corrections"]
            ),
        )
