"""The hot-row cache of a tensor-train table: the rows looked up most often, held and trained uncompressed.

A row, once in the cache, stays. Handing a trained row back to the cores would move every row that shares a core slice
with it (rows / p of them) by about as much as the row itself had learned; dropping it would lose its training. So
refreshes only fill free slots with newcomers, and `cache_rows` bounds the memory for good.
"""

import logging
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.tables.fused_optimizers import FusedOptimizer
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

log = logging.getLogger(__name__)

KeysOf = Callable[[Tensor], Tensor]
"""From positions (n,) to the kernels' visit keys (n,)."""


@public("shardgym.embeddings")
@dataclass(frozen=True)
class CacheSchedule:
    """When a table in training fills its cache by itself.

    Args:
        warmup_steps: look-ups in training mode before the first fill.
        refresh_every: steps between later fills.
        track_every: once the cache holds rows, one step in so many is tracked; before, all are.
        first_fill: share of the slots that the first fill takes; the rest waits for ids that become hot later.
    """

    warmup_steps: int = 100
    refresh_every: int = 1000
    track_every: int = 10
    first_fill: float = 0.8

    def __post_init__(self) -> None:
        if min(self.warmup_steps, self.refresh_every, self.track_every) < 1:
            raise InputError("cache_schedule: warmup_steps, refresh_every and track_every must be at least 1")
        if not 0 < self.first_fill <= 1:
            raise InputError(f"cache_schedule: first_fill is {self.first_fill}; give a share in (0, 1]")

    def tracks(self, step: int) -> bool:
        """Whether the ids of training step `step` (from 1) are counted although the cache holds rows."""
        return step % self.track_every == 0

    def fills(self, step: int) -> bool:
        """Whether the cache is filled after training step `step` (from 1)."""
        return step >= self.warmup_steps and (step - self.warmup_steps) % self.refresh_every == 0


@public("shardgym.embeddings")
@dataclass(frozen=True)
class CacheStats:
    """State of a cache: slots in use, slots in all, and the share of tracked look-ups that it answered."""

    used: int
    capacity: int
    hit_rate: float


class FrequencyTracker:
    """Counts of the ids seen most, in bounded memory: beyond `capacity` ids, the rarest are forgotten.

    Ids and counts wait unmerged until they fill the capacity, so that a step pays a fraction of a merge.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ids = torch.zeros(0, dtype=torch.int64)
        self.counts = torch.zeros(0, dtype=torch.float64)
        self._waiting: list[tuple[Tensor, Tensor]] = []

    def add(self, ids: Tensor, counts: Tensor) -> None:
        """Count distinct `ids` (n,) `counts` (n,) times more."""
        self._waiting.append((ids.cpu(), counts.cpu().double()))
        if sum(ids.numel() for ids, _ in self._waiting) > self.capacity:
            self.merge()

    def merge(self) -> None:
        """Bring what waits into the counts, and forget the rarest beyond the capacity."""
        parts = [(self.ids, self.counts), *self._waiting]
        self._waiting = []
        ids, inverse = torch.unique(torch.cat([ids for ids, _ in parts]), return_inverse=True)
        counts = torch.zeros(ids.numel(), dtype=torch.float64)
        counts.index_add_(0, inverse, torch.cat([counts for _, counts in parts]))
        if ids.numel() > self.capacity:
            kept = torch.argsort(counts, descending=True, stable=True)[: self.capacity].sort().values
            ids, counts = ids[kept], counts[kept]
        self.ids, self.counts = ids, counts

    def fade(self) -> None:
        """Halve the counts, so that later look-ups weigh more."""
        self.counts = self.counts / 2

    def most_frequent(self, count: int) -> Tensor:
        """The `count` ids of highest count, the highest first; equal counts by id."""
        self.merge()
        return self.ids[torch.argsort(self.counts, descending=True, stable=True)[:count]]


class HotRows(nn.Module):
    """Slots for rows that are kept uncompressed; ids are positions in the table's row order.

    Args:
        capacity: slots.
        dim: numbers a row.
        optimizer: the table's fused optimizer, whose state is kept a slot, or None.
    """

    ids: Tensor
    state: Tensor | None
    keys: Tensor
    slots: Tensor

    def __init__(self, capacity: int, dim: int, optimizer: FusedOptimizer | None, dtype: torch.dtype,
                 device: torch.device | str | None) -> None:  # fmt: skip
        super().__init__()
        self.rows = nn.Parameter(torch.zeros(capacity, dim, dtype=dtype, device=device))
        self.register_buffer("ids", torch.full((capacity,), -1, dtype=torch.int64, device=device))
        self.register_buffer("state", None if optimizer is None else optimizer.new_state(self.rows.detach()))
        self.register_buffer("keys", torch.zeros(0, dtype=torch.int64, device=device), persistent=False)
        self.register_buffer("slots", torch.zeros(0, dtype=torch.int32, device=device), persistent=False)
        self.tracker = FrequencyTracker(capacity=max(8 * capacity, 65536))
        self.steps = 0
        self._lookups = 0
        self._hits = 0

    @property
    def capacity(self) -> int:
        return self.ids.numel()

    @property
    def used(self) -> int:
        """Slots in use; they are filled from the front."""
        return self.keys.numel()

    def observe(self, ids: Tensor) -> None:
        """Count one batch of looked-up positions, and which of them the cache answers."""
        distinct, counts = torch.unique(ids, return_counts=True)
        self.tracker.add(distinct, counts)
        self._lookups += ids.numel()
        if self.used:
            self._hits += int(counts[torch.isin(distinct, self.ids[: self.used])].sum())

    def stats(self) -> CacheStats:
        """Use and hit rate over the look-ups tracked since the last fill."""
        return CacheStats(self.used, self.capacity, self._hits / max(self._lookups, 1))

    def newcomers(self, most: int) -> Tensor:
        """The most frequent tracked ids that have no slot yet, at most `most`, all hot enough for the capacity."""
        hottest = self.tracker.most_frequent(self.capacity)
        return hottest[~torch.isin(hottest, self.ids[: self.used].cpu())][:most].to(self.ids.device)

    @torch.no_grad()
    def admit(self, ids: Tensor, rows: Tensor, keys_of: KeysOf) -> None:
        """Give distinct newcomers `ids` (n,) the next free slots, holding `rows` (n, dim), with fresh state.

        Args:
            keys_of: the table's visit keys.
        """
        start = self.used
        self.ids[start : start + ids.numel()] = ids
        self.rows[start : start + ids.numel()] = rows.to(self.rows.dtype)
        self.index(keys_of)
        self.tracker.fade()
        self._lookups = self._hits = 0
        if self.used == self.capacity and ids.numel():
            log.info("hot-row cache is full with %d rows; ids that become hot from now on stay in the cores", self.used)

    def index(self, keys_of: KeysOf) -> None:
        """Make the kernels' index of the ids held."""
        held = self.ids[self.ids >= 0]
        self.keys, order = torch.sort(keys_of(held))
        self.slots = order.to(torch.int32)

    def get_extra_state(self) -> dict[str, Any]:
        self.tracker.merge()
        return {"ids": self.tracker.ids, "counts": self.tracker.counts, "steps": self.steps}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        self.tracker.ids, self.tracker.counts = state["ids"], state["counts"]
        self.steps = state["steps"]
