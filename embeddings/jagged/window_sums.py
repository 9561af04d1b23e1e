"""Sums of overlapping windows in time that does not grow with the windows' length, forward and backward."""

from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.kernels.build import load_kernel


def window_sums(values: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """Sum of each window of shared values; differentiable.

    A window is the difference of two running sums, which are held in double precision: the result is that of summing
    each window by itself, to rounding. A value that is not finite reaches all windows.

    Args:
        values: (N, D) floating.
        starts: (B,) first position of each window.
        lengths: (B,) positions of each, 0 or more.

    Returns:
        (B, D), zeros for empty windows.
    """
    starts, lengths = starts.long(), lengths.long()
    if values.device.type == "cpu" and values.dtype in _KERNEL_TYPES and load_kernel("dedup_cpu") is not None:
        return _WindowSums.apply(values, starts.contiguous(), lengths.contiguous())
    return window_sums_reference(values, starts, lengths)


_KERNEL_TYPES = (torch.float32, torch.float64)


def window_sums_reference(values: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
    """`window_sums` on torch alone."""
    before = values.new_zeros(1, values.shape[1], dtype=torch.float64)
    running = torch.cat([before, values.double().cumsum(0)])  # (N + 1, D)
    return (running[starts + lengths] - running[starts]).to(values.dtype)


class _WindowSums(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, values: Tensor, starts: Tensor, lengths: Tensor) -> Tensor:
        kernel: Any = load_kernel("dedup_cpu")
        ctx.save_for_backward(starts, lengths)
        ctx.positions = values.shape[0]
        return kernel.window_sums(values.contiguous(), starts, lengths)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None]:
        kernel: Any = load_kernel("dedup_cpu")
        starts, lengths = ctx.saved_tensors
        return kernel.spread_windows(grads[0].contiguous(), starts, lengths, ctx.positions), None, None
