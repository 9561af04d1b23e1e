"""Deduplicated batches: unique lists and one inverse per feature group (RecD's IKJT, arXiv 2211.05239)."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged.checks import check_integers, check_keys, check_same_stride
from shardgym.embeddings.jagged.dedup import unique_rows
from shardgym.embeddings.jagged.grouped import GroupedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import expand_rows
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.embeddings")
@dataclass(frozen=True, eq=False)
class FeatureGroup:
    """Features whose lists repeat together: the unique lists, and which of them each row has.

    Args:
        unique: the F keys' lists of U unique rows.
        inverse: (B,) unique row of each row, int32 or int64; None where every row has its own (then U = B).
    """

    unique: KeyedJaggedTensor
    inverse: Tensor | None

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the features."""
        return tuple(self.unique.keys())

    def stride(self) -> int:
        """Rows B of the batch."""
        return self.unique.stride() if self.inverse is None else self.inverse.numel()

    def unique_rows(self) -> int:
        """Unique rows U."""
        return self.unique.stride()

    def factor(self) -> float:
        """Rows over unique rows, RecD's DedupeFactor; 1 for no rows."""
        return self.stride() / self.unique_rows() if self.unique_rows() else 1.0

    def expanded_values(self) -> int:
        """Values that the expanded lists hold."""
        per_row = self.unique.lengths().view(len(self.keys), self.unique_rows()).sum(0)  # (F * U,) -> (U,)
        return int(self.rows(per_row).sum())

    def check(self) -> None:
        """The inverse names unique rows only, and every one of them.

        Raises:
            InputError: names the group and what does not fit.
        """
        name = f"group {'+'.join(self.keys)}"
        if not self.keys:
            raise InputError("feature group: it has no keys; give at least one feature")
        if self.inverse is None:
            return
        check_integers(f"inverse of {name}", self.inverse)
        U = self.unique_rows()
        if self.inverse.numel() and not (int(self.inverse.min()) >= 0 and int(self.inverse.max()) < U):
            raise InputError(f"{name}: the inverse has entries outside 0..{U - 1}; give the unique row of each row")
        unused = U - int((torch.bincount(self.inverse, minlength=U) > 0).sum())
        if unused:
            raise InputError(f"{name}: no row refers to {unused} of the {U} unique rows; leave them out")

    def rows(self, per_unique: Tensor) -> Tensor:
        """Values of unique rows (U, ...) -> of every row (B, ...)."""
        return per_unique if self.inverse is None else expand_rows(per_unique, self.inverse)

    def expand(self) -> KeyedJaggedTensor:
        """The lists of every row, duplicates included."""
        return self.unique if self.inverse is None else self.unique.index_select(self.inverse)

    def select(self, keys: Sequence[str]) -> Self:
        """Some of the keys, with the same inverse."""
        return type(self)(self.unique.select(keys), self.inverse)

    def index_select(self, rows: Tensor) -> Self:
        """The given rows; unique lists that none of them has are dropped, the others keep their order."""
        if self.inverse is None:
            return type(self)(self.unique.index_select(rows), None)
        picked = self.inverse.index_select(0, rows)
        used = torch.zeros(self.unique_rows(), dtype=torch.bool, device=picked.device)
        used[picked.long()] = True
        renumbered = (used.cumsum(0) - 1).to(picked.dtype)
        return type(self)(self.unique.index_select(used.nonzero().flatten()), renumbered[picked.long()])

    def map_tensors(self, apply: Callable[[Tensor], Tensor]) -> Self:
        """The same group with each tensor passed through `apply`, which keeps the shape."""
        return type(self)(self.unique.map_tensors(apply), None if self.inverse is None else apply(self.inverse))

    def tensors(self) -> list[Tensor]:
        """Values, lengths, weights and inverse, those that there are."""
        return self.unique.tensors() + ([] if self.inverse is None else [self.inverse])


@public("shardgym.embeddings")
class InverseKeyedJaggedTensor(GroupedJaggedTensor[FeatureGroup]):
    """A batch whose feature groups each hold unique lists and one inverse.

    Args:
        groups: `FeatureGroup`s, disjoint, of the same rows.
        keys: order of all keys, by default the groups' own.
        stride: rows B; needed only where there are no groups.
        validate: check every invariant; False only for checked parts.

    Raises:
        InputError: names the group or key that does not fit.
    """

    group_types = (FeatureGroup,)

    @classmethod
    def from_kjt(
        cls,
        kjt: KeyedJaggedTensor,
        groups: Sequence[Sequence[str]] | None = None,
        rows_sorted: bool = False,
        least_factor: float = 1.0,
    ) -> Self:
        """Deduplicate a batch (RecD's O3). Rows are the same only if all features of the group agree bit for bit.

        Args:
            kjt: the batch.
            groups: names of the features of each group; features that are in none keep all their rows.
                By default each feature is a group.
            rows_sorted: equal rows are neighbours (clustered by session): compare with the row before, don't hash.
            least_factor: groups whose rows over unique rows come below it keep all their rows.

        Raises:
            InputError: names a key that is unknown or in two groups.
        """
        names = kjt.keys()
        groups = [[key] for key in names] if groups is None else groups
        grouped = [key for group in groups for key in group]
        check_keys(grouped)
        parts = [_deduplicated(kjt.select(keys), rows_sorted, least_factor) for keys in groups if keys]
        rest = [key for key in names if key not in grouped]
        if rest:
            parts.append(FeatureGroup(kjt.select(rest), None))
        return cls(parts, names, stride=kjt.stride(), validate=False)

    @classmethod
    def concat(cls, parts: Sequence["InverseKeyedJaggedTensor | KeyedJaggedTensor"]) -> Self:
        """The keys of all parts, which have the same rows; plain parts keep all their rows.

        Raises:
            InputError: when the strides differ or a key comes twice.
        """
        check_same_stride(parts)
        keys = list(chain.from_iterable(part.keys() for part in parts))
        check_keys(keys)
        groups: list[FeatureGroup] = []
        for part in parts:
            if isinstance(part, InverseKeyedJaggedTensor):
                groups.extend(part.groups)
            elif part.keys():
                groups.append(FeatureGroup(part, None))
        return cls(groups, keys, stride=parts[0].stride() if parts else 0, validate=False)

    @classmethod
    def empty_like(cls, other: "InverseKeyedJaggedTensor") -> Self:
        """No rows of the same keys and groups."""
        return cls.concat([other.index_select(torch.empty(0, dtype=torch.int64, device=other.device()))])

    def factor(self) -> float:
        """Values of the expanded batch over stored values, 1 for none."""
        stored = sum(group.unique.values().shape[0] for group in self.groups)
        return sum(group.expanded_values() for group in self.groups) / stored if stored else 1.0


def _deduplicated(kjt: KeyedJaggedTensor, rows_sorted: bool, least_factor: float) -> FeatureGroup:
    first, inverse = unique_rows(kjt, rows_sorted)
    if first.numel() * least_factor > kjt.stride():
        return FeatureGroup(kjt, None)
    return FeatureGroup(kjt.index_select(first), inverse)


pytree.register_pytree_node(
    FeatureGroup,
    lambda group: ([group.unique, group.inverse], None),
    lambda leaves, _: FeatureGroup(*leaves),
    serialized_type_name="shardgym.FeatureGroup",
)
pytree.register_pytree_node(
    InverseKeyedJaggedTensor,
    lambda ikjt: (list(ikjt.groups), (ikjt._keys, ikjt._stride)),
    lambda leaves, context: InverseKeyedJaggedTensor(list(leaves), context[0], context[1], validate=False),
    serialized_type_name="shardgym.InverseKeyedJaggedTensor",
)
