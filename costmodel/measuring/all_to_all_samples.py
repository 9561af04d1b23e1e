"""Measured all-to-alls on disk."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardgym.costmodel.measuring.all_to_all import Volumes
from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.costmodel.measuring.samples import HARDWARE_TYPE
from shardgym.costmodel.pricing.exchange import OUTPUT_BYTES
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import replacing

SCHEMA = pa.schema(
    [
        ("dims", pa.list_(pa.int64())), ("batch_size", pa.int64()),
        ("forward_ms", pa.list_(pa.float64())), ("backward_ms", pa.list_(pa.float64())),
        ("forward_spread", pa.list_(pa.float64())), ("backward_spread", pa.list_(pa.float64())),
        ("hardware", HARDWARE_TYPE),
    ]
)  # fmt: skip


@public("shardgym.costmodel")
@dataclass(frozen=True)
class AllToAllSample:
    """One measured all-to-all.

    Args:
        dims: summed dims of each of the D devices' tables.
        batch_size: samples over all devices.
        forward_ms, backward_ms: (D,) median of each device.
        forward_spread, backward_spread: (D,) interquartile range over the median.
        hardware: where it was measured; every device was one process on it.
    """

    dims: tuple[int, ...]
    batch_size: int
    forward_ms: tuple[float, ...]
    backward_ms: tuple[float, ...]
    forward_spread: tuple[float, ...]
    backward_spread: tuple[float, ...]
    hardware: Hardware

    def sent(self) -> tuple[int, ...]:
        """Bytes that each device sends, (D,), the part for its own samples included."""
        return tuple(dims * self.batch_size * OUTPUT_BYTES for dims in self.dims)

    @classmethod
    def of(cls, volumes: Volumes, measured: np.ndarray, hardware: Hardware) -> "AllToAllSample":
        """From what `measure_exchanges` yields, (D, 2, 2)."""
        columns = measured.transpose(1, 2, 0).tolist()  # (direction, statistic, D)
        return cls(
            volumes.dims, volumes.batch_size, tuple(columns[0][0]), tuple(columns[1][0]), tuple(columns[0][1]),
            tuple(columns[1][1]), hardware,
        )  # fmt: skip


def write_exchanges(path: Path, samples: Sequence[AllToAllSample]) -> None:
    """Write samples to one Parquet file, atomically."""
    with replacing(path) as partial:
        pq.write_table(
            pa.Table.from_pylist([asdict(sample) for sample in samples], SCHEMA), partial, compression="zstd"
        )


def read_exchanges(path: Path) -> list[AllToAllSample]:
    """The samples of a file.

    Raises:
        InputError: a column is missing, or a time is not a positive number.
    """
    table = pq.read_table(path)
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: column {missing[0]!r} is missing; measure the all-to-alls again")
    samples = []
    for number, row in enumerate(table.to_pylist()):
        values: dict[str, Any] = {k: tuple(v) if isinstance(v, list) else v for k, v in row.items()}
        sample = AllToAllSample(**values | {"hardware": Hardware(**row["hardware"])})
        if not all(math.isfinite(ms) and ms > 0 for ms in (*sample.forward_ms, *sample.backward_ms)):
            raise InputError(f"{path}: row {number} has a time that is not positive; leave the row out")
        samples.append(sample)
    return samples
