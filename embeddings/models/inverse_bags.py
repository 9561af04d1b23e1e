"""Pooled look-ups of plain or deduplicated batches: unique rows are looked up once, then expanded (RecD's O5)."""

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.embeddings.jagged.checks import check_keys, key_position
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import offsets_from_lengths
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor, WindowGroup
from shardgym.embeddings.jagged.window_sums import window_sums
from shardgym.embeddings.models.expand_columns import expand_columns
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

Batch = KeyedJaggedTensor | InverseKeyedJaggedTensor | PartialInverseKeyedJaggedTensor

EXPANSION_COST = 0.5
"""Cost of expanding one pooled row, forward and backward, in look-ups of one id: a guess, half as rows are in order."""

LEAST_WINDOW_FACTOR = 1.7
"""Values over shared values from which windows are pooled faster than lists, as measured; below they are expanded."""


@public("shardgym.embeddings")
class InverseBags(nn.Module):
    """One pooled embedding per key and row, whatever the form of the batch; the result is the same.

    Groups whose duplicates would save less than their expansion costs are looked up row by row.

    Args:
        bags: (keys, module) pairs. A module of one key is called as nn.EmbeddingBag is (`TTEmbeddingBag` too), sum or
            mean; a module without `include_last_offset` is called as `TableBatchedBags` and `EmbeddingShard` are, with
            all of its keys at once, and sums.
        dims: numbers per embedding of each key, in the order of `bags`; read from the modules where left out.

    Raises:
        InputError: when a key comes twice, or a module of several keys is not table-batched.
    """

    def __init__(self, bags: Sequence[tuple[Sequence[str], nn.Module]], dims: Sequence[int] | None = None) -> None:
        super().__init__()
        self.parts = [tuple(keys) for keys, _ in bags]
        self.keys = [key for keys in self.parts for key in keys]
        check_keys(self.keys)
        self.bags = nn.ModuleList(module for _, module in bags)
        for keys, module in zip(self.parts, self.bags):
            if len(keys) != 1 and not _table_batched(module):
                raise InputError(f"bags: {type(module).__name__} takes one key, not {list(keys)}; give it a single one")
        self.dims = [dim for module in self.bags for dim in _dims(module)] if dims is None else list(dims)

    def forward(self, batch: Batch) -> Tensor:
        """(B, sum of dims), the keys side by side in the order of `bags`.

        Raises:
            InputError: when the batch lacks a key.
        """
        if isinstance(batch, KeyedJaggedTensor):
            parts = zip(self.bags, self.parts)
            return torch.cat([pool(module, batch.select(keys)) for module, keys in parts], dim=1)
        for key in self.keys:
            key_position(batch.keys(), key)
        groups = [group for group in batch.groups if not set(self.keys).isdisjoint(group.keys)]
        forms = [deduplicated_or_expanded(group) for group in groups]
        group_of = {key: at for at, group in enumerate(groups) for key in group.keys}
        pooled: dict[str, Tensor] = {}
        for module, keys in zip(self.bags, self.parts):
            pooled.update(_pool_groups(module, keys, forms, group_of))
        if all(isinstance(form, WindowGroup) or form.inverse is None for form in forms):
            return torch.cat([pooled[key] for key in self.keys], dim=1)
        inverses = [inverse_of(form) for form in forms]
        return expand_columns([pooled[key] for key in self.keys], inverses, [group_of[key] for key in self.keys])


def pays(group: FeatureGroup) -> bool:
    """Whether the look-ups that the group's duplicates save outweigh the expansion of its pooled rows."""
    if group.inverse is None or group.unique_rows() == group.stride():
        return False
    saved = group.expanded_values() - group.unique.values().shape[0]
    return saved > EXPANSION_COST * group.stride() * len(group.keys)


def windows_pay(group: WindowGroup) -> bool:
    """Whether looking up the shared values once and summing windows of them is less work than looking up every list."""
    return int(group.lengths.sum()) > LEAST_WINDOW_FACTOR * group.shared()


def table_ids(ids: Tensor) -> Tensor:
    """Ids in a type that look-ups take: int32 and int64 as they are, all others as int64."""
    return ids if ids.dtype in (torch.int32, torch.int64) else ids.long()


def pool(module: Any, lists: KeyedJaggedTensor) -> Tensor:
    """A module's pooled rows of its keys' lists: (rows, sum of dims).

    Raises:
        InputError: weights that the module or its mode does not take.
    """
    if lists.stride() == 0:
        # No bags at all is not a case of every module; an empty one is.
        empty = torch.zeros(len(lists.keys()), dtype=lists.lengths().dtype, device=lists.device())
        one = KeyedJaggedTensor(lists.keys(), lists.values(), lists.weights_or_none(), empty, validate=False)
        return pool(module, one)[:0]
    ids, offsets, weights = lists.values(), lists.offsets(), lists.weights_or_none()
    if _table_batched(module):
        if weights is not None:
            raise InputError(f"weights: {type(module).__name__} takes none; drop them or use nn.EmbeddingBag")
        return module(ids.long(), offsets.long())
    ids = table_ids(ids)
    if not module.include_last_offset:
        offsets = offsets[:-1]
    if weights is not None and module.mode != "sum":
        raise InputError(f"weights: only mode 'sum' takes them, not {module.mode!r}; drop them or sum")
    return module(ids, offsets.to(ids.dtype), per_sample_weights=weights)


def _pool_groups(
    module: nn.Module, keys: Sequence[str], forms: Sequence[FeatureGroup | WindowGroup], group_of: dict[str, int]
) -> dict[str, Tensor]:
    """Pooled unique rows (U, D) of each of the module's keys, all looked up in one call."""
    lookups = [lists_for(module, forms[group_of[key]], key) for key in keys]
    if _plain_bag(module) and isinstance(lookups[0], WindowGroup):
        return {keys[0]: pool_windows(_embedded(module, lookups[0]), lookups[0], mode_of(module))}
    lists = [positions_as_bags(form) if isinstance(form, WindowGroup) else form for form in lookups]
    return {
        key: pool_windows(unique, form, mode_of(module)) if isinstance(form, WindowGroup) else unique
        for key, form, unique in zip(keys, lookups, pool_lists(module, lists))
    }


def pool_lists(module: nn.Module, lists: Sequence[KeyedJaggedTensor]) -> list[Tensor]:
    """Pooled rows (U_k, D_k) of each of a module's keys, whose rows may differ in number, looked up in one call."""
    rows = [part.stride() for part in lists]
    # A table-batched op takes equally many bags of each table: empty bags fill up, at no look-up.
    columns = pool(module, KeyedJaggedTensor.concat([_padded(part, max(rows)) for part in lists]))
    return [part[:count] for count, part in zip(rows, columns.split(_dims(module), dim=1))]


def lists_for(module: nn.Module, form: FeatureGroup | WindowGroup, key: str) -> KeyedJaggedTensor | WindowGroup:
    """A key's unique lists, or its windows where pooling them by position gives what the module would."""
    one = form if form.keys == (key,) else form.select([key])
    if isinstance(one, FeatureGroup):
        return one.unique
    # A mean or maximum skips the padding id, which positions looked up by themselves no longer show.
    return one if mode_of(module) == "sum" or getattr(module, "padding_idx", None) is None else one.expand()


def _plain_bag(module: nn.Module) -> bool:
    """Whether a bag of one id is a row of the module's weight, nothing else."""
    if type(module) is not nn.EmbeddingBag:
        return False
    return module.max_norm is None and module.padding_idx is None and not module.scale_grad_by_freq


def _embedded(module: Any, group: WindowGroup) -> Tensor:
    """Embeddings (N, D) of a key's shared values, by its weights where it has some."""
    rows = F.embedding(table_ids(group.values[0]), module.weight, sparse=module.sparse)
    return rows if group.weights is None or module.mode != "sum" else rows * group.weights[0].unsqueeze(1)


def positions_as_bags(group: WindowGroup) -> KeyedJaggedTensor:
    """Each shared value as a bag of its own."""
    weights = None if group.weights is None else group.weights[0]
    lengths = torch.ones_like(group.values[0], dtype=group.lengths.dtype)
    return KeyedJaggedTensor(group.keys, group.values[0], weights, lengths, validate=False)


def _padded(lists: KeyedJaggedTensor, rows: int) -> KeyedJaggedTensor:
    """Lists of one key with empty ones at the end."""
    missing = rows - lists.stride()
    if missing == 0:
        return lists
    lengths = F.pad(lists.lengths(), (0, missing))
    return KeyedJaggedTensor(lists.keys(), lists.values(), lists.weights_or_none(), lengths, validate=False)


def pool_windows(positions: Tensor, group: WindowGroup, mode: str) -> Tensor:
    """Embeddings of the shared positions (N, D) -> pooled windows (B, D), empty ones zero.

    Args:
        positions: one embedding per shared position.
        group: the windows.
        mode: "sum", "mean" or "max".
    """
    if mode != "max":
        sums = window_sums(positions, group.starts, group.lengths)
        return sums if mode == "sum" else sums / group.lengths.clamp(min=1).unsqueeze(1)
    if positions.shape[0] == 0:
        # Every window is empty, and embedding_bag refuses a table of no rows.
        return F.pad(positions, (0, 0, 0, group.stride()))
    offsets = offsets_from_lengths(group.lengths.long())
    return F.embedding_bag(group.positions(), positions, offsets, mode=mode, include_last_offset=True)


def deduplicated_or_expanded(group: FeatureGroup | WindowGroup) -> FeatureGroup | WindowGroup:
    """The group as it is where its duplicates pay, else with all rows."""
    if windows_pay(group) if isinstance(group, WindowGroup) else pays(group):
        return group
    return FeatureGroup(group.expand(), None)


def inverse_of(form: FeatureGroup | WindowGroup) -> Tensor:
    """Pooled row of each sample (B,)."""
    if isinstance(form, WindowGroup) or form.inverse is None:
        return torch.arange(form.stride(), device=form.tensors()[0].device)
    return form.inverse


def mode_of(module: nn.Module) -> str:
    """How the module pools: "sum", "mean" or "max"."""
    return str(getattr(module, "mode", "sum"))


def _table_batched(module: nn.Module) -> bool:
    return not hasattr(module, "include_last_offset")


def _dims(module: Any) -> list[int]:
    """Numbers per embedding of each of the module's tables."""
    if _table_batched(module):
        return [table.dim for table in module.tables]
    return [module.embedding_dim]
