"""Pooled unique rows of several tables, expanded and laid side by side in one pass."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.kernels.build import load_kernel


def expand_columns(unique: Sequence[Tensor], inverses: Sequence[Tensor], group: Sequence[int]) -> Tensor:
    """Every row's embeddings of all tables; differentiable.

    Args:
        unique: for each of K tables, what its unique rows pool to, (U, D_k).
        inverses: for each group, (B,) the unique row of each row.
        group: for each table, which of the inverses it goes by.

    Returns:
        (B, sum of D_k). The gradient sums the rows that share a unique row in their order in the batch.
    """
    compiled = load_kernel("dedup_cpu") is not None
    if compiled and all(rows.dtype == torch.float32 and rows.device.type == "cpu" for rows in unique):
        return _ExpandColumns.apply([inverse.long().contiguous() for inverse in inverses], list(group), *unique)
    return torch.cat([rows.index_select(0, inverses[g]) for rows, g in zip(unique, group)], dim=1)


class _ExpandColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, inverses: list[Tensor], group: list[int], *unique: Tensor) -> Tensor:
        kernel: Any = load_kernel("dedup_cpu")
        ctx.inverses, ctx.group = inverses, group
        ctx.dims = [rows.shape[1] for rows in unique]
        ctx.rows = [next(r.shape[0] for r, g in zip(unique, group) if g == at) for at in range(len(inverses))]
        return kernel.expand_columns([rows.contiguous() for rows in unique], inverses, group)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        kernel: Any = load_kernel("dedup_cpu")
        sums = kernel.sum_columns(grads[0].contiguous(), ctx.inverses, ctx.group, ctx.rows, ctx.dims)
        return None, None, *sums
