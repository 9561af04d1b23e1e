"""Sorting a partition by session, time and place in the log: in memory where it fits, else by DuckDB on disk."""

import shutil
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from shardgym.dataio.sessions.route import ORDER_COLUMNS, column_names
from shardgym.dataio.sessions.schema import SessionSchema
from shardgym.problem.errors import InputError

BATCH_ROWS = 8192
IN_MEMORY_SHARE = 3
"""A partition is sorted in memory where it takes at most this part of it: it is there twice, beside what is written."""


@dataclass(frozen=True)
class Sort:
    """How partitions are sorted.

    Args:
        schema: roles of the columns.
        arrow: their types, in the order of `schema.columns`.
        memory: bytes that the process may take, about.
        threads: of DuckDB.
        spill: folder for DuckDB's temporary files, removed afterwards.
    """

    schema: SessionSchema
    arrow: pa.Schema
    memory: int
    threads: int
    spill: Path

    def batches(self, files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        """The samples of routed files, sorted, with the log's column names and types."""
        if not files:
            return
        in_memory = sum(_decoded_bytes(path) for path in files) * IN_MEMORY_SHARE <= self.memory
        for batch in self._in_memory(files) if in_memory else self._on_disk(files):
            yield pa.RecordBatch.from_arrays(
                [column.cast(field.type) for column, field in zip(batch.columns, self.arrow)], schema=self.arrow
            )

    def _keys(self) -> list[str]:
        names = dict(zip(self.schema.columns, column_names(self.schema)))
        return [names[self.schema.session], names[self.schema.time], *ORDER_COLUMNS]

    def _in_memory(self, files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        table = pa.concat_tables([pq.read_table(path, use_threads=False) for path in files]).combine_chunks()
        keys = table.select(self._keys())
        # Null sessions come first, as DuckDB is told to lay them.
        keys = keys.append_column("known", pc.cast(pc.is_valid(keys.column(0)), pa.int8()))
        names = ["known", *self._keys()]
        order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in names])
        table = table.drop_columns(list(ORDER_COLUMNS))
        for start in range(0, len(order), BATCH_ROWS):
            yield from table.take(order.slice(start, BATCH_ROWS)).combine_chunks().to_batches()

    def _on_disk(self, files: Sequence[Path]) -> Iterator[pa.RecordBatch]:
        config = {"memory_limit": f"{self.memory // 3}B", "threads": self.threads, "temp_directory": str(self.spill)}
        session, *others = self._keys()
        with duckdb_module().connect(config=config) as connection:
            connection.execute("SET enable_progress_bar = false; SET preserve_insertion_order = false")
            relation = connection.sql(
                f"SELECT {', '.join(column_names(self.schema))} FROM read_parquet($files) "
                f"ORDER BY {', '.join([f'{session} NULLS FIRST', *others])}",
                params={"files": sorted(map(str, files))},
            )
            yield from relation.to_arrow_reader(BATCH_ROWS)
        shutil.rmtree(self.spill, ignore_errors=True)


def _decoded_bytes(path: Path) -> int:
    """Bytes of a routed file's values; its pages are plain, so those before compression."""
    with pq.ParquetFile(path) as file:
        return int(np.sum([file.metadata.row_group(at).total_byte_size for at in range(file.num_row_groups)]))


def duckdb_module() -> ModuleType:
    """DuckDB.

    Raises:
        InputError: it is not installed.
    """
    try:
        import duckdb
    except ImportError:
        raise InputError("clustering needs DuckDB, which is not installed; pip install 'shardgym[sessions]'") from None
    return duckdb
