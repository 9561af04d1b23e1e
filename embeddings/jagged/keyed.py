"""Jagged tensors on torch alone, with TorchRec's names: one list per row, or one list per row and key."""

from collections.abc import Iterable, Sequence
from itertools import pairwise
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged.checks import (
    check_keys,
    check_permutation,
    check_same_stride,
    key_position,
    segment_bounds,
)
from shardgym.embeddings.jagged.jagged import JaggedTensor
from shardgym.embeddings.jagged.ops import jagged_index_select
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

__all__ = ["JaggedTensor", "KeyedJaggedTensor"]


@public("shardgym.embeddings")
class KeyedJaggedTensor(JaggedTensor):
    """One list per key and row: all rows of the first key, then all rows of the next.

    Args:
        keys: F names of features, each once.
        values: (T, ...) the lists' values.
        weights: (T,) one weight per value, or None.
        lengths: (F * B,) values per list, key-major.
        offsets: (F * B + 1,) where each list starts; give it or `lengths`.
        stride: rows B; needed only where there are no keys.
        validate: check every invariant; False only for tensors made from checked ones.

    Raises:
        InputError: names the field that does not fit.
    """

    def __init__(
        self,
        keys: Sequence[str],
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        stride: int | None = None,
        validate: bool = True,
    ) -> None:
        self._keys = tuple(keys)
        super().__init__(values, weights, lengths, offsets, validate)
        rows = self._lengths.shape[0] // len(self._keys) if self._keys and stride is None else 0
        self._stride = rows if stride is None else stride
        self._value_bounds: list[int] | None = None
        if validate:
            check_keys(self._keys)
            if self._stride < 0 or self._stride * len(self._keys) != self._lengths.numel():
                raise InputError(
                    f"keyed jagged tensor: {self._lengths.numel()} lengths do not fit {len(self._keys)} keys "
                    f"and stride {stride}; give one length for each key and row"
                )

    @classmethod
    def from_lengths_sync(
        cls,
        keys: Sequence[str],
        values: Tensor,
        lengths: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
    ) -> "KeyedJaggedTensor":
        """From lengths (F * B,), key-major."""
        return cls(keys, values, weights, lengths, stride=stride)

    @classmethod
    def from_offsets_sync(
        cls,
        keys: Sequence[str],
        values: Tensor,
        offsets: Tensor,
        weights: Tensor | None = None,
        stride: int | None = None,
    ) -> "KeyedJaggedTensor":
        """From offsets (F * B + 1,), key-major."""
        return cls(keys, values, weights, offsets=offsets, stride=stride)

    @classmethod
    def from_jt_dict(cls, features: dict[str, JaggedTensor]) -> "KeyedJaggedTensor":
        """One jagged tensor per key; all have the same number of rows.

        Raises:
            InputError: when the numbers of rows differ.
        """
        strides = {jagged.lengths().numel() for jagged in features.values()}
        if len(strides) > 1:
            raise InputError(f"keyed jagged tensor: the features have {sorted(strides)} rows; give all the same")
        return cls.concat([cls([key], jt._values, jt._weights, jt._lengths) for key, jt in features.items()])

    @classmethod
    def empty(cls, keys: Sequence[str] = (), device: torch.device | str = "cpu") -> "KeyedJaggedTensor":
        """No rows of the given keys."""
        nothing = torch.empty(0, dtype=torch.int64, device=device)
        return cls(keys, nothing, lengths=nothing)

    @classmethod
    def concat(cls, parts: Sequence["KeyedJaggedTensor"]) -> "KeyedJaggedTensor":
        """The keys of all parts, which have the same rows, in one tensor.

        Raises:
            InputError: when the strides differ, a key comes twice, or only some parts have weights.
        """
        if not parts:
            return cls.empty()
        if len(parts) == 1:
            return parts[0]
        check_same_stride(parts)
        keys = [key for part in parts for key in part._keys]
        check_keys(keys)
        filled = [part for part in parts if part._keys] or [parts[0]]
        weights = [part._weights for part in filled if part._weights is not None]
        if weights and len(weights) < len(filled):
            raise InputError(
                "keyed jagged tensor: some parts have weights and some have none; give all or none weights"
            )
        return cls(
            keys,
            torch.cat([part._values for part in filled]),
            torch.cat(weights) if weights else None,
            torch.cat([part._lengths for part in filled]),
            stride=parts[0].stride(),
            validate=False,
        )

    def keys(self) -> list[str]:
        """Names of the features."""
        return list(self._keys)

    def stride(self) -> int:
        """Rows B."""
        return self._stride

    def offset_per_key(self) -> list[int]:
        """Where each key's values start, and the end (F + 1)."""
        if self._value_bounds is None:
            B = self._stride
            self._value_bounds = (
                self.offsets()[::B].tolist() if B and self._keys else [0] * (len(self._keys) + 1)
            )  # (F * B + 1,) -> (F + 1,)
        return self._value_bounds

    def length_per_key(self) -> list[int]:
        """Values of each key (F)."""
        bounds = self.offset_per_key()
        return [end - start for start, end in pairwise(bounds)]

    def __getitem__(self, key: str) -> JaggedTensor:
        """The rows of one key, sharing memory.

        Raises:
            InputError: when there is no such key.
        """
        at, B = key_position(self._keys, key), self._stride
        start, end = self.offset_per_key()[at : at + 2]
        weights = None if self._weights is None else self._weights[start:end]
        offsets = self.offsets()[at * B : (at + 1) * B + 1] - start
        return JaggedTensor(
            self._values[start:end], weights, self._lengths[at * B : (at + 1) * B], offsets, validate=False
        )

    def to_dict(self) -> dict[str, JaggedTensor]:
        """Each key's rows, sharing memory."""
        return {key: self[key] for key in self._keys}

    def split(self, segments: Sequence[int]) -> list["KeyedJaggedTensor"]:
        """Cut the keys into runs of the given lengths, sharing memory."""
        return [self._run(start, end) for start, end in segment_bounds(segments, len(self._keys))]

    def _run(self, start: int, end: int) -> "KeyedJaggedTensor":
        bounds, B = self.offset_per_key(), self._stride
        return KeyedJaggedTensor(
            self._keys[start:end],
            self._values[bounds[start] : bounds[end]],
            None if self._weights is None else self._weights[bounds[start] : bounds[end]],
            self._lengths[start * B : end * B],
            stride=B,
            validate=False,
        )

    def permute(self, indices: Sequence[int]) -> "KeyedJaggedTensor":
        """The keys at `indices`, in that order, each at most once."""
        check_permutation(indices, len(self._keys))
        if list(indices) == list(range(len(self._keys))):
            return self
        if not indices:
            return self._run(0, 0)
        return KeyedJaggedTensor.concat([self._run(at, at + 1) for at in indices])

    def select(self, keys: Iterable[str]) -> "KeyedJaggedTensor":
        """The named keys, in that order."""
        return self.permute([key_position(self._keys, key) for key in keys])

    def index_select(self, rows: Tensor) -> "KeyedJaggedTensor":
        """The given rows (M,) of every key, any number of times each."""
        rows = rows.long()
        F, M = len(self._keys), rows.numel()
        # (F, 1) + (M,) -> (F * M,): row r of key f is list f * B + r
        lists = (torch.arange(F, device=rows.device).unsqueeze(1) * self._stride + rows).reshape(F * M)
        values, lengths = jagged_index_select(self._values, self.offsets(), lists)
        weights = None
        if self._weights is not None:
            weights, _ = jagged_index_select(self._weights, self.offsets(), lists)
        return KeyedJaggedTensor(self._keys, values, weights, lengths, stride=M, validate=False)

    def equal(self, other: JaggedTensor) -> bool:
        """Whether keys, rows, values, lengths and weights agree bit for bit."""
        return (
            isinstance(other, KeyedJaggedTensor)
            and self._keys == other._keys
            and self._stride == other._stride
            and super().equal(other)
        )

    def _like(self, values: Any, weights: Any, lengths: Any) -> Self:
        return type(self)(self._keys, values, weights, lengths, stride=self._stride, validate=False)

    def __repr__(self) -> str:
        return (
            f"{type(self).__name__}(keys={list(self._keys)}, stride={self._stride}, values={tuple(self._values.shape)})"
        )


def _rebuilt(leaves: Iterable[Any], context: tuple[tuple[str, ...], int]) -> KeyedJaggedTensor:
    values, weights, lengths = leaves
    keys, stride = context
    return KeyedJaggedTensor(keys, values, weights, lengths, stride=stride, validate=False)


# As a pytree, the leaves are the values, weights and lengths; the keys and the stride are the structure.
pytree.register_pytree_node(
    KeyedJaggedTensor,
    lambda kjt: ([kjt._values, kjt._weights, kjt._lengths], (kjt._keys, kjt._stride)),
    _rebuilt,
    serialized_type_name="shardgym.KeyedJaggedTensor",
)
