"""Bags of ids in the one convention that look-up kernels take."""

from dataclasses import dataclass

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
