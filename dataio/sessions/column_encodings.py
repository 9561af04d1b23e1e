"""Parquet encodings by trial: what a column's own values take least bytes in, under the compression in use."""

from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

DICTIONARY = "DICTIONARY"
TRIAL_VALUES = 1 << 20
"""Values of a column that are tried at most."""


def leaf_path(column: pa.Field) -> tuple[str, pa.DataType]:
    """Name by which Parquet knows the numbers or text of a column, however many lists deep, and their type."""
    path, kind = column.name, column.type
    while pa.types.is_list(kind) or pa.types.is_large_list(kind):
        path, kind = f"{path}.list.element", kind.value_type
    return path, kind


def smallest_encodings(table: pa.Table, level: int) -> dict[str, Any]:
    """Options of `pyarrow.parquet.ParquetWriter` with each column's smallest encoding and zstd.

    Dictionaries suit few distinct values; split bytes (BYTE_STREAM_SPLIT) ids that are spread; deltas counters.

    Args:
        table: stands for all that will be written; deterministic in it.
        level: of zstd.
    """
    encodings = {}
    for column in table.schema:
        path, kind = leaf_path(column)
        trial = table.select([column.name])
        values = max(1, _leaf_values(trial.column(0)))
        trial = trial.slice(0, max(1, trial.num_rows * TRIAL_VALUES // values)) if values > TRIAL_VALUES else trial
        encodings[path] = min(_candidates(kind), key=lambda name: _bytes(trial, path, name, level))
    plain = {path: name for path, name in encodings.items() if name not in (DICTIONARY, "PLAIN")}
    return {
        "compression": "zstd",
        "compression_level": level,
        "use_dictionary": [path for path, name in encodings.items() if name == DICTIONARY] or False,
        "column_encoding": plain or None,
    }


def _candidates(kind: pa.DataType) -> list[str]:
    if pa.types.is_string(kind):
        return ["PLAIN", DICTIONARY]
    delta = ["DELTA_BINARY_PACKED"] if pa.types.is_integer(kind) or pa.types.is_timestamp(kind) else []
    split = [] if pa.types.is_boolean(kind) else ["BYTE_STREAM_SPLIT"]
    return [*split, "PLAIN", DICTIONARY, *delta]


def _leaf_values(column: pa.ChunkedArray) -> int:
    count = 0
    for chunk in column.chunks:
        while pa.types.is_list(chunk.type) or pa.types.is_large_list(chunk.type):
            chunk = chunk.flatten()
        count += len(chunk)
    return count


def _bytes(table: pa.Table, path: str, encoding: str, level: int) -> int:
    sink = pa.BufferOutputStream()
    pq.write_table(
        table,
        sink,
        compression="zstd",
        compression_level=level,
        use_dictionary=[path] if encoding == DICTIONARY else False,
        column_encoding=None if encoding in (DICTIONARY, "PLAIN") else {path: encoding},
        write_statistics=False,
        store_schema=False,
    )
    return sink.getvalue().size
