"""Which groups of tables to measure: a seeded design that any run can pick up where another stopped."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec


class Design(Protocol):
    """A numbered list of groups to measure; group k is the same whenever it is asked for."""

    def group(self, index: int) -> tuple[TableSpec, ...]:
        """The tables of one group."""
        ...

    def batch_size_of(self, index: int) -> int:
        """The batch size that the group is looked up with."""
        ...


@public("shardgym.costmodel")
@dataclass(frozen=True)
class GroupDesign:
    """Random groups of tables; group k depends on the seed and k alone.

    Args:
        pools: table sets to draw from; each group comes from one of them, so that models are not mixed.
        batch_size: bags per table.
        max_tables: most tables in a group.
        max_bytes: memory that one device may hold.
        seed: of the design.
    """

    pools: tuple[tuple[TableSpec, ...], ...]
    batch_size: int
    max_tables: int
    max_bytes: int
    seed: int

    def __post_init__(self) -> None:
        for pool in self.pools:
            smallest = min(pool, key=TableSpec.bytes)
            if smallest.bytes() > self.max_bytes:
                raise InputError(
                    f"measure: no table fits; the smallest, {smallest.name!r}, takes {smallest.bytes():,} bytes and a "
                    f"device may hold {self.max_bytes:,}; raise the memory"
                )

    def group(self, index: int) -> tuple[TableSpec, ...]:
        """The tables of one group: its size is log-uniform, so that small groups are seen as often as large ones."""
        rng = np.random.default_rng([self.seed, index])
        pool = self.pools[index % len(self.pools)]
        most = min(self.max_tables, len(pool))
        size = int(np.exp(rng.uniform(0, np.log(most + 1))))
        return fitting(pool, rng.permutation(len(pool)).tolist(), size, self.max_bytes)

    def batch_size_of(self, index: int) -> int:
        """The same batch size for every group."""
        return self.batch_size


def fitting(pool: Sequence[TableSpec], order: Sequence[int], size: int, max_bytes: int) -> tuple[TableSpec, ...]:
    """The first `size` tables of the order that fit into memory together, larger ones being passed over."""
    chosen: list[TableSpec] = []
    room = max_bytes
    for t in order:
        if len(chosen) == size:
            break
        if pool[t].bytes() <= room:
            chosen.append(pool[t])
            room -= pool[t].bytes()
    return tuple(chosen)
