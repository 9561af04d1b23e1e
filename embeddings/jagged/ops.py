"""Operations on jagged data held as flat values and lengths; nothing is padded."""

from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.kernels.build import load_kernel


def offsets_from_lengths(lengths: Tensor) -> Tensor:
    """Running sum with a leading zero: lengths (N,) -> offsets (N + 1,), same dtype."""
    offsets = torch.zeros(lengths.numel() + 1, dtype=lengths.dtype, device=lengths.device)
    torch.cumsum(lengths, 0, dtype=lengths.dtype, out=offsets[1:])
    return offsets


def window_positions(starts: Tensor, lengths: Tensor) -> Tensor:
    """Positions starts[i] .. starts[i] + lengths[i] - 1 of every window, one window after the other.

    Args:
        starts: (N,) first position of each window.
        lengths: (N,) how many positions each has, >= 0.

    Returns:
        (sum of lengths,) int64.
    """
    lengths = lengths.long()
    ends = lengths.cumsum(0)
    total = int(ends[-1]) if ends.numel() else 0
    shift = torch.repeat_interleave(starts.long() - (ends - lengths), lengths, output_size=total)
    return shift + torch.arange(total, device=lengths.device)


def window_values(values: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Each row's windows laid one after the other.

    Args:
        values: (F, N) F rows of N shared values.
        starts: (B,) first position of each window.
        lengths: (B,) positions of each, >= 0; T together.

    Returns:
        (F * T,), the windows of the first row, then those of the next.
    """
    kernel: Any = load_kernel("dedup_cpu")
    if kernel is not None and values.device.type == "cpu" and not values.requires_grad:
        return kernel.window_values(values.contiguous(), starts.long().contiguous(), lengths.long().contiguous())
    return picked(values, window_positions(starts, lengths), 1).reshape(-1)


def jagged_index_select(values: Tensor, offsets: Tensor, index: Tensor) -> tuple[Tensor, Tensor]:
    """Pick whole rows of jagged data (RecD's O6), any number of times each; differentiable in `values`.

    Args:
        values: (T, ...) rows one after the other.
        offsets: (N + 1,) where each row starts.
        index: (M,) rows to pick; empty is fine.

    Returns:
        The picked rows' values (T', ...) and lengths (M,).
    """
    index = index.long()
    starts = offsets.index_select(0, index)
    lengths = offsets.index_select(0, index + 1) - starts
    if _kernel_serves(values):
        return _SelectRows.apply(values, offsets.long(), index), lengths
    return picked(values, window_positions(starts, lengths)), lengths


def expand_rows(per_unique: Tensor, inverse: Tensor) -> Tensor:
    """Rows of unique values (U, ...) for every row of the batch: (B, ...); differentiable.

    The gradient sums the rows that share a unique row in their order in the batch, whatever the threads.
    """
    if _kernel_serves(per_unique) and per_unique.requires_grad:
        every_row = torch.arange(per_unique.shape[0] + 1, device=per_unique.device)
        return _SelectRows.apply(per_unique, every_row, inverse.long())
    return picked(per_unique, inverse)


def picked(values: Tensor, index: Tensor, dim: int = 0) -> Tensor:
    """`values.index_select(dim, index)`, for uint64 too, which torch's own does not take."""
    if values.dtype == torch.uint64:
        return values.view(torch.int64).index_select(dim, index).view(torch.uint64)
    return values.index_select(dim, index)


def _kernel_serves(values: Tensor) -> bool:
    if values.device.type != "cpu" or load_kernel("dedup_cpu") is None:
        return False
    return not values.requires_grad or values.dtype in (torch.float32, torch.float64)


class _SelectRows(torch.autograd.Function):
    """Whole-row gather, compiled; its gradient is the compiled sum over the picks of each row."""

    @staticmethod
    def forward(ctx: Any, values: Tensor, offsets: Tensor, index: Tensor) -> Tensor:
        ctx.save_for_backward(offsets, index)
        ctx.shape = values.shape
        kernel: Any = load_kernel("dedup_cpu")
        return kernel.select_rows(values.contiguous(), offsets.contiguous(), index.contiguous())

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        offsets, index = ctx.saved_tensors
        kernel: Any = load_kernel("dedup_cpu")
        grad = grads[0].contiguous()
        # (T', ...) -> (T', D), D the numbers per value
        flat = grad.reshape(grad.shape[0], ctx.shape[1:].numel())
        return kernel.sum_rows(flat, offsets.contiguous(), index.contiguous()).view(ctx.shape), None, None
