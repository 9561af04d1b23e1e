"""Checks shared by the jagged tensors.

Each raises InputError where its one-line statement does not hold, in one sentence that names the field and the way out.
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import Protocol

import torch
from torch import Tensor

from shardgym.problem.errors import InputError


class HasStride(Protocol):
    """Anything that has a number of rows."""

    def stride(self) -> int:
        """Rows B."""
        ...


def check_integers(name: str, tensor: Tensor) -> None:
    """One dimension of int32 or int64."""
    if tensor.dim() != 1 or tensor.dtype not in (torch.int32, torch.int64):
        raise InputError(
            f"jagged tensor: {name} has shape {tuple(tensor.shape)} and dtype {tensor.dtype}; "
            "give one dimension of int32 or int64"
        )


def check_lengths(lengths: Tensor, offsets: Tensor | None, values: Tensor) -> None:
    """Lengths are counts that add up to the values; offsets, when given too, are their running sum."""
    check_integers("lengths" if offsets is None else "offsets", lengths)
    if values.dim() == 0:
        raise InputError("jagged tensor: values is a single number; give at least one dimension")
    if lengths.numel() and int(lengths.min()) < 0:
        raise InputError("jagged tensor: lengths has a negative entry (or offsets fall); give lengths of 0 or more")
    total = int(lengths.sum())
    if total != values.shape[0]:
        raise InputError(
            f"jagged tensor: lengths sum to {total} (offsets end there) but there are {values.shape[0]} values; "
            "give lengths that add up to the values"
        )
    if offsets is None:
        return
    check_integers("offsets", offsets)
    if offsets.numel() != lengths.numel() + 1 or int(offsets[0]) != 0 or not torch.equal(offsets.diff(), lengths):
        raise InputError("jagged tensor: offsets do not start at 0 and rise by the lengths; give the running sum")


def check_keys(keys: Sequence[str]) -> None:
    """Each key once."""
    if len(set(keys)) < len(keys):
        twice = sorted({key for key in keys if list(keys).count(key) > 1})
        raise InputError(f"keys {twice} come more than once; give each feature one name")


def check_same_stride(parts: Sequence[HasStride]) -> None:
    """All parts have the same rows."""
    strides = sorted({part.stride() for part in parts})
    if len(strides) > 1:
        raise InputError(f"concat: the parts have {strides} rows; give parts of the same batch")


def key_position(keys: Sequence[str], key: str) -> int:
    """Where `key` stands among `keys`."""
    if key not in keys:
        raise InputError(f"no feature {key!r}; there are {list(keys)}")
    return keys.index(key)


def check_permutation(indices: Sequence[int], keys: int) -> None:
    """Positions of keys, each at most once."""
    if len(set(indices)) < len(indices) or any(not 0 <= at < keys for at in indices):
        raise InputError(f"permute: {list(indices)} are not positions among {keys} keys; give each from 0 at most once")


def segment_bounds(segments: Sequence[int], keys: int) -> list[tuple[int, int]]:
    """(start, end) of each run of keys."""
    if sum(segments) != keys or any(size < 0 for size in segments):
        raise InputError(f"split: segments {list(segments)} do not add up to the {keys} keys; give sizes that do")
    bounds = [0, *accumulate(segments)]
    return list(pairwise(bounds))
