"""Bags of ids in the one convention that look-up kernels take."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class Bags:
    """Bags of ids in one convention: bag b holds `indices[offsets[b]:offsets[b + 1]]`.

    Args:
        indices: (L,) int64.
        offsets: (bags + 1,) int64, from 0 to L.
        weights: (L,) factors of the looked-up rows, or None for ones.
    """

    indices: Tensor
    offsets: Tensor
    weights: Tensor | None

    def lengths(self) -> Tensor:
        """Ids per bag, (bags,) int64."""
        return self.offsets[1:] - self.offsets[:-1]


def table_bags(bags: Bags, tables: int) -> list[Bags]:
    """Table-major bags (the first table's B, then the second's, ...) cut into the B bags of each table."""
    batch = (bags.offsets.numel() - 1) // tables
    bounds = bags.offsets[::batch].tolist() if batch else [0] * (tables + 1)
    return [
        Bags(
            bags.indices[bounds[t] : bounds[t + 1]],
            bags.offsets[t * batch : (t + 1) * batch + 1] - bounds[t],
            None if bags.weights is None else bags.weights[bounds[t] : bounds[t + 1]],
        )
        for t in range(tables)
    ]


def join_bags(parts: Sequence[Bags]) -> Bags:
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
