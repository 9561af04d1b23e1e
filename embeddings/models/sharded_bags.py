"""Pooled look-ups of tables that several processes hold between them; only unique rows travel."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from shardgym.embeddings.jagged.checks import key_position
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import WindowGroup
from shardgym.embeddings.models.expand_columns import expand_columns
from shardgym.embeddings.models.inverse_bags import (
    Batch,
    InverseBags,
    deduplicated_or_expanded,
    inverse_of,
    lists_for,
    mode_of,
    pool_lists,
    pool_windows,
    positions_as_bags,
)
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

KeyLists = KeyedJaggedTensor | WindowGroup
"""One key's unique lists, or its shared values and the windows over them."""


@public("shardgym.embeddings")
@dataclass
class Traffic:
    """Bytes that this process has sent to others, by what they carry.

    Args:
        lengths: lengths of lists, and how many there are.
        ids: ids and their weights.
        rows: pooled rows, forward.
        gradients: gradients of pooled rows, backward.
    """

    lengths: int = 0
    ids: int = 0
    rows: int = 0
    gradients: int = 0

    def total(self) -> int:
        """Bytes of all kinds."""
        return self.lengths + self.ids + self.rows + self.gradients


@public("shardgym.embeddings")
class ShardedBags(nn.Module):
    """Tables that each lie whole on one process; every process looks up its own batch (model parallel, RecD's O5).

    Forward sends the unique lists (of sliding histories the shared values and windows) to the tables' processes and
    brings unique pooled rows back; the inverse stays at home, where the rows are expanded. Backward sends one gradient
    per unique row. A table's gradient is the sum over the processes' batches. All processes call forward, and backward,
    together; batches may differ in size or be empty.

    Args:
        local: the tables of this process, or None for none.
        device_of: for each key, in the order of the output, the rank that holds its table; the same on all processes.
        dims: for each key, numbers per embedding; the same on all processes.
        process_group: of the exchange, by default the world.

    Raises:
        InputError: when the local tables are not those that `device_of` gives this rank.
    """

    def __init__(
        self,
        local: InverseBags | None,
        device_of: Mapping[str, int],
        dims: Mapping[str, int],
        process_group: dist.ProcessGroup | None = None,
    ) -> None:
        super().__init__()
        self.local, self.dims, self.process_group = local, dict(dims), process_group
        self.keys = list(device_of)
        rank, ranks = dist.get_rank(process_group), dist.get_world_size(process_group)
        strays = {key: holder for key, holder in device_of.items() if not 0 <= holder < ranks}
        if strays:
            raise InputError(f"device_of: {strays} are not among the {ranks} processes; give ranks from 0")
        self.keys_of_rank = [[key for key, holder in device_of.items() if holder == r] for r in range(ranks)]
        local_keys = [] if local is None else local.keys
        if sorted(local_keys) != sorted(self.keys_of_rank[rank]):
            raise InputError(f"rank {rank}: holds tables {local_keys} but device_of gives it {self.keys_of_rank[rank]}")
        self.mine = self.keys_of_rank[rank]
        self.traffic = Traffic()

    def forward(self, batch: Batch) -> Tensor:
        """(B, sum of dims), the keys side by side in the order of `device_of`.

        Raises:
            InputError: when the batch lacks a key, or only some processes' batches have weights.
        """
        forms = _forms(batch, self.keys)
        group_of = {key: at for at, form in enumerate(forms) for key in form.keys}
        lists = {key: _of_key(forms[group_of[key]], key) for key in self.keys}
        received = self._send_lists(lists)  # [rank][key of mine]
        rows = self._bring_rows(lists, self._look_up(received), received)
        inverses = [inverse_of(form) for form in forms]
        return expand_columns([rows[key] for key in self.keys], inverses, [group_of[key] for key in self.keys])

    def _send_lists(self, lists: Mapping[str, KeyLists]) -> list[list[KeyLists]]:
        """Every list, or pool and windows, to the process of its table; returns what each rank sent per key of mine."""
        wanted = [[lists[key] for key in keys] for keys in self.keys_of_rank]
        weighted = any(_weights(part) is not None for part in lists.values())
        device = next(iter(lists.values())).tensors()[0].device
        header = [
            torch.tensor([int(weighted), *(n for part in parts for n in _counts(part))], device=device)
            for parts in wanted
        ]
        heads = self._swap(header, [1 + 3 * len(self.mine)] * len(wanted), "lengths")
        if {int(head[0]) for head in heads} != {int(weighted)}:
            raise InputError("weights: only some processes' batches have them; give them to all or none")
        counts = [head[1:].view(len(self.mine), 3).tolist() for head in heads]  # (3 * keys,) -> (keys, 3)
        structure = self._swap(
            [_flat([_structure(part) for part in parts], torch.int32, device) for parts in wanted],
            [sum(numbers for _, numbers, _ in count) for count in counts],
            "lengths",
        )
        sizes = [sum(values for _, _, values in count) for count in counts]
        ids = self._swap([_flat([_ids(part) for part in parts], torch.int64, device) for parts in wanted], sizes, "ids")
        weights: Sequence[Tensor | None] = [None] * len(wanted)
        if weighted:
            weights = self._swap(
                [_flat([_weights(p) for p in parts], torch.float32, device) for parts in wanted], sizes, "ids"
            )
        return [_unpacked(self.mine, *sent) for sent in zip(counts, structure, ids, weights)]

    def _look_up(self, received: Sequence[Sequence[KeyLists]]) -> dict[str, list[Tensor]]:
        """Pooled rows of each key of mine, one tensor per rank."""
        pooled: dict[str, list[Tensor]] = {}
        if self.local is None:
            return pooled
        of_key = {key: [sent[at] for sent in received] for at, key in enumerate(self.mine)}
        for module, keys in zip(self.local.bags, self.local.parts):
            forms = {key: [_for_module(module, part, key) for part in of_key[key]] for key in keys}
            bags = {key: [_as_bags(form) for form in forms[key]] for key in keys}
            for key, rows in zip(keys, pool_lists(module, [_stacked(bags[key]) for key in keys])):
                looked_up = zip(rows.split([part.stride() for part in bags[key]]), forms[key])
                pooled[key] = [
                    pool_windows(unique, form, mode_of(module)) if isinstance(form, WindowGroup) else unique
                    for unique, form in looked_up
                ]
        return pooled

    def _bring_rows(
        self,
        lists: Mapping[str, KeyLists],
        pooled: Mapping[str, list[Tensor]],
        received: Sequence[Sequence[KeyLists]],
    ) -> dict[str, Tensor]:
        """Pooled rows back to the ranks whose lists they are; returns (U, D) of each key of this rank's batch."""
        device = next(iter(lists.values())).tensors()[0].device
        out = [_flat([pooled[key][r] for key in self.mine], torch.float32, device) for r in range(len(received))]
        sizes = [sum(lists[key].stride() * self.dims[key] for key in keys) for keys in self.keys_of_rank]
        flat = torch.cat(out)
        if not flat.requires_grad:
            flat.requires_grad_()  # a process without tables must still join the backward exchange
        arrived = _Exchange.apply(flat, [len(part) for part in out], sizes, self)
        rows: dict[str, Tensor] = {}
        for keys, part in zip(self.keys_of_rank, arrived.split(sizes)):
            shapes = [(lists[key].stride(), self.dims[key]) for key in keys]
            for key, shape, piece in zip(keys, shapes, part.split([u * d for u, d in shapes])):
                rows[key] = piece.view(shape)  # (U * D,) -> (U, D)
        return rows

    def _swap(self, parts: Sequence[Tensor], sizes: Sequence[int], what: str) -> list[Tensor]:
        """Part r to rank r; returns what each rank sent, of the given sizes."""
        return list(
            self.swap_flat(torch.cat(list(parts)), [len(part) for part in parts], sizes, what).split(list(sizes))
        )

    def swap_flat(self, flat: Tensor, given: Sequence[int], sizes: Sequence[int], what: str) -> Tensor:
        """One all-to-all of a flat tensor, counted in `traffic` under `what`."""
        arrived = flat.new_empty(sum(sizes))
        dist.all_to_all_single(arrived, flat.contiguous(), list(sizes), list(given), group=self.process_group)
        away = len(flat) - given[dist.get_rank(self.process_group)]
        setattr(self.traffic, what, getattr(self.traffic, what) + away * flat.element_size())
        return arrived


class _Exchange(torch.autograd.Function):
    """All-to-all of rows; its gradient is the all-to-all the other way."""

    @staticmethod
    def forward(ctx: Any, flat: Tensor, given: list[int], sizes: list[int], bags: ShardedBags) -> Tensor:
        ctx.given, ctx.sizes, ctx.bags = given, sizes, bags
        return bags.swap_flat(flat, given, sizes, "rows")

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None, None, None]:
        return ctx.bags.swap_flat(grads[0], ctx.sizes, ctx.given, "gradients"), None, None, None


def _forms(batch: Batch, keys: Sequence[str]) -> list[FeatureGroup | WindowGroup]:
    """The batch's groups, with unique lists or windows where they pay."""
    for key in keys:
        key_position(batch.keys(), key)
    if isinstance(batch, KeyedJaggedTensor):
        return [FeatureGroup(batch.select(keys), None)]
    return [deduplicated_or_expanded(group) for group in batch.select(keys).groups]


def _of_key(form: FeatureGroup | WindowGroup, key: str) -> KeyLists:
    """What is sent of a key: its unique lists, or its shared values and windows."""
    return form.select([key]) if isinstance(form, WindowGroup) else form.unique.select([key])


def _counts(part: KeyLists) -> tuple[int, int, int]:
    """Whether they are windows, the numbers that say where the lists lie, and values."""
    windows = isinstance(part, WindowGroup)
    return int(windows), part.stride() * (2 if windows else 1), _ids(part).numel()


def _structure(part: KeyLists) -> Tensor:
    """Lengths (B,) of lists, or starts and lengths (2 * B,) of windows, int32."""
    if isinstance(part, WindowGroup):
        return torch.cat([part.starts.int(), part.lengths.int()])
    return part.lengths().int()


def _ids(part: KeyLists) -> Tensor:
    return (part.values[0] if isinstance(part, WindowGroup) else part.values()).long()


def _weights(part: KeyLists) -> Tensor | None:
    weights = part.weights if isinstance(part, WindowGroup) else part.weights_or_none()
    if weights is None:
        return None
    return (weights[0] if isinstance(part, WindowGroup) else weights).float()


def _as_bags(form: KeyLists) -> KeyedJaggedTensor:
    return positions_as_bags(form) if isinstance(form, WindowGroup) else form


def _for_module(module: nn.Module, part: KeyLists, key: str) -> KeyLists:
    """Windows in the form in which the module can pool them."""
    return lists_for(module, part, key) if isinstance(part, WindowGroup) else part


def _flat(parts: Sequence[Tensor | None], dtype: torch.dtype, device: torch.device) -> Tensor:
    return (
        torch.cat([p.flatten() for p in parts if p is not None])
        if parts
        else torch.empty(0, dtype=dtype, device=device)
    )


def _unpacked(
    keys: Sequence[str], counts: Sequence[Sequence[int]], structure: Tensor, ids: Tensor, weights: Tensor | None
) -> list[KeyLists]:
    """What one rank sent, per key."""
    numbers, values = [count[1] for count in counts], [count[2] for count in counts]
    weighted = [None] * len(keys) if weights is None else weights.split(values)
    return [
        _windows(key, *each) if windows else _lists(key, *each)
        for key, (windows, _, _), each in zip(
            keys, counts, zip(ids.split(values), weighted, structure.long().split(numbers))
        )
    ]


def _lists(key: str, ids: Tensor, weights: Tensor | None, lengths: Tensor) -> KeyLists:
    return KeyedJaggedTensor([key], ids, weights, lengths, stride=len(lengths), validate=False)


def _windows(key: str, ids: Tensor, weights: Tensor | None, structure: Tensor) -> KeyLists:
    starts, lengths = structure.chunk(2)
    return WindowGroup((key,), ids.unsqueeze(0), starts, lengths, None if weights is None else weights.unsqueeze(0))


def _stacked(parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    """The rows of one key from all ranks."""
    weights = [part.weights() for part in parts if part.weights_or_none() is not None]
    return KeyedJaggedTensor(
        parts[0].keys(),
        torch.cat([part.values() for part in parts]),
        torch.cat(weights) if weights else None,
        torch.cat([part.lengths() for part in parts]),
        stride=sum(part.stride() for part in parts),
        validate=False,
    )
