"""A jagged tensor on torch alone, with TorchRec's names: rows of unequal length in one flat tensor."""

from collections.abc import Callable, Iterable
from typing import Any, Self

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged.checks import check_lengths
from shardgym.embeddings.jagged.ops import offsets_from_lengths
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.embeddings")
class JaggedTensor:
    """Rows of unequal length, one after the other in one flat tensor.

    Args:
        values: (T, ...) the rows' values.
        weights: (T,) one weight per value, or None.
        lengths: (N,) values per row, int32 or int64.
        offsets: (N + 1,) where each row starts; give it or `lengths`, or both where both are known.
        validate: check every invariant; False only for tensors made from checked ones.

    Raises:
        InputError: names the field that does not fit.
    """

    def __init__(
        self,
        values: Tensor,
        weights: Tensor | None = None,
        lengths: Tensor | None = None,
        offsets: Tensor | None = None,
        validate: bool = True,
    ) -> None:
        if lengths is None:
            if offsets is None:
                raise InputError("jagged tensor: neither lengths nor offsets is given; give one of them")
            if validate and (offsets.dim() != 1 or offsets.numel() == 0):
                raise InputError(
                    f"jagged tensor: offsets has shape {tuple(offsets.shape)}; give one dimension of rows + 1, from 0"
                )
            lengths = offsets[1:] - offsets[:-1]
        self._values, self._weights, self._lengths, self._offsets = values, weights, lengths, offsets
        if validate:
            check_lengths(lengths, offsets, values)
            if weights is not None and weights.shape[:1] != values.shape[:1]:
                raise InputError(
                    f"jagged tensor: weights has shape {tuple(weights.shape)} beside "
                    f"{values.shape[0]} values; give one weight per value"
                )

    def values(self) -> Tensor:
        """Values (T, ...) of all rows."""
        return self._values

    def weights_or_none(self) -> Tensor | None:
        """Weights (T,), or None."""
        return self._weights

    def weights(self) -> Tensor:
        """Weights (T,).

        Raises:
            InputError: when there are none.
        """
        if self._weights is None:
            raise InputError("jagged tensor: weights are asked for but none were given; use weights_or_none()")
        return self._weights

    def lengths(self) -> Tensor:
        """Values per row (N,)."""
        return self._lengths

    def offsets(self) -> Tensor:
        """Where each row starts (N + 1,); computed once."""
        if self._offsets is None:
            self._offsets = offsets_from_lengths(self._lengths)
        return self._offsets

    def device(self) -> torch.device:
        """Where the values lie."""
        return self._values.device

    def tensors(self) -> list[Tensor]:
        """The tensors that make up the data, what is computed from them left out."""
        return [t for t in (self._values, self._lengths, self._weights) if t is not None]

    def size_in_bytes(self) -> int:
        """Bytes of the values, lengths and weights."""
        return sum(t.numel() * t.element_size() for t in self.tensors())

    def to(self, device: torch.device | str, non_blocking: bool = False) -> Self:
        """The same data on another device."""
        return self.map_tensors(lambda t: t.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> Self:
        """The same data in page-locked memory, for copies that do not block."""
        return self.map_tensors(lambda t: t.pin_memory())

    def map_tensors(self, apply: Callable[[Tensor], Tensor]) -> Self:
        """The same rows with each tensor passed through `apply`, which must keep the shape."""
        weights = None if self._weights is None else apply(self._weights)
        return self._like(apply(self._values), weights, apply(self._lengths))

    def _like(self, values: Any, weights: Any, lengths: Any) -> Self:
        return type(self)(values, weights, lengths, validate=False)

    def equal(self, other: "JaggedTensor") -> bool:
        """Whether values, lengths and weights agree bit for bit."""
        mine, theirs = self.tensors(), other.tensors()
        return len(mine) == len(theirs) and all(map(torch.equal, mine, theirs))

    def to_dense(self) -> list[Tensor]:
        """One tensor per row."""
        return list(torch.split(self._values, self._lengths.tolist()))

    def to_padded_dense(self, desired_length: int | None = None, padding_value: float = 0.0) -> Tensor:
        """Rows (N, L, ...), cut or filled at their ends to `desired_length`, by default the longest row."""
        longest = int(self._lengths.max()) if self._lengths.numel() else 0
        L = longest if desired_length is None else desired_length
        column = torch.arange(L, device=self.device())
        inside = column < self._lengths.unsqueeze(1)  # (N, L)
        source = self.offsets()[:-1].unsqueeze(1) + column  # (N, L)
        padded = self._values.new_full((self._lengths.numel(), L, *self._values.shape[1:]), padding_value)
        padded[inside] = self._values[source[inside]]
        return padded

    def __getstate__(self) -> dict[str, Any]:
        # Offsets follow from lengths; leaving them out saves a tensor between processes.
        return self.__dict__ | {"_offsets": None}

    def __repr__(self) -> str:
        return f"{type(self).__name__}(rows={self._lengths.numel()}, values={tuple(self._values.shape)})"


def _rebuilt(leaves: Iterable[Any], _: Any) -> JaggedTensor:
    values, weights, lengths = leaves
    return JaggedTensor(values, weights, lengths, validate=False)


# As a pytree, the leaves are the values, weights and lengths; offsets follow from the lengths.
pytree.register_pytree_node(
    JaggedTensor,
    lambda jagged: ([jagged._values, jagged._weights, jagged._lengths], None),
    _rebuilt,
    serialized_type_name="shardgym.JaggedTensor",
)
