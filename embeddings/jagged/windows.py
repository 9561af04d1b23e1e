"""Sliding windows: lists that overlap the list before them, found and stored once (RecD's partial IKJT)."""

from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.kernels.build import load_kernel

_PROBE_ROWS = 512


def find_windows(channels: Tensor, offsets: Tensor, order: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Shared values in which every row is a window, by comparing each row with the one before it.

    A row that lies inside the last window refers to it; a row whose beginning is the last window's end is joined to
    it there; any other row starts anew. Histories are read oldest first or newest first, whichever shares more in a
    probe of the first rows.

    Args:
        channels: (C, T) int64, what must agree at a position (the ids of each feature, the bits of its weights).
        offsets: (B + 1,) where each row starts.
        order: (B,) rows as they follow each other, such as sorted by session and time; by default as they stand.

    Returns:
        kept (N,): positions of T that make up the shared values; starts (B,): where each row's window starts in
        them. Both int64.
    """
    B = offsets.numel() - 1
    device = channels.device
    # The scan reads row after row: it runs on the CPU, whatever the batch's device.
    channels = channels.cpu()
    forward = torch.arange(B, device=channels.device) if order is None else order.long().cpu()
    probe = forward[:_PROBE_ROWS]
    offsets = offsets.long().cpu().contiguous()
    scan = _scan()
    ahead, _ = scan(channels, offsets, probe)
    back, _ = scan(channels, offsets, probe.flip(0))
    kept, starts = scan(channels, offsets, forward if ahead.numel() <= back.numel() else forward.flip(0))
    return kept.to(device), starts.to(device)


def _scan() -> Any:
    kernel: Any = load_kernel("dedup_cpu")
    return find_windows_reference if kernel is None else kernel.find_windows


def find_windows_reference(channels: Tensor, offsets: Tensor, order: Tensor) -> tuple[Tensor, Tensor]:
    """The scan of `find_windows` in one direction, in plain Python: tries every overlap, longest first."""
    rows = list(zip(*channels.tolist())) if channels.numel() else []
    bounds = offsets.tolist()
    kept: list[int] = []
    starts = [0] * (len(bounds) - 1)
    last = 0
    for row in order.tolist():
        begin, end = bounds[row], bounds[row + 1]
        if begin == end:
            continue
        mine = rows[begin:end]
        shared = [rows[at] for at in kept[last:]]
        at = next(k for k in range(len(shared) + 1) if shared[k : k + len(mine)] == mine[: len(shared) - k])
        kept.extend(range(begin + len(shared) - at, end))
        last = starts[row] = last + at
    return (
        torch.tensor(kept, dtype=torch.int64, device=offsets.device),
        torch.tensor(starts, dtype=torch.int64, device=offsets.device),
    )
