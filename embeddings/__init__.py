"""Tensors and kernels: table specs, and the modules that hold tables."""

from shardgym.embeddings.tensor_train import TTEmbeddingBag

__all__ = ["TTEmbeddingBag"]
