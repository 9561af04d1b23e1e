"""Finding equal rows of a batch: by a vectorised hash with verified bytes, or by comparing neighbours (RecD's O3)."""

from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import jagged_index_select
from shardgym.embeddings.kernels.build import load_kernel

_MIX = 0x2545F4914F6CDD1D
_SPREAD = -0x61C8864680B583EB  # the golden ratio's bits, as a signed 64-bit number


def unique_rows(kjt: KeyedJaggedTensor, rows_sorted: bool = False) -> tuple[Tensor, Tensor]:
    """Which rows are the same in all features, weights included, bit for bit.

    Args:
        kjt: F keys, B rows.
        rows_sorted: equal rows are neighbours; a row is then compared with the one before it only.

    Returns:
        first (U,): the first row of each kind, rising; inverse (B,): the kind of each row. Both int64.
    """
    B = kjt.stride()
    if B == 0 or not kjt.keys():
        nothing = torch.zeros(B, dtype=torch.int64, device=kjt.device())
        return nothing[: min(B, 1)], nothing
    kernel: Any = load_kernel("dedup_cpu")
    if kernel is not None and kjt.device().type == "cpu":
        weights = kjt.weights_or_none()
        weights = None if weights is None else weights.contiguous()
        return kernel.unique_rows(
            kjt.values().contiguous(), weights, kjt.offsets().long().contiguous(), len(kjt.keys()), rows_sorted
        )
    return unique_rows_reference(kjt, rows_sorted)


def unique_rows_reference(kjt: KeyedJaggedTensor, rows_sorted: bool = False) -> tuple[Tensor, Tensor]:
    """`unique_rows` on torch alone; there is at least one row and key."""
    B = kjt.stride()
    if rows_sorted:
        rows = torch.arange(1, B, device=kjt.device())
        starts = torch.cat([torch.ones(1, dtype=torch.bool, device=kjt.device()), ~_same_rows(kjt, rows, rows - 1)])
        return starts.nonzero().flatten(), starts.cumsum(0) - 1
    return _by_hash(kjt)


def _by_hash(kjt: KeyedJaggedTensor) -> tuple[Tensor, Tensor]:
    hashes = row_hashes(kjt)
    B = hashes.numel()
    ordered, order = torch.sort(hashes, stable=True)
    starts = torch.cat([torch.ones(1, dtype=torch.bool, device=kjt.device()), ordered[1:] != ordered[:-1]])
    kind = starts.cumsum(0) - 1
    representative = torch.empty(B, dtype=torch.int64, device=kjt.device())
    representative[order] = order[starts][kind]
    rows = torch.arange(B, device=kjt.device())
    repeats = (representative != rows).nonzero().flatten()
    same = _same_rows(kjt, repeats, representative[repeats])
    for row in repeats[~same].tolist():
        # Two kinds of rows share a hash: look for the row's own kind among those before it, else it starts one.
        earlier = (hashes[:row] == hashes[row]).nonzero().flatten()
        matches = earlier[_same_rows(kjt, torch.full_like(earlier, row), earlier)]
        representative[row] = matches[0] if matches.numel() else row
    first = (representative == rows).nonzero().flatten()
    number = torch.empty(B, dtype=torch.int64, device=kjt.device())
    number[first] = torch.arange(first.numel(), device=kjt.device())
    return first, number[representative]


def row_hashes(kjt: KeyedJaggedTensor) -> Tensor:
    """A 64-bit hash of each row's lists over all keys, lengths and weights included: (B,) int64."""
    F, B = len(kjt.keys()), kjt.stride()
    offsets, lengths = kjt.offsets().long(), kjt.lengths().long()
    words = bits(kjt.values())
    weights = kjt.weights_or_none()
    if weights is not None:
        words = words * _MIX + bits(weights)
    place = torch.arange(words.numel(), device=kjt.device()) - torch.repeat_interleave(
        offsets[:-1], lengths, output_size=words.numel()
    )
    mixed = _mix(words + _mix(place + 1))
    # Sums wrap around, so differences of the running sum are exact.
    running = torch.zeros(words.numel() + 1, dtype=torch.int64, device=kjt.device())
    torch.cumsum(mixed, 0, out=running[1:])
    lists = running[offsets[1:]] - running[offsets[:-1]]
    lists = _mix(lists + lengths).view(F, B)  # (F * B,) -> (F, B)
    salts = _mix(torch.arange(1, F + 1, device=kjt.device()) * _SPREAD) | 1
    return (lists * salts.unsqueeze(1)).sum(0)


def bits(numbers: Tensor) -> Tensor:
    """The bits of each number as an int64."""
    if numbers.is_floating_point():
        numbers = numbers.contiguous().view({8: torch.int64, 4: torch.int32, 2: torch.int16}[numbers.element_size()])
    return numbers.long()


def _mix(words: Tensor) -> Tensor:
    """Spread every input bit over all 64 (a multiply and shift round, twice)."""
    words = (words ^ (words >> 32)) * _MIX
    return (words ^ (words >> 29)) * _SPREAD


def _same_rows(kjt: KeyedJaggedTensor, left: Tensor, right: Tensor) -> Tensor:
    """Whether rows left[i] and right[i] (M,) agree in every key, bit for bit: (M,) bool."""
    F, B, M = len(kjt.keys()), kjt.stride(), left.numel()
    key_start = torch.arange(F, device=kjt.device()).unsqueeze(1) * B
    # (F, 1) + (M,) -> (F * M,)
    a, b = (key_start + left).reshape(F * M), (key_start + right).reshape(F * M)
    same = kjt.lengths()[a] == kjt.lengths()[b]
    candidates = same.nonzero().flatten()
    for tensor in (kjt.values(), kjt.weights_or_none()):
        if tensor is None or candidates.numel() == 0:
            continue
        ours, lengths = jagged_index_select(bits(tensor), kjt.offsets(), a[candidates])
        theirs, _ = jagged_index_select(bits(tensor), kjt.offsets(), b[candidates])
        owner = torch.repeat_interleave(candidates, lengths.long())
        same[owner[ours != theirs]] = False
    return same.view(F, M).all(0)  # (F * M,) -> (M,)
