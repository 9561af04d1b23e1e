"""Preprocessing of id lists on unique lists only (RecD's O4): hashing, clamping, bucketising, truncation."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import ClassVar, Protocol, TypeVar

import numpy as np
import torch
from torch import Tensor

from shardgym.embeddings.jagged.grouped import Group, GroupedJaggedTensor
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup
from shardgym.embeddings.jagged.keyed import JaggedTensor, KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import window_positions
from shardgym.embeddings.jagged.partial_inverse import WindowGroup
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

Jagged = TypeVar("Jagged", KeyedJaggedTensor, GroupedJaggedTensor)


class Transform(Protocol):
    """Changes values one by one, or which values of each list are kept; never the number of lists."""

    cuts: ClassVar[bool]
    """Whether values may be left out."""

    def values(self, values: Tensor) -> Tensor:
        """Values (T,) -> values (T,), each from the one at its place alone."""
        ...

    def windows(self, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Where lists start (N,) and their lengths (N,) -> the same for the values that are kept."""
        ...


class _ByValue:
    cuts: ClassVar[bool] = False

    def windows(self, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        return starts, lengths


@public("shardgym.dataio")
@dataclass(frozen=True)
class HashIds(_ByValue):
    """Ids of any size to 0 .. rows - 1, by the finaliser of MurmurHash3 (Appleby, 2011).

    Args:
        rows: of the table that they index, 1 to 2^62.
        salt: another one gives other collisions.
    """

    rows: int
    salt: int = 0

    def __post_init__(self) -> None:
        if not 1 <= self.rows <= 1 << 62:
            raise InputError(f"HashIds: rows is {self.rows}; give 1 to 2^62")

    def values(self, values: Tensor) -> Tensor:
        """Hashed ids, int64."""
        words = values.long() + self.salt * 0x9E3779B9
        for multiplier in (-0xAE502812AA7333, -0x3B314601E57A13AD):
            words = (words ^ ((words >> 33) & 0x7FFFFFFF)) * multiplier
        words = words ^ ((words >> 33) & 0x7FFFFFFF)
        return (words & 0x7FFFFFFFFFFFFFFF) % self.rows


@public("shardgym.dataio")
@dataclass(frozen=True)
class Clamp(_ByValue):
    """Values below `low` become `low`, above `high` become `high`."""

    low: float
    high: float

    def __post_init__(self) -> None:
        if not self.low <= self.high:
            raise InputError(f"Clamp: low {self.low} is not at most high {self.high}; swap them")

    def values(self, values: Tensor) -> Tensor:
        """Clamped values, same dtype."""
        if values.dtype == torch.uint64:
            low, high = np.uint64(max(0, self.low)), np.uint64(max(0, self.high))
            return torch.from_numpy(np.clip(values.cpu().numpy(), low, high)).to(values.device)
        return values.clamp(self.low, self.high)


@public("shardgym.dataio")
@dataclass(frozen=True)
class Bucketize(_ByValue):
    """Numbers to the index of their bucket: how many of the rising `boundaries` are at most the number."""

    boundaries: tuple[float, ...]

    def __post_init__(self) -> None:
        if any(a >= b for a, b in zip(self.boundaries, self.boundaries[1:])):
            raise InputError("Bucketize: boundaries do not rise; sort them and drop repeats")

    def values(self, values: Tensor) -> Tensor:
        """Bucket indices, int64."""
        if values.dtype == torch.uint64:
            buckets = np.searchsorted(self._unsigned(), values.cpu().numpy(), side="right")
            return torch.from_numpy(buckets).to(values.device)
        dtype = values.dtype if values.is_floating_point() else torch.int64
        return torch.bucketize(values, torch.tensor(self.boundaries, device=values.device).to(dtype), right=True)

    def _unsigned(self) -> np.ndarray:
        return np.array([math.ceil(max(0, boundary)) for boundary in self.boundaries], dtype=np.uint64)


@public("shardgym.dataio")
@dataclass(frozen=True)
class Truncate:
    """The last (newest) or first `length` values of each list.

    Args:
        length: values that are kept at most.
        keep: "last" or "first".
    """

    length: int
    keep: str = "last"
    cuts: ClassVar[bool] = True

    def __post_init__(self) -> None:
        if self.length < 0 or self.keep not in ("last", "first"):
            raise InputError(f"Truncate: {self.length} and {self.keep!r}; give a length of 0 or more, last or first")

    def values(self, values: Tensor) -> Tensor:
        """Unchanged."""
        return values

    def windows(self, starts: Tensor, lengths: Tensor) -> tuple[Tensor, Tensor]:
        """Windows of at most `length` positions."""
        kept = lengths.clamp(max=self.length)
        return (starts if self.keep == "first" else starts + (lengths - kept)), kept


def transformed(batch: Jagged, transforms: Mapping[str, Sequence[Transform]]) -> Jagged:
    """Pass each named feature's lists through its transforms, in order; the inverse stays as it is.

    Args:
        batch: plain or deduplicated features; of the latter, unique lists and shared values only are touched.
        transforms: for each feature name, its transforms; other features stay.

    Raises:
        InputError: features of one tensor come out with several types.
    """
    if isinstance(batch, KeyedJaggedTensor):
        return _keyed(batch, transforms)
    groups = [made for group in batch.groups for made in _group(group, transforms)]
    return type(batch)(groups, batch.keys(), stride=batch.stride(), validate=False)


def _group(group: Group, transforms: Mapping[str, Sequence[Transform]]) -> list[Group]:
    if not any(transforms.get(key) for key in group.keys):
        return [group]
    if isinstance(group, FeatureGroup):
        return [FeatureGroup(_keyed(group.unique, transforms), group.inverse)]
    if not isinstance(group, WindowGroup):
        raise InputError(f"transforms: a {type(group).__name__} is not known; give feature or window groups")
    # Features that are cut differently no longer share their windows.
    cuts: dict[tuple[Transform, ...], list[str]] = {}
    for key in group.keys:
        cut = tuple(each for each in transforms.get(key, ()) if each.cuts)
        cuts.setdefault(cut, []).append(key)
    return [_window_group(group.select(keys), transforms, cut) for cut, keys in cuts.items()]


def _window_group(
    group: WindowGroup, transforms: Mapping[str, Sequence[Transform]], cut: Sequence[Transform]
) -> WindowGroup:
    starts, lengths = group.starts, group.lengths
    for each in cut:
        starts, lengths = each.windows(starts, lengths)
    values = [_through(values, transforms.get(key, ())) for key, values in zip(group.keys, group.values)]
    _one_type(dict(zip(group.keys, values)))
    made = WindowGroup(group.keys, torch.stack(values), starts, lengths, group.weights)
    # Selecting every row drops the positions that no window has any more.
    return made.index_select(torch.arange(made.stride(), device=starts.device)) if cut else made


def _through(values: Tensor, transforms: Sequence[Transform]) -> Tensor:
    for each in transforms:
        values = each.values(values)
    return values


def _keyed(kjt: KeyedJaggedTensor, transforms: Mapping[str, Sequence[Transform]]) -> KeyedJaggedTensor:
    lists = {key: _jagged(jagged, transforms.get(key, ())) for key, jagged in kjt.to_dict().items()}
    _one_type({key: jagged.values() for key, jagged in lists.items()})
    weights = [jagged.weights_or_none() for jagged in lists.values()]
    return KeyedJaggedTensor(
        kjt.keys(),
        torch.cat([jagged.values() for jagged in lists.values()]),
        torch.cat([each for each in weights if each is not None]) if kjt.weights_or_none() is not None else None,
        torch.cat([jagged.lengths() for jagged in lists.values()]),
        stride=kjt.stride(),
        validate=False,
    )


def _jagged(jagged: JaggedTensor, transforms: Sequence[Transform]) -> JaggedTensor:
    values, weights, lengths = jagged.values(), jagged.weights_or_none(), jagged.lengths()
    starts = jagged.offsets()[:-1]
    kept = lengths
    for each in transforms:
        starts, kept = each.windows(starts, kept)
    if any(each.cuts for each in transforms):
        positions = window_positions(starts, kept)
        values = values.index_select(0, positions)
        weights = None if weights is None else weights.index_select(0, positions)
    return JaggedTensor(_through(values, transforms), weights, kept, validate=False)


def _one_type(values: Mapping[str, Tensor]) -> None:
    types = {tensor.dtype: key for key, tensor in values.items()}
    if len(types) > 1:
        raise InputError(
            f"transforms: {' and '.join(types.values())} share a group but come out as "
            f"{' and '.join(map(str, types))}; bucketise both, or give them groups of their own"
        )
