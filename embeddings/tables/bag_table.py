"""What every table that is called like nn.EmbeddingBag has in common, however it holds its rows."""

from abc import ABC, abstractmethod

import torch
from torch import Tensor, nn

from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.tables.bag_inputs import check_ids, drop_padding, mean_weights, read_bags
from shardgym.problem.errors import InputError

ROWS_AT_ONCE = 65536
"""Rows that are rebuilt in one piece, to bound the memory."""


class BagTable(nn.Module, ABC):
    """A table of `num_embeddings` rows of `embedding_dim` numbers, called with (indices, offsets, per_sample_weights).

    Args:
        num_embeddings, embedding_dim: rows N and numbers per row D.
        mode: "sum" or "mean" of a bag; an empty bag gives zeros.
        include_last_offset: offsets are (bags + 1,), the last being the number of indices.
        padding_idx: an id whose look-ups count for nothing.

    Shape:
        indices (L,) with offsets (bags,) or (bags + 1,), or indices (bags, n); int32 or int64. Output (bags, D).

    Raises:
        InputError: in construction for arguments that do not fit; in a call for ids outside the table, malformed
            offsets and weights that are not finite, before anything is changed.
    """

    modes: tuple[str, ...] = ("sum", "mean")
    name = "table"
    """What errors call it."""

    def __init__(
        self, num_embeddings: int, embedding_dim: int, mode: str, include_last_offset: bool, padding_idx: int | None
    ) -> None:
        super().__init__()
        if num_embeddings < 1 or embedding_dim < 1:
            raise InputError(f"table: {num_embeddings} rows of {embedding_dim} numbers; both must be at least 1")
        if mode not in self.modes:
            raise InputError(f"mode: {mode!r} is unknown; give one of {', '.join(self.modes)}")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InputError(f"padding_idx: {padding_idx} is outside the {num_embeddings} rows; give one of the ids")
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.mode, self.include_last_offset = mode, include_last_offset
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Pooled rows (bags, D); see the class for shapes and errors."""
        bags = read_bags(indices, offsets, per_sample_weights, self.include_last_offset)
        self.check(bags)
        return self.pool(self.prepare(bags))

    def check(self, bags: Bags, name: str | None = None) -> None:
        """Raise InputError for ids outside the table, and for weights that the mode does not take.

        Args:
            name: what the error calls the table; its own name where left out.
        """
        name = self.name if name is None else name
        check_ids(bags.indices, self.num_embeddings, name)
        if self.mode != "sum" and bags.weights is not None:
            raise InputError(f"{name}: per_sample_weights: only mode 'sum' takes them; leave them out or sum")

    def prepare(self, bags: Bags) -> Bags:
        """Checked bags of which `pool` is the weighted sum: padding dropped, shares as weights for means."""
        if self.padding_idx is not None:
            bags = drop_padding(bags, self.padding_idx)
        return mean_weights(bags, self.compute_dtype) if self.mode == "mean" else bags

    @abstractmethod
    def pool(self, bags: Bags) -> Tensor:
        """Weighted sums of rows (bags, D) of prepared bags."""

    @property
    @abstractmethod
    def compute_dtype(self) -> torch.dtype:
        """The floating dtype that look-ups are computed in."""

    @property
    @abstractmethod
    def compression_ratio(self) -> float:
        """Bytes of the dense table at its own precision over the bytes of the weights held here."""

    def memory_bytes(self) -> int:
        """All bytes held, optimizer state and row order included."""
        return sum(t.numel() * t.element_size() for t in (*self.parameters(), *self.buffers()))

    @torch.no_grad()
    def rows(self, ids: Tensor) -> Tensor:
        """Rows of ids (n,) as they stand, (n, D)."""
        check_ids(ids, self.num_embeddings)
        pieces = [self.pool(self._single(part)) for part in ids.long().split(ROWS_AT_ONCE)]
        return torch.cat(pieces)

    def _single(self, ids: Tensor) -> Bags:
        """Bags of one id each."""
        return Bags(ids, torch.arange(ids.numel() + 1, device=ids.device), None)

    def to_dense(self) -> Tensor:
        """The whole table (N, D)."""
        device = next((t.device for t in (*self.parameters(), *self.buffers())), None)
        return self.rows(torch.arange(self.num_embeddings, device=device))
