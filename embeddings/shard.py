"""All the tables that one device holds, as one module: what is measured, trained and shipped."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from shardgym.embeddings.table_batched import ReusedMemory, TableBatchedBags
from shardgym.embeddings.tables import TableSpec


class EmbeddingShard(nn.Module):
    """The tables of one device, in any mix of formats, behind one look-up.

    Tables of one format are fused into one op; their outputs are put back in the order of `tables`.

    Args:
        tables: what the device holds, at least one.
        memory: where the weights are laid; fresh memory when None.
        device: "cpu" or "cuda".

    Raises:
        InputError: for a format that no op here holds.
    """

    def __init__(self, tables: Sequence[TableSpec], memory: ReusedMemory | None = None, device: str = "cpu") -> None:
        super().__init__()
        self.tables = tuple(tables)
        memory = memory or ReusedMemory(device)
        dtypes = sorted({table.dtype for table in self.tables})
        self.members = [[t for t, table in enumerate(self.tables) if table.dtype == dtype] for dtype in dtypes]
        self.ops = nn.ModuleList(
            TableBatchedBags([self.tables[t] for t in members], memory=memory, device=device)
            for members in self.members
        )

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """Look up and pool every table.

        Args:
            indices: (N,) int64, the ids of table 0's B bags, then those of table 1, ...
            offsets: (tables * B + 1,) int64.

        Returns:
            (B, sum of dims) float32, in the order of `tables`.
        """
        if len(self.ops) == 1:
            return self.ops[0](indices, offsets)
        pooled: list[Tensor] = [torch.empty(0)] * len(self.tables)
        for members, op in zip(self.members, self.ops):
            part = op(*select_tables(indices, offsets, members, len(self.tables)))
            for t, columns in zip(members, part.split([self.tables[t].dim for t in members], dim=1)):
                pooled[t] = columns
        return torch.cat(pooled, dim=1)


def select_tables(indices: Tensor, offsets: Tensor, members: Sequence[int], tables: int) -> tuple[Tensor, Tensor]:
    """The part of a table-batched batch that belongs to some of its tables, in their order."""
    batch = (len(offsets) - 1) // tables
    lengths = offsets.diff().view(tables, batch)[list(members)].flatten()  # (members * B,)
    ids = [indices[offsets[t * batch] : offsets[(t + 1) * batch]] for t in members]
    return torch.cat(ids), torch.cat([offsets.new_zeros(1), lengths.cumsum(0)])
