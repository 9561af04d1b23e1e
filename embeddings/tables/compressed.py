"""Other small tables, behind the interface of TTEmbeddingBag: what a tensor-train result has to be shown beside."""

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.tables.bag_table import BagTable
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.embeddings")
class LowDimEmbeddingBag(BagTable):
    """Rows of `low_dim` numbers, and one matrix that projects them to D (mixed-dimension tables, arXiv 1909.11810).

    Args:
        low_dim: numbers kept per row.
        std: of the projected entries at the start; 1 / sqrt(3 N) where left out.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, low_dim: int, mode: str = "sum",
                 include_last_offset: bool = False, padding_idx: int | None = None, std: float | None = None,
                 generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32,
                 device: torch.device | str | None = None) -> None:  # fmt: skip
        super().__init__(num_embeddings, embedding_dim, mode, include_last_offset, padding_idx)
        if not 1 <= low_dim <= embedding_dim:
            raise InputError(
                f"low_dim: {low_dim} is outside [1, {embedding_dim}]; give fewer numbers than the rows have"
            )
        std = (3 * num_embeddings) ** -0.5 if std is None else std
        weight = torch.randn(num_embeddings, low_dim, generator=generator) * std
        projection = torch.randn(low_dim, embedding_dim, generator=generator) / math.sqrt(low_dim)
        self.weight = nn.Parameter(weight.to(dtype=dtype, device=device))
        self.projection = nn.Parameter(projection.to(dtype=dtype, device=device))

    def pool(self, bags: Bags) -> Tensor:
        """See `BagTable.pool`."""
        return _pool(self.weight, bags.indices, bags) @ self.projection

    @property
    def compute_dtype(self) -> torch.dtype:
        """See `BagTable.compute_dtype`."""
        return self.weight.dtype

    @property
    def compression_ratio(self) -> float:
        """See `BagTable.compression_ratio`."""
        return self.num_embeddings * self.embedding_dim / (self.weight.numel() + self.projection.numel())


@public("shardgym.embeddings")
class QREmbeddingBag(BagTable):
    """The row of id is quotient_row[id // buckets] * remainder_row[id % buckets] (Shi et al., arXiv 1909.02107).

    Args:
        buckets: rows of the remainder table; sqrt(N) gives the least parameters.
        std: of the entries at the start; 1 / sqrt(3 N) where left out.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, buckets: int | None = None, mode: str = "sum",
                 include_last_offset: bool = False, padding_idx: int | None = None, std: float | None = None,
                 generator: torch.Generator | None = None, dtype: torch.dtype = torch.float32,
                 device: torch.device | str | None = None) -> None:  # fmt: skip
        super().__init__(num_embeddings, embedding_dim, mode, include_last_offset, padding_idx)
        self.buckets = math.isqrt(num_embeddings - 1) + 1 if buckets is None else buckets
        if not 1 <= self.buckets <= num_embeddings:
            raise InputError(f"buckets: {self.buckets} is outside [1, {num_embeddings}]; give a number between them")
        std = (3 * num_embeddings) ** -0.5 if std is None else std
        quotients = math.ceil(num_embeddings / self.buckets)

        def drawn(rows: int) -> nn.Parameter:
            values = math.sqrt(std) * torch.randn(rows, embedding_dim, generator=generator)
            return nn.Parameter(values.to(dtype=dtype, device=device))

        self.quotient, self.remainder = drawn(quotients), drawn(self.buckets)

    def pool(self, bags: Bags) -> Tensor:
        """See `BagTable.pool`."""
        ids, inverse = torch.unique(bags.indices, return_inverse=True)
        quotients = torch.div(ids, self.buckets, rounding_mode="floor")
        rows = F.embedding(quotients, self.quotient) * F.embedding(ids % self.buckets, self.remainder)
        return _pool(rows, inverse, bags)

    @property
    def compute_dtype(self) -> torch.dtype:
        """See `BagTable.compute_dtype`."""
        return self.quotient.dtype

    @property
    def compression_ratio(self) -> float:
        """See `BagTable.compression_ratio`."""
        return self.num_embeddings * self.embedding_dim / (self.quotient.numel() + self.remainder.numel())


@public("shardgym.embeddings")
class QuantizedEmbeddingBag(BagTable):
    """Rows as int8 or int4 codes with a scale and an offset per row (torch's quantized embedding bags); for inference.

    Built by `from_dense`; it has no parameters and gives no gradients.
    """

    packed: Tensor

    def __init__(self, weight: Tensor, bits: int = 8, mode: str = "sum", include_last_offset: bool = False,
                 padding_idx: int | None = None) -> None:  # fmt: skip
        if weight.dim() != 2:
            raise InputError(f"weight: {weight.dim()}-D; give (rows, dim)")
        super().__init__(weight.shape[0], weight.shape[1], mode, include_last_offset, padding_idx)
        if bits not in (8, 4) or (bits == 4 and weight.shape[1] % 2):
            raise InputError(f"bits: {bits} for rows of {weight.shape[1]} numbers; give 8, or 4 with an even dim")
        self.bits = bits
        pack = torch.ops.quantized.embedding_bag_byte_prepack if bits == 8 else _pack_4bit
        self.register_buffer("packed", pack(weight.detach().float().cpu().contiguous()))

    @classmethod
    def from_dense(cls, weight: Tensor, bits: int = 8, **options: Any) -> "QuantizedEmbeddingBag":
        """Quantise `weight` (N, D) row by row."""
        return cls(weight, bits, **options)

    def pool(self, bags: Bags) -> Tensor:
        """See `BagTable.pool`."""
        if bags.offsets.numel() == 1:
            return torch.zeros(0, self.embedding_dim)
        op = torch.ops.quantized.embedding_bag_byte_rowwise_offsets
        if self.bits == 4:
            op = torch.ops.quantized.embedding_bag_4bit_rowwise_offsets
        weights = None if bags.weights is None else bags.weights.float()
        return op(self.packed, bags.indices, bags.offsets, mode=0, per_sample_weights=weights, include_last_offset=True)

    @property
    def compute_dtype(self) -> torch.dtype:
        """See `BagTable.compute_dtype`."""
        return torch.float32

    @property
    def compression_ratio(self) -> float:
        """See `BagTable.compression_ratio`."""
        return self.num_embeddings * self.embedding_dim * 4 / self.packed.numel()


def _pack_4bit(weight: Tensor) -> Tensor:
    return torch.ops.quantized.embedding_bag_4bit_prepack(weight)


def _pool(rows: Tensor, indices: Tensor, bags: Bags) -> Tensor:
    """Weighted sums of rows[indices], (bags, numbers per row)."""
    if rows.shape[0] == 0 or bags.offsets.numel() == 1:
        return rows.new_zeros(bags.offsets.numel() - 1, rows.shape[1])
    return F.embedding_bag(
        indices, rows, bags.offsets, mode="sum", per_sample_weights=bags.weights, include_last_offset=True
    )
