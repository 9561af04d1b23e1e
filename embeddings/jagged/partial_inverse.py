"""Partially deduplicated batches: each row is an (offset, length) window of values that rows share (partial IKJT)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged.checks import check_integers, check_keys
from shardgym.embeddings.jagged.dedup import bits
from shardgym.embeddings.jagged.grouped import GroupedJaggedTensor
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import picked, window_positions, window_values
from shardgym.embeddings.jagged.windows import find_windows
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.embeddings")
@dataclass(frozen=True, eq=False)
class WindowGroup:
    """Features whose lists run side by side (one event per position), each row a window of shared positions.

    Args:
        keys: F names of features.
        values: (F, N) values at the shared positions.
        starts: (B,) where each row's window starts, int32 or int64.
        lengths: (B,) positions of each row's window.
        weights: (F, N) one weight per value, or None.
    """

    keys: tuple[str, ...]
    values: Tensor
    starts: Tensor
    lengths: Tensor
    weights: Tensor | None = None

    def stride(self) -> int:
        """Rows B of the batch."""
        return self.starts.numel()

    def shared(self) -> int:
        """Shared positions N."""
        return self.values.shape[1]

    def check(self) -> None:
        """Every window lies inside the shared positions, and every position in a window.

        Raises:
            InputError: names the group and what does not fit.
        """
        name = f"window group {'+'.join(self.keys)}"
        if not self.keys or self.values.dim() != 2 or self.values.shape[0] != len(self.keys):
            raise InputError(f"{name}: values has shape {tuple(self.values.shape)}; give one row of values per key")
        if self.weights is not None and self.weights.shape != self.values.shape:
            raise InputError(f"{name}: weights has shape {tuple(self.weights.shape)}; give one weight per value")
        check_integers(f"starts of {name}", self.starts)
        check_integers(f"lengths of {name}", self.lengths)
        if self.starts.numel() != self.lengths.numel():
            raise InputError(
                f"{name}: {self.starts.numel()} starts beside {self.lengths.numel()} lengths; give both for each row"
            )
        N = self.shared()
        outside = (self.starts < 0) | (self.lengths < 0) | (self.starts + self.lengths > N)
        if bool(outside.any()):
            row = int(outside.nonzero()[0])
            raise InputError(
                f"{name}: row {row} is the window ({int(self.starts[row])}, {int(self.lengths[row])}) of {N} shared "
                "values; give windows that lie inside them"
            )
        unused = N - int(self._covered().sum())
        if unused:
            raise InputError(f"{name}: {unused} of the {N} shared values are in no row; leave them out")

    def _covered(self) -> Tensor:
        """Which shared positions are in some window: (N,) bool."""
        change = torch.zeros(self.shared() + 1, dtype=torch.int64, device=self.values.device)
        one = torch.ones(self.stride(), dtype=torch.int64, device=self.values.device)
        change.index_add_(0, self.starts.long(), one)
        change.index_add_(0, (self.starts + self.lengths).long(), -one)
        return change.cumsum(0)[:-1] > 0

    def positions(self) -> Tensor:
        """Shared positions of every row's list, one row after the other: (T,) int64."""
        return window_positions(self.starts, self.lengths)

    def expand(self) -> KeyedJaggedTensor:
        """The lists of every row, shared values repeated."""
        values = window_values(self.values, self.starts, self.lengths)  # (F * T,), key-major
        weights = None if self.weights is None else window_values(self.weights, self.starts, self.lengths)
        lengths = self.lengths.repeat(len(self.keys))  # (B,) -> (F * B,)
        return KeyedJaggedTensor(self.keys, values, weights, lengths, stride=self.stride(), validate=False)

    def select(self, keys: Sequence[str]) -> Self:
        """Some of the keys, with the same windows."""
        rows = [self.keys.index(key) for key in keys]
        weights = None if self.weights is None else self.weights[rows]
        return type(self)(tuple(keys), self.values[rows], self.starts, self.lengths, weights)

    def index_select(self, rows: Tensor) -> Self:
        """The given rows; positions that none of them has are dropped."""
        picked = type(self)(self.keys, self.values, self.starts[rows], self.lengths[rows], self.weights)
        covered = picked._covered()
        before = torch.cat([covered.new_zeros(1, dtype=torch.int64), covered.cumsum(0)])
        weights = None if self.weights is None else self.weights[:, covered]
        starts = before[picked.starts.long()].to(self.starts.dtype)
        return type(self)(self.keys, self.values[:, covered], starts, picked.lengths, weights)

    def map_tensors(self, apply: Callable[[Tensor], Tensor]) -> Self:
        """The same group with each tensor passed through `apply`, which keeps the shape."""
        weights = None if self.weights is None else apply(self.weights)
        return type(self)(self.keys, apply(self.values), apply(self.starts), apply(self.lengths), weights)

    def tensors(self) -> list[Tensor]:
        """Values, starts, lengths and weights, those that there are."""
        tensors = [self.values, self.starts, self.lengths]
        return tensors if self.weights is None else [*tensors, self.weights]


@public("shardgym.embeddings")
class PartialInverseKeyedJaggedTensor(GroupedJaggedTensor[WindowGroup | FeatureGroup]):
    """A batch some of whose feature groups hold windows of shared values; others may hold unique lists.

    Args:
        groups: `WindowGroup`s and `FeatureGroup`s, disjoint, of the same rows.
        keys: order of all keys, by default the groups' own.
        stride: rows B; needed only where there are no groups.
        validate: check every invariant; False only for checked parts.

    Raises:
        InputError: names the group or key that does not fit.
    """

    group_types = (WindowGroup, FeatureGroup)

    @classmethod
    def from_kjt(
        cls, kjt: KeyedJaggedTensor, groups: Sequence[Sequence[str]], order: Tensor | None = None
    ) -> "PartialInverseKeyedJaggedTensor":
        """Find the windows of a batch whose neighbouring rows slide, oldest or newest value first.

        Args:
            kjt: the batch.
            groups: names of the features of each window group; their lists have the same lengths row by row.
                Features that are in none keep all their rows.
            order: (B,) the rows by session and time, where they do not stand so already.

        Raises:
            InputError: names a key that is unknown or in two groups, or whose lists differ in length from its group's.
        """
        grouped = [key for group in groups for key in group]
        check_keys(grouped)
        parts: list[WindowGroup | FeatureGroup] = [_windowed(kjt.select(keys), order) for keys in groups if keys]
        names = kjt.keys()
        rest = [key for key in names if key not in grouped]
        if rest:
            parts.append(FeatureGroup(kjt.select(rest), None))
        return cls(parts, names, stride=kjt.stride(), validate=False)

    def factor(self) -> float:
        """Values of the expanded batch over stored values, 1 for none."""
        stored = expanded = 0
        for group in self.groups:
            if isinstance(group, WindowGroup):
                stored += group.values.numel()
                expanded += int(group.lengths.sum()) * len(group.keys)
            else:
                stored += group.unique.values().shape[0]
                expanded += group.expanded_values()
        return expanded / stored if stored else 1.0


def _windowed(kjt: KeyedJaggedTensor, order: Tensor | None) -> WindowGroup:
    F, B = len(kjt.keys()), kjt.stride()
    lengths = kjt.lengths().view(F, B)  # (F * B,) -> (F, B)
    if bool((lengths != lengths[0]).any()):
        raise InputError(
            f"window group {'+'.join(kjt.keys())}: the features' lists differ in length in some row; "
            "give each such feature a group of its own"
        )
    values, weights = kjt.values().view(F, -1), kjt.weights_or_none()  # (F * T,) -> (F, T)
    channels = bits(values)
    if weights is not None:
        weights = weights.view(F, -1)
        channels = torch.cat([channels, bits(weights)])
    shared, starts = find_windows(channels.contiguous(), kjt.offsets()[: B + 1], order)
    return WindowGroup(
        tuple(kjt.keys()),
        picked(values, shared, 1),
        starts.to(lengths.dtype),
        lengths[0],
        None if weights is None else weights.index_select(1, shared),
    )


pytree.register_pytree_node(
    WindowGroup,
    lambda group: ([group.values, group.starts, group.lengths, group.weights], group.keys),
    lambda leaves, keys: WindowGroup(tuple(keys), *leaves),
    serialized_type_name="shardgym.WindowGroup",
)
pytree.register_pytree_node(
    PartialInverseKeyedJaggedTensor,
    lambda partial: (list(partial.groups), (partial._keys, partial._stride)),
    lambda leaves, context: PartialInverseKeyedJaggedTensor(list(leaves), context[0], context[1], validate=False),
    serialized_type_name="shardgym.PartialInverseKeyedJaggedTensor",
)
