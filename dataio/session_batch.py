"""A batch as one flat buffer: it crosses from a worker, into page-locked memory or to a device as one tensor."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils import _pytree as pytree

from shardgym.embeddings.grouped import GroupedJaggedTensor
from shardgym.embeddings.jagged import KeyedJaggedTensor

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


@dataclass(frozen=True, eq=False)
class SessionBatch:
    """Features and sample columns of B samples.

    Args:
        buffer: (bytes,) uint8, all tensors one after the other; what they share is not copied on reading.
        places: where each tensor lies, None for one that is absent.
        structure: how the tensors make up (features, samples), as pytree's JSON.
    """

    buffer: Tensor
    places: tuple[_Place | None, ...]
    structure: str

    @classmethod
    def pack(cls, features: GroupedJaggedTensor | KeyedJaggedTensor, samples: dict[str, Tensor]) -> "SessionBatch":
        """Copy a batch's tensors, all on the CPU, into one buffer.

        Args:
            features: deduplicated or plain jagged features of B rows.
            samples: columns (B,), by name.
        """
        tensors, structure = pytree.tree_flatten((features, samples))
        places: list[_Place | None] = []
        end = 0
        for tensor in tensors:
            if tensor is None:
                places.append(None)
                continue
            places.append(_Place(end, tuple(tensor.shape), tensor.dtype))
            end += -(-places[-1].bytes // _ALIGNMENT) * _ALIGNMENT  # type: ignore[union-attr]
        batch = cls(torch.zeros(end, dtype=torch.uint8), tuple(places), pytree.treespec_dumps(structure))
        for tensor, place in zip(tensors, places):
            if place is not None:
                batch._view(place).copy_(tensor)
        return batch

    def _view(self, place: _Place) -> Tensor:
        return self.buffer[place.start : place.start + place.bytes].view(place.dtype).view(place.shape)

    @cached_property
    def _parts(self) -> tuple[Any, dict[str, Tensor]]:
        views = [None if place is None else self._view(place) for place in self.places]
        return pytree.tree_unflatten(views, pytree.treespec_loads(self.structure))

    @property
    def features(self) -> Any:
        """The jagged features, sharing memory with the buffer."""
        return self._parts[0]

    @property
    def samples(self) -> dict[str, Tensor]:
        """The sample columns (B,), sharing memory with the buffer."""
        return self._parts[1]

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
        return SessionBatch(move(self.buffer), self.places, self.structure)

    def __getstate__(self) -> dict[str, Any]:
        return {"buffer": self.buffer, "places": self.places, "structure": self.structure}

    def __repr__(self) -> str:
        return f"SessionBatch({self.features!r}, samples={list(self.samples)}, bytes={self.size_in_bytes()})"
