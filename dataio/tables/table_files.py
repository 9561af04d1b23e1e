"""Table sets in files: JSON (every field), CSV and Parquet (a row per table).

JSON: `{"tables": [{"name": "clicks", "rows": 1000000, "dim": 64, "pooling": 12.5, ...}]}` with the fields of
`TableSpec`; `tensor_train` and `dedup` are objects with the fields of `TensorTrainFormat` and `Dedup`.

CSV and Parquet: columns `name` (or `table`), `rows`, `dim`, and optionally `pooling` (or `pooling_factor`), `dtype`,
`bin_0` ... `bin_16`, `samples_per_session`, `stay_probability`, `group`. A file without a `dim` column, such as the
public DLRM set, is read with a `default_dim`.
"""

import csv
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardgym.problem.errors import InputError
from shardgym.problem.files import read_json, replacing, write_json
from shardgym.problem.table_records import table_from_record, table_to_record
from shardgym.problem.tables import REUSE_BINS, Dedup, TableSpec

BIN_COLUMNS = tuple(f"bin_{k}" for k in range(REUSE_BINS))
COLUMN_ALIASES = {"table": "name", "pooling_factor": "pooling"}
FLAT_COLUMNS = (
    "name", "rows", "dim", "pooling", "dtype", *BIN_COLUMNS, "samples_per_session", "stay_probability", "group",
)  # fmt: skip
NUMBERS = {"rows": int, "dim": int, "pooling": float, "samples_per_session": float, "stay_probability": float}


def read_tables(path: Path, default_dim: int | None = None) -> tuple[TableSpec, ...]:
    """Read a table set by its file's ending (.json, .csv or .parquet).

    Args:
        path: the file.
        default_dim: dim of tables whose record has none.

    Raises:
        InputError: names the file, the table and the field that does not fit.
    """
    readers = {".json": _json_records, ".csv": _csv_records, ".parquet": _parquet_records}
    if path.suffix not in readers:
        raise InputError(f"{path}: ending {path.suffix!r} is unknown; give a .json, .csv or .parquet table file")
    if not path.exists():
        raise InputError(f"{path}: no such file; give a table file that exists")
    try:
        records = readers[path.suffix](path)
        tables = tuple(table_from_record(record, default_dim) for record in records)
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    if not tables:
        raise InputError(f"{path}: holds no table; give at least one")
    return tables


def write_tables(path: Path, tables: Iterable[TableSpec]) -> None:
    """Write a table set by the file's ending, atomically.

    Raises:
        InputError: for an unknown ending, or tensor-train tables in a flat (CSV or Parquet) file.
    """
    tables = tuple(tables)
    if path.suffix == ".json":
        write_json(path, {"tables": [table_to_record(table) for table in tables]})
        return
    if any(table.tensor_train for table in tables):
        raise InputError(f"{path}: a flat file has no column for tensor-train tables; write .json instead")
    rows = [_flat_record(table) for table in tables]
    if path.suffix == ".csv":
        with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, FLAT_COLUMNS)
            writer.writeheader()
            writer.writerows(rows)
    elif path.suffix == ".parquet":
        with replacing(path) as partial:
            pq.write_table(pa.Table.from_pylist(rows), partial)
    else:
        raise InputError(f"{path}: ending {path.suffix!r} is unknown; write .json, .csv or .parquet")


def _json_records(path: Path) -> Sequence[Mapping[str, Any]]:
    content = read_json(path, "mend it or write it again")
    records = content.get("tables") if isinstance(content, Mapping) else None
    if not isinstance(records, list) or not all(isinstance(record, Mapping) for record in records):
        raise InputError("field 'tables' is missing or not a list of objects; give {\"tables\": [{...}]}")
    return records


def _csv_records(path: Path) -> list[dict[str, Any]]:
    with path.open(newline="", encoding="utf-8") as file:
        return [_unflatten(row, line) for line, row in enumerate(csv.DictReader(file), start=2)]


def _parquet_records(path: Path) -> list[dict[str, Any]]:
    try:
        rows = pq.read_table(path).to_pylist()
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"is not a readable Parquet file ({error}); write it again") from error
    return [_unflatten(row, line) for line, row in enumerate(rows)]


def _unflatten(row: Mapping[str, Any], line: int) -> dict[str, Any]:
    """A flat row as a record: numbers parsed, bins gathered, dedup nested; empty cells are left out."""
    cells = {COLUMN_ALIASES.get(key, key): value for key, value in row.items() if value not in (None, "")}
    unknown = sorted(str(key) for key in set(cells) - set(FLAT_COLUMNS))
    if unknown:
        raise InputError(
            f"line {line}: column {unknown[0]!r} is unknown; use columns {', '.join(FLAT_COLUMNS[:5])}, ..."
        )
    for key, kind in [*NUMBERS.items(), *((column, float) for column in BIN_COLUMNS)]:
        if key in cells:
            cells[key] = _number(cells[key], kind, key, line)
    record = {key: value for key, value in cells.items() if key in ("rows", "dim", "pooling", "dtype", "group")}
    record["name"] = str(cells.get("name", f"table_{line}"))
    if any(column in cells for column in BIN_COLUMNS):
        bins = tuple(cells.get(column, 0.0) for column in BIN_COLUMNS)
        # A table that is never looked up has no unique id to count; the public set writes zeros there.
        if sum(bins) > 0:
            record["reuse_bins"] = bins
    if "samples_per_session" in cells or "stay_probability" in cells:
        record["dedup"] = Dedup(cells.get("samples_per_session", 1.0), cells.get("stay_probability", 0.0))
    return record


def _number(value: Any, kind: type, column: str, line: int) -> Any:
    try:
        return kind(value)
    except ValueError as error:
        wanted = "a whole number" if kind is int else "a number"
        raise InputError(f"line {line}: column {column!r} is {value!r}; give {wanted}") from error


def _flat_record(table: TableSpec) -> dict[str, Any]:
    record = {key: getattr(table, key) for key in ("name", "rows", "dim", "pooling", "dtype")}
    record |= dict(zip(BIN_COLUMNS, table.reuse_bins))
    return record | asdict(table.dedup) | {"group": table.group}
