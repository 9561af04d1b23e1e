"""Operations on jagged data held as flat values and lengths; nothing is padded."""

import torch
from torch import Tensor


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
    return values.index_select(0, window_positions(starts, lengths)), lengths
