"""Several tensor-train tables looked up in one fused op."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.kernels.bags import Bags, table_bags
from shardgym.embeddings.tables.bag_inputs import read_bags
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.embeddings.tensor_train.lookup import lookup
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@public("shardgym.embeddings")
class TableBatchedTTEmbeddingBags(nn.Module):
    """Tensor-train tables of any shapes, ranks, modes and optimizers behind one look-up.

    Args:
        tables: at least one, of one dtype and device; a table may be used elsewhere too.
        kernel: "auto", "compiled" or "torch".

    Shape:
        indices (L,): the ids of table 0's B bags, then those of table 1, ...; offsets (tables * B + 1,), the last being
        L. Output (B, sum of dims), in the order of the tables.

    Raises:
        InputError: as `TTEmbeddingBag` does, and for bags that do not divide among the tables.
    """

    def __init__(self, tables: Sequence[TTEmbeddingBag], kernel: str = "auto") -> None:
        super().__init__()
        if not tables:
            raise InputError("tables: none given; give at least one TTEmbeddingBag")
        if len({(table.cores[0].dtype, table.cores[0].device) for table in tables}) > 1:
            raise InputError("tables: of several dtypes or devices; batch those of one dtype and device")
        self.tables = nn.ModuleList(tables)
        self.kernel = kernel

    def _members(self) -> list[TTEmbeddingBag]:
        return [table for table in self.tables if isinstance(table, TTEmbeddingBag)]

    @classmethod
    def from_specs(cls, specs: Sequence[TableSpec], **options: Any) -> "TableBatchedTTEmbeddingBags":
        """Fresh tables for specs that have a `tensor_train` format; options as of `TTEmbeddingBag`.

        Raises:
            InputError: for a dense spec.
        """
        tables = []
        for spec in specs:
            if spec.tensor_train is None:
                raise InputError(f"table {spec.name!r}: is dense; give it a tensor_train format (see choose_format)")
            dtype = options.get("dtype", DTYPES[spec.dtype])
            tables.append(
                TTEmbeddingBag.from_format(spec.rows, spec.dim, spec.tensor_train, **options | {"dtype": dtype})
            )
        return cls(tables)

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Pooled rows (B, sum of dims); see the class for shapes and errors."""
        bags = read_bags(indices, offsets, per_sample_weights, include_last_offset=True)
        count = offsets.numel() - 1
        if count % len(self.tables):
            raise InputError(
                f"offsets: {count} bags do not divide among {len(self.tables)} tables; give as many to each"
            )
        tables, parts = self._members(), table_bags(bags, len(self.tables))
        for table, part in zip(tables, parts):
            table.check(part)  # all tables before any of them counts a look-up
        prepared = [table.prepare(part) for table, part in zip(tables, parts)]
        return lookup(tables, _joined(prepared), self.kernel)

    @property
    def compression_ratio(self) -> float:
        """Numbers of the dense tables over the numbers trained here."""
        dense = sum(table.num_embeddings * table.embedding_dim for table in self._members())
        return dense / sum(weight.numel() for weight in self.parameters())


def _joined(parts: Sequence[Bags]) -> Bags:
    """Bags of all tables, table-major; weights of ones where only some tables have weights."""
    starts = [0]
    for part in parts:
        starts.append(starts[-1] + part.indices.numel())
    offsets = torch.cat([parts[0].offsets[:1], *(part.offsets[1:] + start for part, start in zip(parts, starts))])
    weights = None
    given = [part.weights for part in parts if part.weights is not None]
    if given:
        kind = given[0].dtype
        weights = torch.cat(
            [part.indices.new_ones(part.indices.numel(), dtype=kind) if part.weights is None else part.weights
             for part in parts]
        )  # fmt: skip
    return Bags(torch.cat([part.indices for part in parts]), offsets, weights)
