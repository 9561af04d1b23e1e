"""What deduplicated batches share: feature groups, each holding its keys' lists in its own form."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Generic, Protocol, Self, TypeVar

import torch
from torch import Tensor

from shardgym.embeddings.jagged.checks import (
    check_keys,
    check_permutation,
    check_same_stride,
    key_position,
    segment_bounds,
)
from shardgym.embeddings.jagged.keyed import JaggedTensor, KeyedJaggedTensor
from shardgym.problem.errors import InputError


class Group(Protocol):
    """Some keys of a batch, whose lists repeat together."""

    @property
    def keys(self) -> tuple[str, ...]:
        """Names of the features."""
        ...

    def stride(self) -> int:
        """Rows B of the batch."""
        ...

    def check(self) -> None:
        """Raise InputError where an invariant does not hold."""
        ...

    def expand(self) -> KeyedJaggedTensor:
        """The lists of every row, duplicates included."""
        ...

    def select(self, keys: Sequence[str]) -> Self:
        """Some of the keys, the rows' structure kept."""
        ...

    def index_select(self, rows: Tensor) -> Self:
        """The given rows; what they no longer refer to is dropped."""
        ...

    def map_tensors(self, apply: Callable[[Tensor], Tensor]) -> Self:
        """The same group with each tensor passed through `apply`, which keeps the shape."""
        ...

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch or group."""
        ...


GroupT = TypeVar("GroupT", bound=Group)


class GroupedJaggedTensor(Generic[GroupT]):
    """A batch as feature groups. The order of the keys is its own, whatever the groups' order.

    Args:
        groups: disjoint groups of the same rows.
        keys: order of all keys, by default the groups' own.
        stride: rows B; needed only where there are no groups.
        validate: check every invariant, also inside the groups; False only for checked parts.

    Raises:
        InputError: names the group or key that does not fit.
    """

    group_types: ClassVar[tuple[type, ...]] = ()

    def __init__(
        self,
        groups: Sequence[GroupT],
        keys: Sequence[str] | None = None,
        stride: int | None = None,
        validate: bool = True,
    ) -> None:
        self.groups = tuple(groups)
        names = tuple(key for group in self.groups for key in group.keys)
        self._keys = names if keys is None else tuple(keys)
        self._stride = self.groups[0].stride() if self.groups else stride or 0
        if validate:
            check_keys(names)
            if sorted(names) != sorted(self._keys):
                raise InputError(f"keys are {list(self._keys)} but the groups hold {list(names)}; give the same names")
            for group in self.groups:
                if not isinstance(group, self.group_types):
                    raise InputError(
                        f"{type(self).__name__}: a group is a {type(group).__name__}; "
                        f"give {' or '.join(kind.__name__ for kind in self.group_types)}"
                    )
                group.check()
            check_same_stride([*self.groups, self])

    def keys(self) -> list[str]:
        """Names of the features."""
        return list(self._keys)

    def stride(self) -> int:
        """Rows B."""
        return self._stride

    def device(self) -> torch.device:
        """Where the tensors lie."""
        tensors = self.tensors()
        return tensors[0].device if tensors else torch.device("cpu")

    def group_of(self, key: str) -> GroupT:
        """The group that holds a key.

        Raises:
            InputError: when there is no such key.
        """
        key_position(self._keys, key)
        return next(group for group in self.groups if key in group.keys)

    def __getitem__(self, key: str) -> JaggedTensor:
        """A key's lists of every row, expanded.

        Raises:
            InputError: when there is no such key.
        """
        return self.group_of(key).select([key]).expand()[key]

    def to_dict(self) -> dict[str, JaggedTensor]:
        """Each key's lists of every row, expanded."""
        return self.to_kjt().to_dict()

    def to_kjt(self) -> KeyedJaggedTensor:
        """The whole batch expanded, exactly, keys in order."""
        if not self.groups:
            return KeyedJaggedTensor.empty()
        return KeyedJaggedTensor.concat([group.expand() for group in self.groups]).select(self._keys)

    def select(self, keys: Iterable[str]) -> Self:
        """The named keys in that order, the groups' structure kept."""
        keys = tuple(keys)
        check_keys(keys)
        for key in keys:
            key_position(self._keys, key)
        return self._with(self._groups_of(set(keys)), keys)

    def _groups_of(self, wanted: set[str]) -> Iterator[GroupT]:
        for group in self.groups:
            kept = [key for key in group.keys if key in wanted]
            if len(kept) == len(group.keys):
                yield group
            elif kept:
                yield group.select(kept)

    def _with(self, groups: Iterable[GroupT], keys: Sequence[str]) -> Self:
        return type(self)(tuple(groups), keys, stride=self._stride, validate=False)

    def permute(self, indices: Sequence[int]) -> Self:
        """The keys at `indices`, in that order, each at most once; groups keep their structure."""
        check_permutation(indices, len(self._keys))
        return self.select([self._keys[at] for at in indices])

    def split(self, segments: Sequence[int]) -> list[Self]:
        """Cut the keys into runs of the given lengths; a group that is cut keeps its structure in each part."""
        return [self.select(self._keys[start:end]) for start, end in segment_bounds(segments, len(self._keys))]

    def index_select(self, rows: Tensor) -> Self:
        """The given rows (M,), any number of times each; lists that none of them refers to are dropped."""
        groups = tuple(group.index_select(rows.long()) for group in self.groups)
        return type(self)(groups, self._keys, stride=rows.numel(), validate=False)

    def tensors(self) -> list[Tensor]:
        """All tensors of the batch or group."""
        return [tensor for group in self.groups for tensor in group.tensors()]

    def size_in_bytes(self) -> int:
        """Bytes of everything: values, lengths, weights and the inverse."""
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors())

    def map_tensors(self, apply: Callable[[Tensor], Tensor]) -> Self:
        """The same batch with each tensor passed through `apply`, which keeps the shape."""
        return self._with([group.map_tensors(apply) for group in self.groups], self._keys)

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same batch on another device."""
        return self.map_tensors(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same batch in page-locked memory, for copies that do not block."""
        return self.map_tensors(lambda tensor: tensor.pin_memory())

    def equal(self, other: "GroupedJaggedTensor") -> bool:
        """Whether keys, groups and all tensors agree bit for bit."""
        mine, theirs = self.tensors(), other.tensors()
        return (
            self._keys == other._keys
            and self._stride == other._stride
            and [group.keys for group in self.groups] == [group.keys for group in other.groups]
            and len(mine) == len(theirs)
            and all(map(torch.equal, mine, theirs))
        )

    def __repr__(self) -> str:
        groups = ", ".join(f"{type(group).__name__}({', '.join(group.keys)})" for group in self.groups)
        return f"{type(self).__name__}(stride={self._stride}, groups=[{groups}])"
