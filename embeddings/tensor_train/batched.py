"""Several tensor-train tables looked up in one fused op."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.kernels.bags import join_bags, table_bags
from shardgym.embeddings.tables.bag_inputs import arrange_bags, read_bags
from shardgym.embeddings.tensor_train import ops
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.embeddings.tensor_train.lookup import lookup
from shardgym.embeddings.tensor_train.replicas import active_replicas
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

DTYPES = {"fp32": torch.float32, "fp16": torch.float16}


@public("shardgym.embeddings")
class TableBatchedTTEmbeddingBags(nn.Module):
    """Tensor-train tables of any shapes, ranks, modes and optimizers behind one look-up.

    Args:
        tables: at least one, of one dtype and device, of modes "sum" or "mean"; a table may be used elsewhere too.
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
        if any(table.mode == "max" for table in tables):
            raise InputError("tables: one has mode 'max', which is looked up alone; batch those of 'sum' and 'mean'")
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
            own = {"dtype": DTYPES[spec.dtype], "name": f"table {spec.name!r}"} | options
            if not spec.tensor_train.cached_rows:
                own.pop("cache_schedule", None)  # the schedule is for those that have a cache
            tables.append(TTEmbeddingBag.from_format(spec.rows, spec.dim, spec.tensor_train, **own))
        return cls(tables)

    def forward(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None = None) -> Tensor:
        """Pooled rows (B, sum of dims); see the class for shapes and errors."""
        if not ops.is_traced(indices):
            return self._forward_now(indices, offsets, per_sample_weights)
        if any(table.runs_between_graphs() for table in self._members()):
            return self._forward_eagerly(indices, offsets, per_sample_weights)
        bags = arrange_bags(indices, offsets, per_sample_weights, include_last_offset=True)
        self._check_count(offsets)
        return ops.traced_lookup(self._members(), bags, self.kernel)

    @torch.compiler.disable
    def _forward_eagerly(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None) -> Tensor:
        return self._forward_now(indices, offsets, per_sample_weights)

    def _forward_now(self, indices: Tensor, offsets: Tensor, per_sample_weights: Tensor | None) -> Tensor:
        bags = read_bags(indices, offsets, per_sample_weights, include_last_offset=True)
        self._check_count(offsets)
        tables, parts = self._members(), table_bags(bags, len(self.tables))
        for k, (table, part) in enumerate(zip(tables, parts)):
            # All tables before any of them counts a look-up.
            table.check(part, f"table {k}" if table.name == "table" else table.name)
        prepared = [table.prepare(part) for table, part in zip(tables, parts)]
        replicas = active_replicas()
        for table in tables:
            table.replicas = replicas or table.replicas
        return lookup(tables, join_bags(prepared), self.kernel)

    def _check_count(self, offsets: Tensor) -> None:
        count = offsets.numel() - 1
        if count % len(self.tables):
            raise InputError(
                f"offsets: {count} bags do not divide among {len(self.tables)} tables; give as many to each"
            )

    @property
    def compression_ratio(self) -> float:
        """Numbers of the dense tables over the numbers trained here."""
        dense = sum(table.num_embeddings * table.embedding_dim for table in self._members())
        return dense / sum(weight.numel() for weight in self.parameters())
