"""Row-wise quantised tables of one device: looked up, not trained."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.tables.table_batched import ReusedMemory
from shardgym.problem.errors import InputError
from shardgym.problem.tables import ROW_BYTES, TableSpec

FROZEN_DTYPES = ("int8", "int4")
LOOKUPS = {
    "int8": torch.ops.quantized.embedding_bag_byte_rowwise_offsets,
    "int4": torch.ops.quantized.embedding_bag_4bit_rowwise_offsets,
}


class FrozenBags(nn.Module):
    """Sum-pooled bags over int8 or int4 tables, by torch's quantised look-ups (on CPU).

    Args:
        tables: of one of these dtypes; int4 tables of an even dim.
        memory: where the packed rows are laid.

    Raises:
        InputError: when the tables are of other or several dtypes, or an int4 dim is odd.
    """

    def __init__(self, tables: Sequence[TableSpec], memory: ReusedMemory) -> None:
        super().__init__()
        self.tables = tuple(tables)
        dtypes = {table.dtype for table in self.tables}
        if len(dtypes) != 1 or not dtypes <= set(FROZEN_DTYPES):
            raise InputError(f"tables: a frozen op holds tables of int8 or of int4, not {sorted(dtypes)}")
        self.dtype = dtypes.pop()
        odd = [table.name for table in self.tables if self.dtype == "int4" and table.dim % 2]
        if odd:
            raise InputError(f"table {odd[0]!r}: int4 rows need an even dim; choose int8 or another dim")
        widths = [ROW_BYTES[self.dtype](table.dim) for table in self.tables]
        sizes = [table.rows * width for table, width in zip(self.tables, widths)]
        flat = memory.take("weights", torch.uint8, sum(sizes))
        self.packed = [
            part.view(table.rows, width) for part, table, width in zip(flat.split(sizes), self.tables, widths)
        ]
        # A backward through the pooled rows runs, and changes nothing.
        self.anchor = nn.Parameter(torch.zeros(()))

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """Look up and pool: indices (N,) table by table, offsets (tables * B + 1,), to (B, sum of dims) float32."""
        bags = (len(offsets) - 1) // len(self.tables)
        edges = offsets[:: max(bags, 1)].tolist()
        pooled = []
        for t, packed in enumerate(self.packed):
            begin, end = edges[t], edges[t + 1]
            own = offsets[t * bags : (t + 1) * bags + 1] - begin
            pooled.append(LOOKUPS[self.dtype](packed, indices[begin:end], own, include_last_offset=True))
        return _Frozen.apply(self.anchor, torch.cat(pooled, dim=1))


class _Frozen(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, pooled: Tensor) -> Tensor:
        return pooled.view_as(pooled)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None]:
        return grad.new_zeros(()), None
