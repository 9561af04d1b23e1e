"""All the tables that one device holds, as one module: what is measured, trained and shipped."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from shardgym.embeddings.jagged.ops import expand_rows
from shardgym.embeddings.tables.frozen_bags import FROZEN_DTYPES, FrozenBags
from shardgym.embeddings.tables.fused_optimizers import RowwiseAdagrad
from shardgym.embeddings.tables.table_batched import ReusedMemory, TableBatchedBags
from shardgym.embeddings.tensor_train.batched import TableBatchedTTEmbeddingBags
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

CACHE_SCHEDULE = CacheSchedule(warmup_steps=1, refresh_every=1000, track_every=10)
"""The first batch fills the hot-row caches of tensor-train tables."""


@public("shardgym.embeddings")
@dataclass(frozen=True)
class OpBatch:
    """A batch for one op of a shard.

    Args:
        indices: (N,) int64, table by table.
        offsets: (tables * U + 1,) int64, U being the bags looked up.
        inverse: (B,) which of the U bags each sample has, for deduplicated batches (RecD's IKJT); None where U = B.
    """

    indices: Tensor
    offsets: Tensor
    inverse: Tensor | None = None

    def to(self, device: str) -> "OpBatch":
        """The same on a device."""
        inverse = None if self.inverse is None else self.inverse.to(device)
        return replace(self, indices=self.indices.to(device), offsets=self.offsets.to(device), inverse=inverse)


@public("shardgym.embeddings")
class EmbeddingShard(nn.Module):
    """The tables of one device, in any mix of formats, behind one look-up.

    Tables of one format are fused into one op, those of a deduplicated feature group in one of their own; the outputs
    are put back in the order of `tables`. Dense and tensor-train tables are trained in the backward by row-wise
    Adagrad; int8 and int4 tables are frozen.

    Args:
        tables: what the device holds, at least one.
        memory: where dense weights are laid; fresh memory when None.
        device: "cpu" or "cuda".

    Raises:
        InputError: for no table.
    """

    def __init__(self, tables: Sequence[TableSpec], memory: ReusedMemory | None = None, device: str = "cpu") -> None:
        super().__init__()
        if not tables:
            raise InputError("tables: none given; a shard needs at least one table")
        self.tables = tuple(tables)
        memory = memory or ReusedMemory(device)
        by_op: dict[tuple[str, str], list[int]] = {}
        for t, table in enumerate(self.tables):
            by_op.setdefault(op_key(table), []).append(t)
        self.members = [by_op[key] for key in sorted(by_op)]
        self.ops = nn.ModuleList(make_op([self.tables[t] for t in each], memory, device) for each in self.members)

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """Look up and pool every table, duplicates included.

        Args:
            indices: (N,) int64, the ids of table 0's B bags, then those of table 1, ...
            offsets: (tables * B + 1,) int64.

        Returns:
            (B, sum of dims) float32, in the order of `tables`.
        """
        return self.pool(self.split(indices, offsets))

    def split(self, indices: Tensor, offsets: Tensor) -> list[OpBatch]:
        """A plain batch, as of `forward`, in parts for the ops."""
        if len(self.ops) == 1:
            return [OpBatch(indices, offsets)]
        return [OpBatch(*select_tables(indices, offsets, each, len(self.tables))) for each in self.members]

    def pool(self, batch: Sequence[OpBatch]) -> Tensor:
        """Look up one part for each op; (B, sum of dims) float32, in the order of `tables`."""
        parts = []
        for op, part in zip(self.ops, batch):
            pooled = op(part.indices, part.offsets).float()
            parts.append(pooled if part.inverse is None else expand_rows(pooled, part.inverse))
        if len(parts) == 1:
            return parts[0]
        columns: list[Tensor] = [torch.empty(0)] * len(self.tables)
        for members, columns_of in zip(self.members, parts):
            for t, own in zip(members, columns_of.split([self.tables[t].dim for t in members], dim=1)):
                columns[t] = own
        return torch.cat(columns, dim=1)


def op_key(table: TableSpec) -> tuple[str, str]:
    """Which tables of a shard share an op: those of one format, and of one feature group where lists repeat."""
    kind = f"{table.dtype} tt" if table.tensor_train is not None else table.dtype
    factor = table.dedup.factor()
    return kind, f"{table.group or table.name} {factor:.3f}" if factor > 1 else ""


def make_op(tables: Sequence[TableSpec], memory: ReusedMemory, device: str) -> nn.Module:
    """One op over tables of one format."""
    if tables[0].tensor_train is not None:
        return TableBatchedTTEmbeddingBags.from_specs(
            tables, optimizer=RowwiseAdagrad(), cache_schedule=CACHE_SCHEDULE, device=device
        )
    if tables[0].dtype in FROZEN_DTYPES:
        return FrozenBags(tables, memory)
    return TableBatchedBags(tables, memory=memory, device=device)


def select_tables(indices: Tensor, offsets: Tensor, members: Sequence[int], tables: int) -> tuple[Tensor, Tensor]:
    """The part of a table-batched batch that belongs to some of its tables, in their order."""
    batch = (len(offsets) - 1) // tables
    lengths = offsets.diff().view(tables, batch)[list(members)].flatten()  # (members * B,)
    ids = [indices[offsets[t * batch] : offsets[(t + 1) * batch]] for t in members]
    return torch.cat(ids), torch.cat([offsets.new_zeros(1), lengths.cumsum(0)])
