"""Groups in which tables are compressed, quantised, or looked up in deduplicated batches."""

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from functools import lru_cache

import numpy as np

from shardgym.costmodel.measuring.wide_design import WideDesign, log_uniform
from shardgym.embeddings.tensor_train.shapes import choose_format
from shardgym.problem.faces import public
from shardgym.problem.tables import Dedup, TableSpec, TensorTrainFormat

RANKS = (4, 8, 16, 32, 64)
FEWEST_TT_ROWS = 1000
"""Smaller tables stay dense: their cores would be as large."""

Change = Callable[[TableSpec, np.random.Generator], TableSpec]


@public("shardgym.costmodel")
@dataclass(frozen=True)
class FormatDesign:
    """The groups of a `WideDesign`, with tables turned into other formats.

    In turn a group holds tensor-train tables, such tables with a cache of hot rows, int8 tables, tables with
    deduplicated lists (one or two feature groups), or a mix of all of them; a random share of its tables is turned.

    Args:
        base: the groups before; tensor-train products are costly, so that fewer ids are looked up.
    """

    base: WideDesign = field(default_factory=lambda: WideDesign(lookups=(20_000, 1_000_000), max_bytes=2**31, seed=1))

    def group(self, index: int) -> tuple[TableSpec, ...]:
        """The tables of one group."""
        rng = np.random.default_rng([self.base.seed, index, 1])
        changes = CHANGES[index % len(CHANGES)]
        share = 1.0 if rng.random() < 0.5 else rng.uniform(0.1, 1.0)
        dedups = [random_dedup(rng) for _ in range(2)]
        tables = []
        for table in self.base.group(index):
            if rng.random() < share:
                table = changes[int(rng.integers(len(changes)))](table, rng)
                if table.group is not None:
                    number = int(rng.integers(len(dedups)))
                    table = replace(table, dedup=dedups[number], group=f"lists_{number}")
            tables.append(table)
        return tuple(tables)

    def batch_size_of(self, index: int) -> int:
        """The batch size of one group."""
        return self.base.batch_size_of(index)


def as_tensor_train(table: TableSpec, rng: np.random.Generator) -> TableSpec:
    """The table as three cores of a random rank, in fp32."""
    if table.rows < FEWEST_TT_ROWS:
        return table
    form = _format(table.rows, table.dim, int(rng.choice(RANKS)))
    return replace(table, dtype="fp32", tensor_train=form)


def with_cache(table: TableSpec, rng: np.random.Generator) -> TableSpec:
    """The table as cores, with 0.01% to 3% of its rows cached."""
    table = as_tensor_train(table, rng)
    if table.tensor_train is None:
        return table
    cached = max(1, min(100_000, int(table.rows * log_uniform(rng.random(), 1e-4, 3e-2))))
    return replace(table, tensor_train=replace(table.tensor_train, cached_rows=cached))


def as_int8(table: TableSpec, rng: np.random.Generator) -> TableSpec:
    """The table quantised by rows."""
    return replace(table, dtype="int8")


def with_repeats(table: TableSpec, rng: np.random.Generator) -> TableSpec:
    """The table marked as one of a deduplicated feature group."""
    return replace(table, group="lists")


CHANGES: tuple[tuple[Change, ...], ...] = (
    (as_tensor_train,),
    (with_cache,),
    (as_int8,),
    (with_repeats,),
    (as_tensor_train, with_cache, as_int8, with_repeats),
)


def random_dedup(rng: np.random.Generator) -> Dedup:
    """Sessions of 2 to 50 samples, lists that stay with a chance of 0.5 to 1."""
    return Dedup(round(log_uniform(rng.random(), 2, 50), 2), round(rng.uniform(0.5, 1.0), 3))


@lru_cache(maxsize=8192)
def _format(rows: int, dim: int, rank: int) -> TensorTrainFormat:
    return choose_format(rows, dim, rank)
