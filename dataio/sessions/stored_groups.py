"""Feature groups of a row group as they are stored, and batches cut from them."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from shardgym.embeddings.jagged.grouped import GroupedJaggedTensor
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import jagged_index_select
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor, WindowGroup

Rows = range | np.ndarray
"""Positions of samples (M,)."""


@dataclass(frozen=True, eq=False)
class StoredLists:
    """Unique lists of a group's features.

    Args:
        keys: F names.
        values: for each key, its lists' values (T_k,).
        offsets: for each key, where its lists start (U + 1,).
        inverse: (n,) list of each sample, int32; None where each has its own.
    """

    keys: tuple[str, ...]
    values: tuple[Tensor, ...]
    offsets: tuple[np.ndarray, ...]
    inverse: np.ndarray | None

    def batch(self, rows: Rows) -> FeatureGroup:
        """The samples at `rows`, copied; lists that none of them has are left out."""
        if self.inverse is None:
            lists = _lists_in(self, rows) if isinstance(rows, range) else _lists_at(self, rows)
            return FeatureGroup(lists, None)
        inverse = self.inverse[rows.start : rows.stop] if isinstance(rows, range) else self.inverse[rows]
        low, high = (int(inverse.min()), int(inverse.max()) + 1) if inverse.size else (0, 0)
        inverse = inverse - np.int32(low)
        used = np.bincount(inverse, minlength=high - low) > 0
        if used.all():
            return FeatureGroup(_lists_in(self, range(low, high)), torch.from_numpy(inverse))
        renumbered = (np.cumsum(used, dtype=np.int32) - 1)[inverse]
        return FeatureGroup(_lists_at(self, low + np.flatnonzero(used)), torch.from_numpy(renumbered))

    def sizes(self) -> tuple[int, int]:
        """Values of all samples' lists, and values stored."""
        lengths = np.sum([np.diff(offsets) for offsets in self.offsets], axis=0)
        stored = sum(values.numel() for values in self.values)
        return stored if self.inverse is None else int(lengths[self.inverse].sum()), stored


@dataclass(frozen=True, eq=False)
class StoredWindows:
    """Windows of shared values of a group's features.

    Args:
        keys: F names.
        values: for each key, the shared values (N,).
        starts: (n,) where each sample's window starts, int32.
        lengths: (n,) positions of each, int32.
    """

    keys: tuple[str, ...]
    values: tuple[Tensor, ...]
    starts: np.ndarray
    lengths: np.ndarray

    def batch(self, rows: Rows) -> WindowGroup:
        """The samples at `rows`, copied; positions that none of them has are left out."""
        at = slice(rows.start, rows.stop) if isinstance(rows, range) else rows
        starts, lengths = self.starts[at], self.lengths[at].copy()
        ends = starts + lengths
        filled = lengths > 0
        low, high = (int(starts[filled].min()), int(ends.max())) if filled.any() else (0, 0)
        starts = np.where(filled, starts - np.int32(low), np.int32(0))
        covered = _covered(starts, lengths, high - low)
        if covered.all():
            values = torch.stack([values[low:high] for values in self.values])
        else:
            starts = (np.cumsum(covered, dtype=np.int32) - covered)[np.minimum(starts, max(0, high - low - 1))]
            starts = np.where(filled, starts, np.int32(0)).astype(np.int32)
            mask = torch.from_numpy(covered)
            values = torch.stack([values[low:high][mask] for values in self.values])
        return WindowGroup(self.keys, values, torch.from_numpy(starts), torch.from_numpy(lengths))

    def sizes(self) -> tuple[int, int]:
        """Values of all samples' windows, and values stored."""
        return int(self.lengths.sum()) * len(self.keys), sum(values.numel() for values in self.values)


StoredGroup = StoredLists | StoredWindows


@dataclass(frozen=True, eq=False)
class SampleRun:
    """Samples of a batch, or of a part of one.

    Args:
        features: groups of n rows.
        samples: columns (n,), by name.
    """

    features: GroupedJaggedTensor
    samples: dict[str, Tensor]

    def __len__(self) -> int:
        return self.features.stride()


@dataclass(frozen=True, eq=False)
class StoredRun:
    """The samples of a row group.

    Args:
        groups: the feature groups.
        keys: order of all features.
        samples: columns (n,), by name; not to be written to.
        count: n.
    """

    groups: tuple[StoredGroup, ...]
    keys: tuple[str, ...]
    samples: dict[str, Tensor]
    count: int

    def take(self, rows: Rows) -> SampleRun:
        """The samples at `rows`, copied."""
        groups = [group.batch(rows) for group in self.groups]
        if isinstance(rows, range):
            columns = {name: column[rows.start : rows.stop].clone() for name, column in self.samples.items()}
        else:
            index = torch.from_numpy(rows)
            columns = {name: column[index] for name, column in self.samples.items()}
        return SampleRun(_features(groups, self.keys, len(rows)), columns)


def _lists_in(group: StoredLists, rows: range) -> KeyedJaggedTensor:
    """Neighbouring lists of every key."""
    low, high = rows.start, rows.stop
    values = [each[offsets[low] : offsets[high]] for each, offsets in zip(group.values, group.offsets)]
    lengths = np.concatenate([np.diff(offsets[low : high + 1]) for offsets in group.offsets])
    return KeyedJaggedTensor(
        group.keys, torch.cat(values), lengths=torch.from_numpy(lengths), stride=len(rows), validate=False
    )


def _lists_at(group: StoredLists, rows: np.ndarray) -> KeyedJaggedTensor:
    """Some lists of every key."""
    index = torch.from_numpy(rows)
    values = [
        jagged_index_select(values, torch.from_numpy(offsets.astype(np.int64)), index)[0]
        for values, offsets in zip(group.values, group.offsets)
    ]
    lengths = np.concatenate([offsets[rows + 1] - offsets[rows] for offsets in group.offsets])
    return KeyedJaggedTensor(
        group.keys,
        torch.cat(values),
        lengths=torch.from_numpy(lengths),
        stride=len(rows),
        validate=False,
    )


def _covered(starts: np.ndarray, lengths: np.ndarray, positions: int) -> np.ndarray:
    """Which positions lie in some window: (positions,) bool."""
    change = np.bincount(starts, minlength=positions + 1) - np.bincount(starts + lengths, minlength=positions + 1)
    return np.cumsum(change)[:positions] > 0


def _features(groups: Sequence[Any], keys: Sequence[str], stride: int) -> GroupedJaggedTensor:
    partial = any(isinstance(group, WindowGroup) for group in groups)
    kind = PartialInverseKeyedJaggedTensor if partial else InverseKeyedJaggedTensor
    return kind(groups, keys, stride=stride, validate=False)


def concat_runs(runs: Sequence[SampleRun]) -> SampleRun:
    """The samples of all runs, which have the same groups and columns, one run after the other."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    groups = [_concat_groups(parts) for parts in zip(*(run.features.groups for run in runs))]
    samples = {name: torch.cat([run.samples[name] for run in runs]) for name in first.samples}
    return SampleRun(_features(groups, first.features.keys(), sum(map(len, runs))), samples)


def _concat_groups(parts: Sequence[Any]) -> FeatureGroup | WindowGroup:
    if isinstance(parts[0], WindowGroup):
        return WindowGroup(
            parts[0].keys,
            torch.cat([part.values for part in parts], dim=1),
            _shifted([part.starts for part in parts], [part.shared() for part in parts]),
            torch.cat([part.lengths for part in parts]),
        )
    inverses = [part.inverse for part in parts if part.inverse is not None]
    inverse = _shifted(inverses, [part.unique_rows() for part in parts]) if inverses else None
    return FeatureGroup(_concat_rows([part.unique for part in parts]), inverse)


def _shifted(positions: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    before = np.cumsum([0, *sizes])
    return torch.cat([each + int(start) for each, start in zip(positions, before)])


def _concat_rows(parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    keys = parts[0].keys()
    lists = [part[key] for key in keys for part in parts]
    return KeyedJaggedTensor(
        keys,
        torch.cat([jagged.values() for jagged in lists]),
        lengths=torch.cat([jagged.lengths() for jagged in lists]),
        stride=sum(part.stride() for part in parts),
        validate=False,
    )
