"""Tensor-train cores of a dense table: TT-SVD (Oseledets, 2011, algorithm 1), padding filled in, scale spread."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shardgym.problem.tables import TensorTrainFormat

REFILLS = 30
"""Times that the padding is filled from the reconstruction at most."""

WORTH = 0.01
"""Share of the error that a refill must take away for another to follow."""


def fit_cores(weight: Tensor, form: TensorTrainFormat) -> list[Tensor]:
    """Cores (float64) near `weight` (rows, dim), whatever stands in the padding, all of one root mean square.

    Padding is free: it is first filled so that the incomplete rows of the first unfolding lie in the span of the
    complete ones, which recovers an exact tensor train, and then from the reconstruction while that helps.
    """
    padded = _padded(weight, form)
    known = torch.zeros_like(padded, dtype=torch.bool)
    known[: weight.shape[0], : weight.shape[1]] = True
    if bool(known.all()):
        return spread_scale(tt_svd(padded, form))
    complete_first_unfolding(padded, known, form)
    cores, error = [], math.inf
    for _ in range(REFILLS):
        tried = tt_svd(padded, form)
        whole = reconstruct(tried)
        left = float((whole - padded)[known].norm())
        if not left < error:
            break
        gained, cores, error = error - left, tried, left
        if gained < WORTH * (error + left) / 2 or error <= 1e-12 * float(padded.norm()):
            break
        padded[~known] = whole[~known]
    return spread_scale(cores)


def tt_svd(weight: Tensor, form: TensorTrainFormat) -> list[Tensor]:
    """Cores (float64) of `weight` (rows, dim), padded with zeros to the format's shapes.

    Each unfolding is cut to its leading left singular vectors, taken from the eigenvectors of its Gram matrix; a rank
    beyond what an unfolding has is filled up with zeros. All cores but the last have orthonormal unfoldings: the scale
    lies in the last (see `spread_scale`).
    """
    p, q = form.row_shape, form.dim_shape
    rest = _interleaved(_padded(weight, form), form)
    found, rank = [], 1
    for k in range(len(p) - 1):
        unfolded = rest.reshape(rank * p[k] * q[k], -1)
        left = _left_vectors(unfolded, form.ranks[k])
        found.append(left.reshape(rank, p[k], q[k], form.ranks[k]).transpose(0, 1))
        rest, rank = left.T @ unfolded, form.ranks[k]
    found.append(rest.reshape(rank, p[-1], q[-1], 1).transpose(0, 1))
    return [core.contiguous() for core in found]


def spread_scale(cores: Sequence[Tensor]) -> list[Tensor]:
    """The same table from cores of equal root mean square; cores that hold only zeros stay."""
    sizes = [float(core.square().mean().sqrt()) for core in cores]
    if min(sizes) == 0:
        return list(cores)
    common = math.exp(sum(math.log(size) for size in sizes) / len(sizes))
    return [core * (common / size) for core, size in zip(cores, sizes)]


def reconstruct(cores: Sequence[Tensor]) -> Tensor:
    """The padded table (prod p, prod q) of cores (p, r, q, r')."""
    whole = cores[0].squeeze(1)  # (p, q, r)
    for core in cores[1:]:
        p, q, _ = whole.shape
        whole = torch.einsum("pqr,arbs->paqbs", whole, core).reshape(p * core.shape[0], q * core.shape[2], -1)
    return whole.squeeze(2)


def complete_first_unfolding(padded: Tensor, known: Tensor, form: TensorTrainFormat) -> None:
    """Fill unknown entries of rows of the first unfolding (p1 q1, rest) from the span of its complete rows, in place.

    The incomplete rows' known entries are fitted by the complete rows' leading singular vectors, at most the first
    rank, in least squares. Where no row is complete, zeros stay.

    Args:
        padded: (prod p, prod q) float64.
        known: like it, bool.
    """
    count = form.row_shape[0] * form.dim_shape[0]
    unfolded = _interleaved(padded, form).reshape(count, -1)
    mask = _interleaved(known, form).reshape(count, -1)
    complete = mask.all(dim=1)
    if complete.all() or not complete.any():
        return
    basis = _row_basis(unfolded[complete], form.ranks[0])  # (rank, n)
    patterns, pattern_of = torch.unique(mask[~complete], dim=0, return_inverse=True)
    incomplete = torch.nonzero(~complete).squeeze(1)
    for k, pattern in enumerate(patterns):
        rows = incomplete[pattern_of == k]
        if pattern.any():
            fitted = torch.linalg.lstsq(basis[:, pattern].T, unfolded[rows][:, pattern].T, driver="gelsd").solution
            filled = unfolded[rows]
            filled[:, ~pattern] = (fitted.T @ basis)[:, ~pattern]
            unfolded[rows] = filled
    padded.copy_(_joined(unfolded, form))


def _row_basis(matrix: Tensor, rank: int) -> Tensor:
    """Orthonormal rows (n, columns), n <= rank, of the leading right singular vectors that are more than rounding."""
    values, vectors = torch.linalg.eigh(matrix @ matrix.T)
    leading = vectors[:, values > 1e-20 * values[-1].clamp(min=1e-300)].flip(1)[:, :rank]
    rows = torch.linalg.qr((leading.T @ matrix).T).Q.T
    return rows


def _padded(weight: Tensor, form: TensorTrainFormat) -> Tensor:
    padded = weight.new_zeros(math.prod(form.row_shape), math.prod(form.dim_shape), dtype=torch.float64)
    padded[: weight.shape[0], : weight.shape[1]] = weight
    return padded


def _interleaved(table: Tensor, form: TensorTrainFormat) -> Tensor:
    """(p1 .. pd, q1 .. qd) -> (p1, q1, p2, q2, ..)."""
    cores = len(form.row_shape)
    axes = [axis for k in range(cores) for axis in (k, cores + k)]
    return table.reshape(*form.row_shape, *form.dim_shape).permute(axes)


def _joined(unfolded: Tensor, form: TensorTrainFormat) -> Tensor:
    """What `_interleaved` took apart: (prod p, prod q)."""
    p, q = form.row_shape, form.dim_shape
    mixed = unfolded.reshape([size for pair in zip(p, q) for size in pair])
    axes = [*range(0, 2 * len(p), 2), *range(1, 2 * len(p), 2)]
    return mixed.permute(axes).reshape(math.prod(p), math.prod(q))


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
