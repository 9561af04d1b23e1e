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


@public("shardgym.costmodel")
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


FADE_DOUBLINGS = 0.5
"""Outside the measured numbers of devices the correction fades as exp(-(doublings / this)^2)."""


@dataclass(frozen=True)
class Curve:
    """Two piecewise linear functions of a volume, forward and backward, straight beyond the outermost knots.

    Args:
        knots: (K,) bytes, ascending.
        offset, slope: (K + 1, 2) of each piece, in ms and ms per byte.
    """

    knots: NDArray[np.float64]
    offset: NDArray[np.float64]
    slope: NDArray[np.float64]

    @classmethod
    def line(cls, slope: NDArray[np.float64]) -> "Curve":
        """Through the origin, slope (2,)."""
        return cls(np.empty(0), np.zeros((1, 2)), slope[None])

    def plus(self, knots: NDArray[np.float64], ms: NDArray[np.float64]) -> "Curve":
        """A line plus what is added at knots (K,), ms (2, K), linear between them and constant beyond."""
        rise = np.diff(ms, axis=1) / np.maximum(np.diff(knots), 1.0)
        slope = np.concatenate([np.zeros((2, 1)), rise, np.zeros((2, 1))], axis=1).T  # (K + 1, 2)
        at = np.concatenate([ms[:, :1], ms], axis=1).T - slope * np.concatenate([knots[:1], knots])[:, None]
        return Curve(knots, at + self.offset, slope + self.slope)

    def __call__(self, volume: NDArray[np.float64]) -> NDArray[np.float64]:
        """(...,) bytes to (..., 2) ms."""
        piece = self.knots.searchsorted(volume)
        return self.offset[piece] + self.slope[piece] * volume[..., None]


@dataclass(frozen=True)
class Form:
    """A physical exchange between so many devices in such hosts: ms = start + by_host(bytes of the fullest host) +
    by_device(bytes of the largest device).

    Args:
        per_host: devices per host.
        start: (2,) ms.
        by_host, by_device: of the two volumes.
    """

    per_host: int
    start: NDArray[np.float64]
    by_host: Curve
    by_device: Curve

    def ms(self, host: NDArray[np.float64], largest: NDArray[np.float64]) -> NDArray[np.float32]:
        """(..., 2) ms from the bytes (...) of the fullest host and of the largest device; zero where none is sent."""
        ms = self.start + self.by_host(host) + self.by_device(largest)
        return (ms * (largest > 0)[..., None]).astype(np.float32)


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
        corrections: by measured number of devices, ascending; none of a task on several hosts or with its own
            bandwidth within the host.
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
        form = self.form(devices, topology)
        if form.per_host >= devices:
            host = sent.sum(axis=-1)
        else:
            host = np.add.reduceat(sent, np.arange(0, devices, form.per_host), axis=-1).max(axis=-1)
        return form.ms(host, sent.max(axis=-1))

    def floor(
        self, volumes: NDArray[np.float64], devices: int, topology: Topology | None = None
    ) -> NDArray[np.float64]:
        """As `Exchange.floor`: even volumes, but for the largest table, which is whole on some device."""
        if devices == 1:
            return np.zeros(2)
        form = self.form(devices, topology)
        total = volumes.sum(keepdims=True)[0]  # (1,)
        largest = np.maximum(total / devices, volumes.max(initial=0.0))
        host = np.maximum(total / -(-devices // form.per_host), largest)
        return form.ms(host, largest)[0].astype(np.float64)

    def form(self, devices: int, topology: Topology | None = None) -> Form:
        """The exchange between so many devices."""
        known = self._forms.get((devices, topology))
        if known is None:
            known = self._forms[devices, topology] = self._form(devices, topology)
        return known

    @cached_property
    def _forms(self) -> dict[tuple[int, Topology | None], Form]:
        return {}

    def _form(self, devices: int, topology: Topology | None) -> Form:
        both = (self.forward, self.backward)
        start = np.array([one.start + one.peer * (devices - 1) for one in both])
        by_host, by_device = np.array([one.host for one in both]), np.array([one.device for one in both])
        per_host = topology.devices_per_host if topology is not None else self.devices_per_host or devices
        within = topology.within_bandwidth if topology is not None else None
        if within is not None:
            by_host, by_device = np.zeros(2), np.full(2, 1e3 / within)
        if per_host < devices:
            by_device = by_device + 1e3 / (BETWEEN_HOSTS if topology is None else topology.between_bandwidth)
        elif within is None and self.corrections:
            return self._corrected(devices, per_host, start, Curve.line(by_host), Curve.line(by_device))
        return Form(per_host, start, Curve.line(by_host), Curve.line(by_device))

    def _corrected(
        self, devices: int, per_host: int, start: NDArray[np.float64], by_host: Curve, by_device: Curve
    ) -> Form:
        """With the correction of the nearest measured number of devices, as much of it as holds at this number."""
        apart = [abs(float(np.log2(devices / one.devices))) for one in self.corrections]
        nearest = int(np.argmin(apart))
        one, weight = self.corrections[nearest], float(np.exp(-((apart[nearest] / FADE_DOUBLINGS) ** 2)))
        return Form(
            per_host,
            start,
            by_host.plus(np.array(one.total), weight * np.array(one.total_ms)),
            by_device.plus(np.array(one.largest), weight * np.array(one.largest_ms)),
        )

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
