"""Tensors and kernels: table specs, and the modules that hold tables."""

from shardgym.embeddings.tensor_train import TTEmbeddingBag
from shardgym.embeddings.tt_batched import TableBatchedTTEmbeddingBags

__all__ = ["TTEmbeddingBag", "TableBatchedTTEmbeddingBags"]
