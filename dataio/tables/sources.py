"""Table sets by name: a file, a public set, or a generator."""

from pathlib import Path

from shardgym.dataio.tables.public_tables import criteo_kaggle
from shardgym.dataio.tables.synthetic import DIMS, dlrm_like
from shardgym.dataio.tables.table_files import read_tables
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TableSpec


def tables_from_source(source: str, seed: int = 0, default_dim: int | None = None) -> tuple[TableSpec, ...]:
    """The tables that a source names.

    Args:
        source: a table file, "criteo-kaggle", or "dlrm:COUNT".
        seed: of generated tables.
        default_dim: dim of tables whose source has none, and of every generated or Criteo table.

    Raises:
        InputError: names the source and what may be given.
    """
    if source == "criteo-kaggle":
        return criteo_kaggle(default_dim or 16)
    kind, _, count = source.partition(":")
    if kind == "dlrm" and not Path(source).exists():
        if not count.isdigit() or int(count) < 1:
            raise InputError(f"tables {source!r}: give a count of at least 1, as in dlrm:50")
        return dlrm_like(int(count), seed, (default_dim,) if default_dim else DIMS)
    if Path(source).suffix == "":
        raise InputError(f"tables {source!r} is unknown; give a .json, .csv or .parquet file, criteo-kaggle or dlrm:50")
    return read_tables(Path(source), default_dim)
