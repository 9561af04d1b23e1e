"""Measured samples on disk: append-only Parquet parts, each written whole."""

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, fields
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import replacing
from shardgym.problem.table_records import table_from_record, table_to_record
from shardgym.problem.tables import TableSpec

PART_GLOB = "part-*.parquet"


@public("shardgym.costmodel")
@dataclass(frozen=True)
class GroupSample:
    """One group of tables, measured together on one device.

    Args:
        index: which group of the design this is; a folder holds each index once.
        tables: the group.
        batch_size: bags per table.
        forward_ms, backward_ms: median over the repeats.
        forward_spread, backward_spread: interquartile range over the median.
        repeats: timed repeats, after the warm-up.
        reference_ms: median of a fixed reference op just before, which shows the machine's drift.
        hardware: where it was measured.
        attempts: how often it was measured; 2 where the first spread was large.
    """

    index: int
    tables: tuple[TableSpec, ...]
    batch_size: int
    forward_ms: float
    backward_ms: float
    forward_spread: float
    backward_spread: float
    repeats: int
    reference_ms: float
    hardware: Hardware
    attempts: int = 1

    @property
    def spread(self) -> float:
        """The larger of the two spreads."""
        return max(self.forward_spread, self.backward_spread)


MEASURES = ("forward_ms", "backward_ms", "forward_spread", "backward_spread", "reference_ms")
TABLE_TYPE = pa.struct(
    [
        ("name", pa.string()), ("rows", pa.int64()), ("dim", pa.int32()), ("pooling", pa.float64()),
        ("reuse_bins", pa.list_(pa.float64())), ("dtype", pa.string()),
        ("tensor_train", pa.struct([
            ("ranks", pa.list_(pa.int32())), ("row_shape", pa.list_(pa.int32())),
            ("dim_shape", pa.list_(pa.int32())), ("cached_rows", pa.int64()),
        ])),
        ("dedup", pa.struct([("samples_per_session", pa.float64()), ("stay_probability", pa.float64())])),
        ("group", pa.string()),
    ]
)  # fmt: skip
HARDWARE_TYPE = pa.struct(
    [
        ("device", pa.string()), ("model", pa.string()), ("cores", pa.int32()), ("threads", pa.int32()),
        ("kernel", pa.string()), ("versions", pa.string()),
    ]
)  # fmt: skip
SCHEMA = pa.schema(
    [
        ("index", pa.int64()), ("tables", pa.list_(TABLE_TYPE)), ("batch_size", pa.int64()),
        ("forward_ms", pa.float64()), ("backward_ms", pa.float64()), ("forward_spread", pa.float64()),
        ("backward_spread", pa.float64()), ("repeats", pa.int32()), ("reference_ms", pa.float64()),
        ("hardware", HARDWARE_TYPE), ("attempts", pa.int32()),
    ]
)  # fmt: skip


@public("shardgym.costmodel")
class SampleFolder:
    """A folder of measured samples that grows part by part.

    Every append is a file of its own, renamed into place when whole, so a killed run loses at most the sample in
    flight. `compact` merges the parts; a crash in between leaves a sample twice, and readers keep one of each index.
    """

    def __init__(self, path: Path) -> None:
        self.path = path

    def append(self, samples: Sequence[GroupSample]) -> None:
        """Write one part holding the samples."""
        write_samples(self.path / f"part-{samples[0].index:08d}-{samples[-1].index:08d}.parquet", samples)

    def read(self) -> list[GroupSample]:
        """All samples, by index.

        Raises:
            InputError: an empty folder, a part that is cut short or lacks a column, a value that cannot be.
        """
        samples = self.finished()
        if not samples:
            raise InputError(f"{self.path}: holds no samples; run `shardgym measure --out {self.path}` first")
        return samples

    def finished(self) -> list[GroupSample]:
        """The samples measured so far, by index; empty for a folder that does not exist yet."""
        samples = {sample.index: sample for part in self._parts() for sample in read_samples(part)}
        return [samples[index] for index in sorted(samples)]

    def compact(self) -> None:
        """Merge all parts into one."""
        parts = self._parts()
        if len(parts) < 2:
            return
        self.append(self.read())
        merged = max(self._parts(), key=lambda part: part.stat().st_mtime_ns)
        for part in parts:
            if part != merged:
                part.unlink()

    def _parts(self) -> list[Path]:
        return sorted(self.path.glob(PART_GLOB))


def one_hardware(samples: Sequence[GroupSample], source: Path) -> Hardware:
    """The hardware that all samples share.

    Raises:
        InputError: when they come from several machines or thread counts.
    """
    first = samples[0].hardware
    for sample in samples:
        if not sample.hardware.comparable(first):
            raise InputError(
                f"{source}: samples come from {first} and from {sample.hardware}; keep each machine's in its own folder"
            )
    return first


def write_samples(path: Path, samples: Sequence[GroupSample]) -> None:
    """Write samples to one Parquet file, atomically."""
    with replacing(path) as partial:
        rows = pa.Table.from_pylist([_to_row(sample) for sample in samples], SCHEMA)
        pq.write_table(rows, partial, compression="zstd", compression_level=9)


def read_samples(path: Path) -> list[GroupSample]:
    """The samples of one Parquet file, in its order.

    Raises:
        InputError: names the file, and the column or sample that does not fit.
    """
    try:
        table = pq.read_table(path)
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: is not a whole Parquet file; delete it, and `shardgym measure` will measure its samples again"
        ) from error
    missing = [name for name in SCHEMA.names if name not in table.column_names]
    if missing:
        raise InputError(f"{path}: column {missing[0]!r} is missing; delete the file and measure again")
    return [_from_row(row, path) for row in table.to_pylist()]


def _to_row(sample: GroupSample) -> dict:
    row = {field.name: getattr(sample, field.name) for field in fields(sample)}
    return row | {"tables": [table_to_record(t) for t in sample.tables], "hardware": asdict(sample.hardware)}


def _from_row(row: dict, part: Path) -> GroupSample:
    for name in MEASURES:
        if row[name] is None or not math.isfinite(row[name]) or row[name] < 0:
            raise InputError(f"{part}: sample {row['index']} has {name} {row[name]}; delete the part and measure again")
    try:
        tables = tuple(table_from_record(record) for record in row["tables"])
        return GroupSample(**(row | {"tables": tables, "hardware": Hardware(**row["hardware"])}))
    except (InputError, TypeError) as error:
        raise InputError(f"{part}: sample {row['index']}: {error}") from error
