"""TTEmbedding: a tensor-train table that gives a row per id, used like nn.Embedding."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.problem.faces import public


@public("shardgym.embeddings")
class TTEmbedding(TTEmbeddingBag):
    """As `TTEmbeddingBag`, unpooled.

    Args:
        num_embeddings, embedding_dim, ranks, options: as of `TTEmbeddingBag`, without mode and include_last_offset.

    Shape:
        ids of any shape, int32 or int64; output (*shape, D). Look-ups of `padding_idx` give zeros.

    Raises:
        InputError: as `TTEmbeddingBag`.
    """

    def __init__(self, num_embeddings: int, embedding_dim: int, ranks: int | Sequence[int], **options: Any) -> None:
        super().__init__(num_embeddings, embedding_dim, ranks, include_last_offset=True, **options)

    def forward(self, ids: Tensor) -> Tensor:  # type: ignore[override]
        """Rows (*shape, D) of ids (*shape)."""
        flat = ids.reshape(-1)
        rows = super().forward(flat, torch.arange(flat.numel() + 1, device=ids.device))
        return rows.reshape(*ids.shape, self.embedding_dim)
