"""The tensor-train look-up in plain torch: what the compiled kernel is tested against, and the fall-back without it.

A kernel answers `forward` and `backward` for several tables at once. Every table comes as three cores; `three_cores`
brings trains of two and four cores into that form.
"""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from shardgym.embeddings.kernels.bags import Bags, table_bags


@dataclass(frozen=True)
class TTTable:
    """One table as a kernel sees it.

    Args:
        cores: three cores (p_k, r_k, q_k, r_(k+1)), contiguous, of one floating dtype.
        dim: numbers of a row that are kept, <= q1 q2 q3.
        hot_rows: (slots, dim) rows held uncompressed, or None.
        hot_keys: (n,) int64, ascending visit keys of the rows held.
        hot_slots: (n,) int32, the row of `hot_rows` for each key.
    """

    cores: tuple[Tensor, Tensor, Tensor]
    dim: int
    hot_rows: Tensor | None = None
    hot_keys: Tensor | None = None
    hot_slots: Tensor | None = None


@dataclass(frozen=True)
class TableGradients:
    """Gradients of one table: dense for the three cores; for hot rows, distinct slots (n,) and rows (n, dim)."""

    cores: tuple[Tensor, Tensor, Tensor]
    hot_slots: Tensor | None
    hot_grad: Tensor | None


def three_cores(cores: Sequence[Tensor]) -> tuple[Tensor, Tensor, Tensor]:
    """The same table as a train of three: a core of ones before two, the first two of four multiplied out."""
    if len(cores) == 2:
        first = cores[0].new_ones(1, 1, 1, 1)
        return first, cores[0], cores[1]
    if len(cores) == 4:
        (p1, _, q1, _), (p2, _, q2, r2) = cores[0].shape, cores[1].shape
        # (p1, q1, r) x (p2, r, q2, r2) -> (p1, p2, q1, q2, r2) -> (p1 p2, 1, q1 q2, r2)
        merged = torch.einsum("aqr,brsc->abqsc", cores[0].squeeze(1), cores[1])
        return merged.reshape(p1 * p2, 1, q1 * q2, r2), cores[2], cores[3]
    return cores[0], cores[1], cores[2]


def visit_key(ids: Tensor, cores: Sequence[Tensor]) -> Tensor:
    """The order in which kernels visit ids: by the second factor index, then the first, then the third."""
    p1, p2, p3 = (core.shape[0] for core in cores)
    prefix = torch.div(ids, p3, rounding_mode="floor")
    first = torch.div(prefix, p2, rounding_mode="floor")
    return ((prefix - first * p2) * p1 + first) * p3 + (ids - prefix * p3)


def tt_rows(cores: Sequence[Tensor], ids: Tensor, dim: int) -> Tensor:
    """Rows of `ids` (n,) from three cores, (n, dim); the product of two cores is made once a prefix."""
    p2, p3 = cores[1].shape[0], cores[2].shape[0]
    q1, q2, q3 = (core.shape[2] for core in cores)
    prefixes, prefix_of = torch.unique(torch.div(ids, p3, rounding_mode="floor"), return_inverse=True)
    first = cores[0].squeeze(1)[torch.div(prefixes, p2, rounding_mode="floor")]  # (n', q1, r1)
    second = cores[1][prefixes % p2].flatten(2)  # (n', r1, q2 r2)
    products = torch.bmm(first, second).reshape(-1, q1 * q2, cores[2].shape[1])  # (n', q1 q2, r2)
    rows = torch.bmm(products[prefix_of], cores[2].squeeze(3)[ids % p3])  # (n, q1 q2, q3)
    return rows.reshape(-1, q1 * q2 * q3)[:, :dim]


def _find_hot(table: TTTable, ids: Tensor) -> tuple[Tensor, Tensor]:
    """Which of the distinct `ids` are hot, (n,) bool, and the slots of those, in the same order."""
    assert table.hot_keys is not None
    assert table.hot_slots is not None
    if table.hot_keys.numel() == 0:
        return torch.zeros_like(ids, dtype=torch.bool), table.hot_slots.long()
    keys = visit_key(ids, table.cores)
    place = torch.searchsorted(table.hot_keys, keys).clamp_(max=table.hot_keys.numel() - 1)
    hot = table.hot_keys[place] == keys
    return hot, table.hot_slots[place[hot]].long()


def _pool_table(table: TTTable, hot_grad_rows: Tensor | None, hot: Tensor | None, ids: Tensor, inverse: Tensor,
                offsets: Tensor, weights: Tensor | None) -> Tensor:  # fmt: skip
    if hot is None:
        rows = tt_rows(table.cores, ids, table.dim)
    else:
        assert hot_grad_rows is not None
        rows = hot_grad_rows.new_zeros(ids.numel(), table.dim)
        rows = rows.index_put((hot,), hot_grad_rows).index_put((~hot,), tt_rows(table.cores, ids[~hot], table.dim))
    if rows.shape[0] == 0:
        return rows.new_zeros(offsets.numel() - 1, table.dim)
    return F.embedding_bag(inverse, rows, offsets, mode="sum", per_sample_weights=weights, include_last_offset=True)


def forward(tables: Sequence[TTTable], bags: Bags) -> tuple[Tensor, Any]:
    """Pooled rows of every table side by side, (batch, sum of dims), and nothing to save.

    Args:
        tables: T tables.
        bags: table-major: bags 0..batch-1 are the first table's; T * batch bags in all.
    """
    pooled = []
    for table, part in zip(tables, table_bags(bags, len(tables))):
        ids, inverse = torch.unique(part.indices, return_inverse=True)
        hot, rows = None, None
        if table.hot_rows is not None:
            hot, slots = _find_hot(table, ids)
            rows = table.hot_rows[slots]
        pooled.append(_pool_table(table, rows, hot, ids, inverse, part.offsets, part.weights))
    return torch.cat(pooled, dim=1), None


def backward(
    tables: Sequence[TTTable], bags: Bags, saved: Any, grad: Tensor, want_weights: bool
) -> tuple[list[TableGradients], Tensor | None]:
    """Gradients of every table, and of the weights (L,) where wanted, for `grad` (batch, sum of dims)."""
    del saved  # nothing is kept: the rows are made again under autograd
    gradients: list[TableGradients] = []
    weight_gradients: list[Tensor] = []
    column = 0
    for table, part in zip(tables, table_bags(bags, len(tables))):
        out_grad = grad[:, column : column + table.dim]
        found, weight_grad = _table_backward(table, part, out_grad, want_weights)
        gradients.append(found)
        if weight_grad is not None:
            weight_gradients.append(weight_grad)
        column += table.dim
    return gradients, torch.cat(weight_gradients) if want_weights else None


@torch.enable_grad()
def _table_backward(
    table: TTTable, bags: Bags, grad: Tensor, want_weights: bool
) -> tuple[TableGradients, Tensor | None]:
    ids, inverse = torch.unique(bags.indices, return_inverse=True)
    first, second, third = (core.detach().requires_grad_() for core in table.cores)
    asked = {"first": first, "second": second, "third": third}
    hot, slots = None, None
    if table.hot_rows is not None:
        hot, slots = _find_hot(table, ids)
        asked["rows"] = table.hot_rows.detach()[slots].requires_grad_()
    weights = bags.weights
    if want_weights and weights is not None:
        weights = asked["weights"] = weights.detach().requires_grad_()
    leaves = replace(table, cores=(first, second, third))
    pooled = _pool_table(leaves, asked.get("rows"), hot, ids, inverse, bags.offsets, weights)
    found: dict[str, Tensor] = {name: torch.zeros_like(leaf) for name, leaf in asked.items()}
    if pooled.requires_grad:
        for name, own in zip(asked, torch.autograd.grad(pooled, list(asked.values()), grad, allow_unused=True)):
            if own is not None:
                found[name] = own
    cores = (found["first"], found["second"], found["third"])
    return TableGradients(cores, slots, found.get("rows")), found.get("weights")
