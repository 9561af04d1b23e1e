"""Embedded histories of a batch, each distinct position embedded once, whatever the form of the batch."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from shardgym.embeddings.jagged.checks import key_position
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import expand_rows, offsets_from_lengths, window_positions
from shardgym.embeddings.jagged.partial_inverse import WindowGroup
from shardgym.embeddings.models.inverse_bags import Batch, pays, table_ids
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.embeddings")
@dataclass(frozen=True, eq=False)
class Sequences:
    """Rows of embeddings, each a window of shared positions.

    Args:
        values: (P, D) one embedding per position.
        starts: (R,) where each row's window starts.
        lengths: (R,) positions of each row.
        inverse: (B,) which row each sample has; None where sample b has row b (then R = B).
        side_by_side: the windows follow each other and cover all positions.
    """

    values: Tensor
    starts: Tensor
    lengths: Tensor
    inverse: Tensor | None
    side_by_side: bool

    def rows(self) -> int:
        """Rows R."""
        return self.starts.numel()

    def samples(self) -> int:
        """Samples B."""
        return self.rows() if self.inverse is None else self.inverse.numel()

    def offsets(self) -> Tensor:
        """Where each row starts among the rows' positions laid one after the other: (R + 1,)."""
        return offsets_from_lengths(self.lengths)

    def positions(self) -> Tensor:
        """Shared position of each of the rows' T positions, one row after the other: (T,)."""
        if self.side_by_side:
            return torch.arange(self.values.shape[0], device=self.values.device)
        return window_positions(self.starts, self.lengths)

    def row_of_position(self) -> Tensor:
        """Row of each of the rows' T positions: (T,)."""
        return torch.repeat_interleave(torch.arange(self.rows(), device=self.lengths.device), self.lengths)

    def at_positions(self, per_shared: Tensor) -> Tensor:
        """Values of shared positions (P, ...) -> of the rows' positions (T, ...)."""
        return per_shared if self.side_by_side else expand_rows(per_shared, self.positions())

    def per_sample(self, per_row: Tensor) -> Tensor:
        """Values of rows (R, ...) -> of samples (B, ...)."""
        return per_row if self.inverse is None else expand_rows(per_row, self.inverse)

    def one_row_per_sample(self) -> "Sequences":
        """The same samples with one row per sample; the shared positions stay shared."""
        if self.inverse is None:
            return self
        inverse = self.inverse.long()
        return replace(
            self, starts=self.starts[inverse], lengths=self.lengths[inverse], inverse=None, side_by_side=False
        )


def embed(batch: Batch, keys: Sequence[str], tables: Sequence[nn.Module]) -> Sequences:
    """Look up histories that run side by side, unique rows or shared windows only (RecD's O7 starts here).

    Args:
        batch: plain, deduplicated or partially deduplicated.
        keys: features whose lists have the same lengths row by row, such as the videos watched and their authors.
        tables: for each key what gives embeddings (n, D_k) of ids (n,), such as nn.Embedding.

    Returns:
        Sequences of D = sum of D_k. Duplicates are kept apart where holding them once would not pay, and where the
        keys are in several groups.

    Raises:
        InputError: when a key is missing, or the lists of some row differ in length.
    """
    form = _form(batch, list(keys))
    ids, starts, lengths, inverse = _rows_of(form, list(keys))
    values = torch.cat([table(table_ids(row)) for table, row in zip(tables, ids)], dim=1)  # (P, sum of D_k)
    return Sequences(values, starts, lengths, inverse, side_by_side=isinstance(form, FeatureGroup))


def same_group(batch: Batch, keys: Sequence[str]) -> bool:
    """Whether all keys repeat together: they are in one group of unique lists."""
    if isinstance(batch, KeyedJaggedTensor):
        return True
    groups = {id(batch.group_of(key)): batch.group_of(key) for key in keys}
    return len(groups) == 1 and all(isinstance(group, FeatureGroup) for group in groups.values())


def _form(batch: Batch, keys: list[str]) -> FeatureGroup | WindowGroup:
    for key in keys:
        key_position(batch.keys(), key)
    if isinstance(batch, KeyedJaggedTensor):
        return FeatureGroup(batch.select(keys), None)
    group = batch.group_of(keys[0])
    if not set(keys) <= set(group.keys):
        return FeatureGroup(batch.select(keys).to_kjt(), None)
    # The whole group decides, so that all of its features keep the same rows.
    as_stored = isinstance(group, WindowGroup) or pays(group)
    chosen = group.select(keys)
    return chosen if as_stored else FeatureGroup(chosen.expand(), None)


def _rows_of(
    form: FeatureGroup | WindowGroup, keys: list[str]
) -> tuple[Sequence[Tensor], Tensor, Tensor, Tensor | None]:
    """Ids (P,) of each key, and the rows' starts, lengths and inverse."""
    if isinstance(form, WindowGroup):
        return form.values.unbind(0), form.starts, form.lengths, None
    lists = form.unique
    lengths = lists.lengths().view(len(keys), lists.stride())  # (F * R,) -> (F, R)
    if bool((lengths != lengths[:1]).any()):
        raise InputError(
            f"histories {'+'.join(keys)}: the lists differ in length in some row; give events one per place"
        )
    ids = lists.values().view(len(keys), -1).unbind(0)  # (F * P,) -> F times (P,)
    return ids, offsets_from_lengths(lengths[0])[:-1], lengths[0], form.inverse
