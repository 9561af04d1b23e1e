"""A batch that crosses from a worker, into page-locked memory or to a device as one tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardgym.problem.faces import public

_ALIGNMENT = 64


@dataclass(frozen=True)
class _Place:
    """Where one tensor lies in the buffer."""

    start: int
    shape: tuple[int, ...]
    dtype: torch.dtype

    @property
    def bytes(self) -> int:
        return torch.Size(self.shape).numel() * self.dtype.itemsize


@public("shardgym.dataio")
class SessionBatch:
    """Features and sample columns of B samples; packed into one buffer when it is sent to a process or device.

    Args:
        features: deduplicated or plain jagged features of B rows.
        samples: columns (B,), by name.
    """

    def __init__(self, features: Any, samples: dict[str, Tensor]) -> None:
        self._features, self._samples = features, samples
        self._packed: _Packed | None = None

    @property
    def features(self) -> Any:
        """The jagged features: a GroupedJaggedTensor or KeyedJaggedTensor."""
        self._unpack()
        return self._features

    @property
    def samples(self) -> dict[str, Tensor]:
        """The sample columns (B,)."""
        self._unpack()
        return self._samples

    def _unpack(self) -> None:
        if self._features is None and self._packed is not None:
            self._features, self._samples = self._packed.unpacked()

    @property
    def buffer(self) -> Tensor:
        """All tensors one after the other: (bytes,) uint8."""
        return self._pack().buffer

    def _pack(self) -> "_Packed":
        if self._packed is None:
            self._packed = _Packed.of(self._features, self._samples)
        return self._packed

    def size_in_bytes(self) -> int:
        """Bytes of the buffer: what crosses a process or device boundary."""
        return self.buffer.numel()

    def to(self, device: torch.device | str, non_blocking: bool = False) -> "SessionBatch":
        """The same batch on another device, in one copy."""
        return self._moved(lambda buffer: buffer.to(device, non_blocking=non_blocking))

    def pin_memory(self) -> "SessionBatch":
        """The same batch in page-locked memory."""
        return self._moved(lambda buffer: buffer.pin_memory())

    def _moved(self, move: Callable[[Tensor], Tensor]) -> "SessionBatch":
        packed = self._pack()
        return _from_packed(_Packed(move(packed.buffer), packed.places, packed.structure))

    def __reduce__(self) -> tuple[Any, ...]:
        return _from_packed, (self._pack(),)

    def __repr__(self) -> str:
        return f"SessionBatch({self.features!r}, samples={list(self.samples)})"


@dataclass(frozen=True, eq=False)
class _Packed:
    """The tensors of (features, samples) in one buffer, None in place of one that is absent."""

    buffer: Tensor
    places: tuple[_Place | None, ...]
    structure: Any

    @classmethod
    def of(cls, features: Any, samples: dict[str, Tensor]) -> "_Packed":
        tensors, structure = pytree.tree_flatten((features, samples))
        places: list[_Place | None] = []
        end = 0
        for tensor in tensors:
            place = None if tensor is None else _Place(end, tuple(tensor.shape), tensor.dtype)
            places.append(place)
            end += 0 if place is None else -(-place.bytes // _ALIGNMENT) * _ALIGNMENT
        device = next((tensor.device for tensor in tensors if tensor is not None), None)
        packed = cls(torch.zeros(end, dtype=torch.uint8, device=device), tuple(places), structure)
        for tensor, place in zip(tensors, places):
            if place is not None:
                packed.view(place).copy_(tensor)
        return packed

    def view(self, place: _Place) -> Tensor:
        return self.buffer[place.start : place.start + place.bytes].view(place.dtype).view(place.shape)

    def unpacked(self) -> tuple[Any, dict[str, Tensor]]:
        views = [None if place is None else self.view(place) for place in self.places]
        return pytree.tree_unflatten(views, self.structure)

    def __getstate__(self) -> dict[str, Any]:
        # As JSON: pickling the structure itself draws a warning from torch.
        return {"buffer": self.buffer, "places": self.places, "structure": pytree.treespec_dumps(self.structure)}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, structure=pytree.treespec_loads(state["structure"]))


def _from_packed(packed: _Packed) -> SessionBatch:
    batch = SessionBatch(None, {})
    batch._packed = packed
    return batch
