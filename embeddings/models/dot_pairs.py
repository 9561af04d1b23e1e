"""Dot products of all pairs of vectors: DLRM's interaction (Naumov et al., arXiv 1906.00091)."""

from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.kernels.build import load_kernel


def dot_pairs(vectors: Tensor) -> Tensor:
    """Pairs (1, 0), (2, 0), (2, 1), ... of (B, V, D) -> (B, V (V - 1) / 2); differentiable."""
    if vectors.device.type == "cpu" and vectors.dtype == torch.float32 and load_kernel("dot_pairs_cpu") is not None:
        return _DotPairs.apply(vectors)
    return dot_pairs_reference(vectors)


def dot_pairs_reference(vectors: Tensor) -> Tensor:
    """`dot_pairs` by a batched product of which the lower half is kept."""
    V = vectors.shape[1]
    left, right = torch.tril_indices(V, V, offset=-1, device=vectors.device)
    dots = torch.bmm(vectors, vectors.transpose(1, 2)).flatten(1)  # (B, V * V)
    return dots.index_select(1, left * V + right)


class _DotPairs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, vectors: Tensor) -> Tensor:
        kernel: Any = load_kernel("dot_pairs_cpu")
        vectors = vectors.contiguous()
        ctx.save_for_backward(vectors)
        return kernel.dot_pairs(vectors)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> Tensor:
        kernel: Any = load_kernel("dot_pairs_cpu")
        (vectors,) = ctx.saved_tensors
        return kernel.dot_pairs_backward(grads[0].contiguous(), vectors)
