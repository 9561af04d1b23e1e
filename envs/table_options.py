"""What may be decided about a table before its pieces are placed."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import lru_cache
from typing import Protocol

from shardgym.embeddings.tensor_train.shapes import choose_dim_shape
from shardgym.envs.prices import DEFAULT_BUDGET, DEFAULT_PRICES, FORMATS
from shardgym.problem.tables import TableSpec, TensorTrainFormat
from shardgym.problem.tasks import Task

ROUNDING = 1e-9
"""Points of accuracy that a sum of prices may be off by."""


@dataclass(frozen=True)
class Option:
    """One way to hold a table.

    Args:
        piece: what is placed.
        pieces: how many equal pieces of it.
        price: points of the accuracy budget that it takes.
    """

    piece: TableSpec
    pieces: int = 1
    price: float = 0.0

    def parts(self) -> tuple[TableSpec, ...]:
        """The pieces as tables with names of their own."""
        if self.pieces == 1:
            return (self.piece,)
        return tuple(replace(self.piece, name=f"{self.piece.name}/{k}") for k in range(self.pieces))


class Rules(Protocol):
    """An environment's decisions: the options of a table, and what they may cost together."""

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the options; a single one means that nothing but devices is decided."""
        ...

    @property
    def max_pieces(self) -> int:
        """Most pieces of any option."""
        ...

    def options(self, table: TableSpec) -> tuple[Option | None, ...]:
        """One for each name, None where the table does not have it; the first is never None."""
        ...

    def budget(self, task: Task) -> float:
        """Points of accuracy that the options of all tables may take together."""
        ...


@dataclass(frozen=True)
class AsGiven:
    """Tables are placed as they are."""

    names: tuple[str, ...] = ("as given",)
    max_pieces: int = 1

    def options(self, table: TableSpec) -> tuple[Option | None, ...]:
        """The table itself."""
        return (Option(table),)

    def budget(self, task: Task) -> float:
        """Nothing is priced."""
        return 0.0


@dataclass(frozen=True)
class ColumnSplits:
    """A dense table is placed whole, or as 2, 4 or 8 column shards of a dim that stays a multiple of 4."""

    counts: tuple[int, ...] = (1, 2, 4, 8)

    @property
    def names(self) -> tuple[str, ...]:
        """One option a count."""
        return tuple(f"{count} piece{'s' * (count > 1)}" for count in self.counts)

    @property
    def max_pieces(self) -> int:
        """Most column shards of a table."""
        return max(self.counts)

    def options(self, table: TableSpec) -> tuple[Option | None, ...]:
        """The splits that the table's dim allows."""
        return tuple(self._split(table, count) for count in self.counts)

    def budget(self, task: Task) -> float:
        """Splitting loses no accuracy."""
        return 0.0

    def _split(self, table: TableSpec, count: int) -> Option | None:
        if count == 1:
            return Option(table)
        if table.tensor_train is not None or table.dim % (4 * count):
            return None
        return Option(replace(table, dim=table.dim // count), pieces=count)


@dataclass(frozen=True)
class Formats:
    """A table is held dense in fp32, fp16 or int8, or as a tensor train, at a price in accuracy.

    Args:
        prices: points of one table in each format, by the names of `prices.FORMATS`.
        budget_per_table: points that a task may spend, times its tables.
    """

    prices: Mapping[str, float] = field(default_factory=lambda: dict(DEFAULT_PRICES))
    budget_per_table: float = DEFAULT_BUDGET
    names: tuple[str, ...] = FORMATS
    max_pieces: int = 1

    def options(self, table: TableSpec) -> tuple[Option | None, ...]:
        """Every format."""
        dense = replace(table, tensor_train=None)
        pieces = [
            replace(dense, dtype="fp32"),
            replace(dense, dtype="fp16"),
            replace(dense, dtype="int8"),
            tensor_train(dense, 32),
            tensor_train(dense, 16),
        ]
        return tuple(Option(piece, price=self.prices[name]) for name, piece in zip(self.names, pieces))

    def budget(self, task: Task) -> float:
        """Points that the formats of all tables may take together."""
        return self.budget_per_table * len(task.tables)


def tensor_train(table: TableSpec, rank: int) -> TableSpec:
    """The table as an fp32 tensor train of three cores.

    Row factors are balanced rather than searched for the least padding (`embeddings.tensor_train.shapes`), which takes
    tens of milliseconds per table and saves under 1% of its bytes.
    """
    first = math.ceil(table.rows ** (1 / 3))
    rows = (first, first, math.ceil(table.rows / first**2))
    return replace(table, dtype="fp32", tensor_train=TensorTrainFormat((rank, rank), rows, _dim_shape(table.dim)))


@lru_cache(maxsize=256)
def _dim_shape(dim: int) -> tuple[int, ...]:
    return choose_dim_shape(dim, 3)
