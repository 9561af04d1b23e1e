"""Measured all-to-alls on disk."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from shardgym.costmodel.exchange import Volumes
from shardgym.costmodel.exchange_network import ExchangeNetwork, exchange_inputs, train_exchange
from shardgym.costmodel.hardware import Hardware
from shardgym.costmodel.samples import HARDWARE_TYPE
from shardgym.dataio.atomic import replacing
from shardgym.embeddings.errors import InputError

SCHEMA = pa.schema(
    [
        ("dims", pa.list_(pa.int64())), ("batch_size", pa.int64()),
        ("forward_ms", pa.list_(pa.float64())), ("backward_ms", pa.list_(pa.float64())),
        ("forward_spread", pa.list_(pa.float64())), ("backward_spread", pa.list_(pa.float64())),
        ("hardware", HARDWARE_TYPE),
    ]
)  # fmt: skip


@dataclass(frozen=True)
class ExchangeSample:
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

    @classmethod
    def of(cls, volumes: Volumes, measured: np.ndarray, hardware: Hardware) -> "ExchangeSample":
        """From what `measure_exchanges` yields, (D, 2, 2)."""
        columns = measured.transpose(1, 2, 0).tolist()  # (direction, statistic, D)
        return cls(
            volumes.dims, volumes.batch_size, tuple(columns[0][0]), tuple(columns[1][0]), tuple(columns[0][1]),
            tuple(columns[1][1]), hardware,
        )  # fmt: skip


def write_exchanges(path: Path, samples: Sequence[ExchangeSample]) -> None:
    """Write samples to one Parquet file, atomically."""
    with replacing(path) as partial:
        pq.write_table(
            pa.Table.from_pylist([asdict(sample) for sample in samples], SCHEMA), partial, compression="zstd"
        )


def read_exchanges(path: Path) -> list[ExchangeSample]:
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
        sample = ExchangeSample(**values | {"hardware": Hardware(**row["hardware"])})
        if not all(math.isfinite(ms) and ms > 0 for ms in (*sample.forward_ms, *sample.backward_ms)):
            raise InputError(f"{path}: row {number} has a time that is not positive; leave the row out")
        samples.append(sample)
    return samples


def fit_exchange(samples: Sequence[ExchangeSample], epochs: int = 150, seed: int = 0) -> ExchangeNetwork:
    """Train one network on all-to-alls of any numbers of devices."""
    most = max(len(sample.dims) for sample in samples)
    parts = []
    for sample in samples:
        volumes, others = exchange_inputs(np.array(sample.dims, dtype=float), np.array(sample.batch_size))
        times = torch.tensor([sample.forward_ms, sample.backward_ms]).T  # (D, 2)
        # Smaller all-to-alls repeat devices to fill up: they are all of one size then, and weigh the same.
        filled = torch.arange(most) % len(sample.dims)
        parts.append((volumes[filled], others[filled], times[filled]))
    volumes, others, times = (torch.stack(column) for column in zip(*parts))
    network = train_exchange(volumes, others, times.float(), epochs=epochs, seed=seed)
    network.devices.copy_(torch.tensor([min(len(sample.dims) for sample in samples), most]))
    return network
