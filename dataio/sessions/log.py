"""A raw impression log: Parquet files with one row per sample, checked before anything is made of them."""

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardgym.dataio.sessions.schema import SCHEMA_FILE, GroupSpec, SessionSchema
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

BATCH_BYTES = 16 << 20
"""Decoded bytes of a record batch, about."""
READ_BUFFER = 1 << 20
"""Bytes read at a time from a column, so that memory does not grow with the row groups."""


@dataclass(frozen=True)
class LogFile:
    """One Parquet file of a log.

    Args:
        path: where it lies.
        rows: rows of each row group.
        decoded_bytes: an estimate of each row group's bytes once decoded.
    """

    path: Path
    rows: tuple[int, ...]
    decoded_bytes: tuple[int, ...]


@dataclass(frozen=True)
class LogPiece:
    """Some row groups of one file, in order: `first` to `end - 1` of file number `file`."""

    file: int
    first: int
    end: int


@public("shardgym.dataio")
@dataclass(frozen=True)
class SessionLog:
    """A log whose files have been opened and agree on a schema.

    Args:
        schema: roles of the columns.
        arrow: the Arrow type of each column, unified over the files, in `schema.columns` order.
        files: the files, sorted by path.
        notes: what was handled and should be said (columns left out, types widened).
    """

    schema: SessionSchema
    arrow: pa.Schema
    files: tuple[LogFile, ...]
    notes: tuple[str, ...] = field(default=())

    @property
    def rows(self) -> int:
        """Samples in the log."""
        return sum(sum(file.rows) for file in self.files)

    @property
    def decoded_bytes(self) -> int:
        """An estimate of the log's bytes once decoded."""
        return sum(sum(file.decoded_bytes) for file in self.files)

    def pieces(self, largest_bytes: int) -> tuple[LogPiece, ...]:
        """The log cut into runs of row groups of at most `largest_bytes` decoded, or one row group."""
        pieces = []
        for number, file in enumerate(self.files):
            first, size_so_far = 0, 0
            for at, size in enumerate(file.decoded_bytes):
                if at > first and size_so_far + size > largest_bytes:
                    pieces.append(LogPiece(number, first, at))
                    first, size_so_far = at, 0
                size_so_far += size
            if file.decoded_bytes:
                pieces.append(LogPiece(number, first, len(file.decoded_bytes)))
        return tuple(pieces)

    def batches(self, piece: LogPiece) -> Iterator[tuple[int, pa.RecordBatch]]:
        """Checked record batches of one piece, each with the row of the file at which it starts.

        Types are unified; null lists are made empty and null floats NaN; only session ids may be null.

        Raises:
            InputError: a page cannot be decoded, or a time, integer sample or list element is null.
        """
        file = self.files[piece.file]
        row = sum(file.rows[: piece.first])
        groups = list(range(piece.first, piece.end))
        rows = max(1, min(65_536, BATCH_BYTES * self.rows // max(1, self.decoded_bytes)))
        try:
            reader = pq.ParquetFile(file.path, pre_buffer=False, buffer_size=READ_BUFFER)
            for batch in reader.iter_batches(rows, groups, columns=list(self.arrow.names), use_threads=False):
                yield row, self._checked(batch, file, row)
                row += batch.num_rows
        except (pa.ArrowException, OSError) as error:
            raise InputError(
                f"{file.path}: corrupt from about row {row} on ({_first_line(error)}); write the file again"
            ) from None

    def _checked(self, batch: pa.RecordBatch, file: LogFile, start: int) -> pa.RecordBatch:
        columns = []
        for wanted in self.arrow:
            column = batch.column(wanted.name)
            if pa.types.is_dictionary(column.type):
                column = column.dictionary_decode()
            column = column.cast(wanted.type)
            if column.null_count:
                column = self._without_nulls(column, wanted.name, f"{file.path}: column {wanted.name!r}", start)
            if _is_list(wanted.type) and column.flatten().null_count:
                raise InputError(
                    f"{file.path}: column {wanted.name!r} has a null inside a list within rows "
                    f"{start} to {start + batch.num_rows}; drop those elements or give them an id"
                )
            columns.append(column)
        return pa.RecordBatch.from_arrays(columns, schema=self.arrow)

    def _without_nulls(self, column: pa.Array, name: str, where: str, start: int) -> pa.Array:
        if name == self.schema.session:
            return column
        if _is_list(column.type):
            return pc.fill_null(column, pa.scalar([], column.type))
        if pa.types.is_floating(column.type):
            return pc.fill_null(column, float("nan"))
        row = start + pc.index(column.is_null(), True).as_py()
        raise InputError(f"{where} is null at row {row}; fill or drop that row")


def open_log(path: str | Path, schema: SessionSchema | None = None) -> SessionLog:
    """Open a Parquet file, or a folder of them, as a session log; every file's footer is read and checked.

    Args:
        path: a file, or a folder whose `*.parquet` files (at any depth) are the log.
        schema: roles of the columns; None reads `_schema.json` beside the files or else takes session_id,
            timestamp, each integer or float column as a sample column and each list as a group of its own.

    Raises:
        InputError: nothing to read, a corrupt file, a missing column, or types that cannot be reconciled.
    """
    path = Path(path)
    names = sorted(p for p in path.rglob("*.parquet") if not _hidden(p, path)) if path.is_dir() else [path]
    if not names or not all(name.is_file() for name in names):
        raise InputError(f"{path}: no Parquet file here; give a .parquet file or a folder that holds some")
    opened = [_open(name) for name in names]
    beside = (path if path.is_dir() else path.parent) / SCHEMA_FILE
    if schema is None:
        schema = SessionSchema.read(beside) if beside.is_file() else infer_schema(opened[0][1], names[0])
    arrow, notes = _unify(schema, [(name, arrow) for name, (_, arrow) in zip(names, opened)])
    files = tuple(_log_file(name, meta) for name, (meta, _) in zip(names, opened))
    return SessionLog(schema, arrow, files, tuple(notes))


def infer_schema(arrow: pa.Schema, path: Path) -> SessionSchema:
    """The default roles: `session_id`, `timestamp`, numeric columns as samples, each list a group of its own.

    Raises:
        InputError: the two default columns are absent.
    """
    default = SessionSchema()
    for name in (default.session, default.time):
        if name not in arrow.names:
            raise InputError(f"{path}: has no column {name!r}; name the session and time columns in a schema")
    rest = [column for column in arrow if column.name not in (default.session, default.time)]
    samples = tuple(c.name for c in rest if pa.types.is_integer(_normal(c.type)) or pa.types.is_floating(c.type))
    groups = tuple(GroupSpec(c.name, (c.name,)) for c in rest if _is_list(c.type))
    return SessionSchema(samples=samples, groups=groups)


def _hidden(path: Path, root: Path) -> bool:
    return any(part.startswith(("_", ".")) for part in path.relative_to(root).parts)


def _open(path: Path) -> tuple[pq.FileMetaData, pa.Schema]:
    try:
        with pq.ParquetFile(path) as file:
            return file.metadata, file.schema_arrow
    except (pa.ArrowException, OSError) as error:
        raise InputError(
            f"{path}: not a whole Parquet file ({_first_line(error)}); finish or remove the file"
        ) from None


def _first_line(error: Exception) -> str:
    return str(error).strip().splitlines()[0].rstrip(".") if str(error).strip() else type(error).__name__


def _log_file(path: Path, meta: pq.FileMetaData) -> LogFile:
    groups = [meta.row_group(at) for at in range(meta.num_row_groups)]
    # Values times 8 bytes: what the columns take once dictionaries and encodings are undone.
    decoded = (sum(8 * group.column(c).num_values for c in range(meta.num_columns)) for group in groups)
    return LogFile(path, tuple(group.num_rows for group in groups), tuple(decoded))


def _is_list(kind: pa.DataType) -> bool:
    return pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)


def _unify(schema: SessionSchema, files: list[tuple[Path, pa.Schema]]) -> tuple[pa.Schema, list[str]]:
    fields, notes = [], []
    for name in schema.columns:
        kinds: dict[pa.DataType, Path] = {}
        for path, arrow in files:
            if name not in arrow.names:
                raise InputError(f"{path}: has no column {name!r}, which the schema reads; add it, or mend the schema")
            kinds.setdefault(_normal(arrow.field(name).type), path)
        kind = _common(name, kinds)
        _check_role(schema, name, kind, files[0][0])
        if len(kinds) > 1:
            notes.append(f"column {name!r} is {' or '.join(map(str, kinds))} by file: read as {kind}")
        fields.append(pa.field(name, kind))
    _check_groups(schema, pa.schema(fields), files[0][0])
    extra = sorted({name for _, arrow in files for name in arrow.names} - set(schema.columns))
    if extra:
        notes.append(f"columns outside the schema are left out: {', '.join(extra)}")
    return pa.schema(fields), notes


def _normal(kind: pa.DataType) -> pa.DataType:
    """The type as it is read: plain strings, large lists, truth values as 0 and 1."""
    if pa.types.is_dictionary(kind):
        return _normal(kind.value_type)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind):
        return pa.string()
    if pa.types.is_boolean(kind):
        return pa.int8()
    return pa.large_list(_normal(kind.value_type)) if _is_list(kind) else kind


def _common(name: str, kinds: dict[pa.DataType, Path]) -> pa.DataType:
    """One type for all files: itself, or the widest whole number or float (of lists too)."""
    types = list(kinds)
    if len(types) == 1:
        return types[0]
    if all(map(pa.types.is_large_list, types)):
        return pa.large_list(_common(name, {t.value_type: kinds[t] for t in types}))
    for same in (pa.types.is_signed_integer, pa.types.is_unsigned_integer, pa.types.is_floating):
        if all(map(same, types)):
            return max(types, key=lambda t: t.bit_width)
    (first, a), (second, b) = list(kinds.items())[:2]
    raise InputError(f"{b}: column {name!r} is {second}, but {first} in {a}; write both with one type")


def _check_role(schema: SessionSchema, name: str, kind: pa.DataType, path: Path) -> None:
    whole, real, text = pa.types.is_integer(kind), pa.types.is_floating(kind), pa.types.is_string(kind)
    if name == schema.session:
        fits, wanted = whole or text, "whole numbers or text"
    elif name == schema.time:
        fits, wanted = whole or pa.types.is_timestamp(kind), "whole numbers or timestamps"
    elif name in schema.samples:
        fits, wanted = whole or real, "numbers (map text to ids first, or leave the column out)"
    else:
        inner = kind.value_type if _is_list(kind) else None
        fits = inner is not None and (pa.types.is_integer(inner) or pa.types.is_floating(inner))
        wanted = "lists of numbers"
    if not fits:
        raise InputError(f"{path}: column {name!r} is {kind}; its role in the schema takes {wanted}")


def _check_groups(schema: SessionSchema, arrow: pa.Schema, path: Path) -> None:
    for group in schema.groups:
        kinds = {str(arrow.field(feature).type.value_type): feature for feature in group.features}
        if len(kinds) > 1:
            raise InputError(
                f"{path}: group {group.name!r} mixes {' and '.join(kinds)} in {', '.join(kinds.values())}; "
                "give them one type, or groups of their own"
            )
