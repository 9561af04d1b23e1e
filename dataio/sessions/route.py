"""Routing a log by session id (RecD's O1): every session's samples end in one partition, whatever file they were in."""

import hashlib
import resource
import shutil
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardgym.dataio.sessions.log import LogPiece, SessionLog
from shardgym.dataio.sessions.schema import SessionSchema
from shardgym.problem.errors import InputError

ORDER_COLUMNS = ("__file", "__row")
"""Where a routed sample came from: what breaks ties of session and time."""


def column_names(schema: SessionSchema) -> list[str]:
    """Names of the schema's columns in routed files, which DuckDB does not tell apart by case."""
    return [f"column_{number}" for number in range(len(schema.columns))]


def partition_of(sessions: pa.Array, partitions: int, rows: np.ndarray) -> np.ndarray:
    """The partition of each session id (N,), the same on every machine and in every version.

    Args:
        sessions: whole numbers or text.
        partitions: how many there are.
        rows: (N,) row numbers; a null id is spread by its row, being a session of its own.
    """
    hashed = _mix(rows.astype(np.uint64))
    valid = sessions.is_valid().to_numpy(zero_copy_only=False)
    known = sessions.drop_null()
    if pa.types.is_integer(sessions.type):
        unsigned = pa.types.is_unsigned_integer(sessions.type)
        hashed[valid] = _mix(known.to_numpy().astype(np.uint64 if unsigned else np.int64).astype(np.uint64))
    else:
        hashed[valid] = text_hashes(known)
    return (hashed % np.uint64(partitions)).astype(np.int64)


def text_hashes(texts: pa.Array) -> np.ndarray:
    """The first 64 bits of each text's BLAKE2b (RFC 7693), little-endian: (N,) uint64; no text may be null."""
    encoded = texts.dictionary_encode()
    digests = (hashlib.blake2b(text.encode(), digest_size=8).digest() for text in encoded.dictionary.to_pylist())
    return np.frombuffer(b"".join(digests), dtype="<u8")[encoded.indices.to_numpy()]


def _mix(words: np.ndarray) -> np.ndarray:
    """The finaliser of SplitMix64 (Steele et al., 2014): neighbouring ids land far apart."""
    words = words + np.uint64(0x9E3779B97F4A7C15)
    words = (words ^ (words >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    words = (words ^ (words >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return words ^ (words >> np.uint64(31))


def route_piece(log: SessionLog, piece: LogPiece, partitions: int, folder: Path) -> None:
    """Write one piece's samples to `folder/PARTITION.parquet`; the folder appears whole or not at all.

    Args:
        log: the log that the piece is of.
        piece: which row groups to route.
        partitions: how many partitions there are.
        folder: where to write; when it is there already, nothing is done.

    Raises:
        InputError: the piece holds samples that cannot be read (`SessionLog.batches`).
    """
    if folder.exists():
        return
    temporary = folder.with_name(folder.name + ".tmp")
    shutil.rmtree(temporary, ignore_errors=True)
    temporary.mkdir(parents=True)
    allow_open_files(partitions + 64)
    writers: dict[int, pq.ParquetWriter] = {}
    try:
        for row, batch in log.batches(piece):
            rows = np.arange(row, row + batch.num_rows)
            sessions = batch.column(log.schema.session)
            batch = batch.rename_columns(column_names(log.schema))
            batch = batch.append_column(ORDER_COLUMNS[0], pa.array(np.full(rows.size, piece.file)))
            batch = batch.append_column(ORDER_COLUMNS[1], pa.array(rows))
            for partition, part in _split(batch, partition_of(sessions, partitions, rows)):
                if partition not in writers:
                    path = temporary / f"{partition:05d}.parquet"
                    writers[partition] = pq.ParquetWriter(path, batch.schema, compression="lz4", use_dictionary=False)
                writers[partition].write_batch(part)
    finally:
        for writer in writers.values():
            writer.close()
    temporary.replace(folder)


def allow_open_files(count: int) -> None:
    """Let this process have so many files open, as far as the system allows it.

    Raises:
        InputError: it does not allow as many.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if soft != resource.RLIM_INFINITY and soft < count:
        if hard != resource.RLIM_INFINITY and hard < count:
            raise InputError(f"{count} files would be open at once, but {hard} are allowed; give fewer partitions")
        resource.setrlimit(resource.RLIMIT_NOFILE, (count, hard))


def _split(batch: pa.RecordBatch, partition: np.ndarray) -> Iterator[tuple[int, pa.RecordBatch]]:
    order = np.argsort(partition, kind="stable")
    ordered = batch.take(pa.array(order))
    present, starts = np.unique(partition[order], return_index=True)
    for number, start, end in zip(present.tolist(), starts, [*starts[1:], len(order)]):
        yield number, ordered.slice(start, end - start)
