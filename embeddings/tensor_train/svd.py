"""TT-SVD: tensor-train cores of a dense table (Oseledets, 2011, algorithm 1)."""

import math

import torch
from torch import Tensor

from shardgym.problem.tables import TensorTrainFormat


def tt_svd(weight: Tensor, form: TensorTrainFormat) -> list[Tensor]:
    """Cores (float64) of `weight` (rows, dim), padded with zeros to the format's shapes.

    Each unfolding is cut to its leading left singular vectors, taken from the eigenvectors of its Gram matrix; a rank
    beyond what an unfolding has is filled up with zeros.
    """
    p, q = form.row_shape, form.dim_shape
    padded = weight.new_zeros(math.prod(p), math.prod(q), dtype=torch.float64)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    # (p1, .., pd, q1, .., qd) -> (p1, q1, p2, q2, ..)
    cores = len(p)
    rest = padded.reshape(*p, *q).permute([axis for k in range(cores) for axis in (k, cores + k)])
    found, rank = [], 1
    for k in range(cores - 1):
        unfolded = rest.reshape(rank * p[k] * q[k], -1)
        left = _left_vectors(unfolded, form.ranks[k])
        found.append(left.reshape(rank, p[k], q[k], form.ranks[k]).transpose(0, 1))
        rest, rank = left.T @ unfolded, form.ranks[k]
    found.append(rest.reshape(rank, p[-1], q[-1], 1).transpose(0, 1))
    return [core.contiguous() for core in found]


def _left_vectors(matrix: Tensor, rank: int) -> Tensor:
    """The leading `rank` left singular vectors (m, rank), zeros beyond the matrix's own rank."""
    count = min(rank, *matrix.shape)
    left = matrix.new_zeros(matrix.shape[0], rank)
    if matrix.shape[0] <= matrix.shape[1]:
        _, vectors = torch.linalg.eigh(matrix @ matrix.T)
        left[:, :count] = vectors[:, -count:].flip(1)
    else:
        left[:, :count] = torch.linalg.svd(matrix, full_matrices=False).U[:, :count]
    return left
