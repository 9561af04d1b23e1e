"""The hot-row cache of a tensor-train table: the rows looked up most often, held and trained uncompressed.

A row in the cache keeps its training. Fills give free slots to newcomers; a refresh of a full cache lets a newcomer
take the slot of a row that is looked up far less by now, whose learned difference the table first writes back to its
cores (see `write_back`). So `cache_rows` bounds the memory, and the cache follows its traffic.
"""

import weakref
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.tables.fused_optimizers import FusedOptimizer
from shardgym.embeddings.tensor_train.frequency import FrequencyTracker
from shardgym.embeddings.tensor_train.replicas import Replicas
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

KeysOf = Callable[[Tensor], Tensor]
"""From positions (n,) to the kernels' visit keys (n,)."""

NO_KEY = torch.iinfo(torch.int64).max
"""Key of a free slot: above every visit key."""

RECENT = 0.98
"""What a tracked batch leaves of the weight of those before it in the hit rate: it speaks of the last 50 or so."""

HOTTER = 1.5
DEVIATIONS = 1.0
"""A newcomer takes a slot when it is looked up this many times as often as the row that has it, and the difference is
this many standard deviations of the counts: on a stationary stream only rows looked up now and then change places."""


@public("shardgym.embeddings")
@dataclass(frozen=True)
class CacheSchedule:
    """When a table in training fills and refreshes its cache by itself.

    Args:
        warmup_steps: look-ups in training mode, with gradients, before the first fill.
        refresh_every: such look-ups between refreshes.
        track_every: once the cache holds rows, one look-up in so many is tracked; before, all are.
        first_fill: share of the slots that the first fill takes; the rest waits for ids that become hot later.

    Raises:
        InputError: for a count below 1 or a share outside (0, 1].
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
        """Whether the cache is filled or refreshed at training step `step` (from 1)."""
        return step >= self.warmup_steps and (step - self.warmup_steps) % self.refresh_every == 0


@public("shardgym.embeddings")
@dataclass(frozen=True)
class CacheStats:
    """State of a cache: slots in use, slots in all, and the share of recent tracked look-ups that it answered."""

    used: int
    capacity: int
    hit_rate: float


class OpenLookup:
    """A look-up whose backward has not run: rows must not change hands before it has."""


class HotRows(nn.Module):
    """Slots for rows that are kept uncompressed; ids are positions in the table's row order.

    Args:
        capacity: slots.
        dim: numbers per row.
        optimizer: the table's fused optimizer, whose state is kept per slot, or None.
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
        # Of fixed size, changed in place: others (DDP, compiled graphs) hold on to them.
        self.register_buffer("keys", torch.full((capacity,), NO_KEY, device=device), persistent=False)
        self.register_buffer("slots", torch.zeros(capacity, dtype=torch.int32, device=device), persistent=False)
        self.used = 0
        self.steps = 0
        self.fill_is_due = False
        self.tracker = FrequencyTracker(capacity=max(8 * capacity, 65536))
        self._open: weakref.WeakSet[OpenLookup] = weakref.WeakSet()
        self._lookups = 0.0
        self._hits = 0.0

    @property
    def capacity(self) -> int:
        """Slots."""
        return self.ids.numel()

    def open(self, lookup: OpenLookup) -> None:
        """Keep the rows in their slots until the look-up is closed, or forgotten by everyone else."""
        self._open.add(lookup)

    def close(self, lookup: OpenLookup) -> None:
        """The look-up's backward ran."""
        self._open.discard(lookup)

    def is_open(self) -> bool:
        """Whether a look-up awaits its backward."""
        return len(self._open) > 0

    def observe(self, ids: Tensor) -> None:
        """Count one batch of looked-up positions (n,), and which of them the cache answers."""
        distinct, counts = torch.unique(ids, return_counts=True)
        self.tracker.add(distinct, counts)
        hits = int(counts[torch.isin(distinct, self.ids)].sum()) if self.used else 0
        self._lookups = RECENT * self._lookups + ids.numel()
        self._hits = RECENT * self._hits + hits

    def stats(self) -> CacheStats:
        """Use, and the hit rate over recent tracked look-ups since the last fill or refresh."""
        return CacheStats(self.used, self.capacity, self._hits / max(self._lookups, 1))

    def counts(self, replicas: Replicas | None) -> FrequencyTracker:
        """Recent counts, those of all replicas together."""
        if replicas is None:
            return self.tracker
        self.tracker.merge()
        return FrequencyTracker.merged(self.tracker.capacity, replicas.gather(self.tracker.ids, self.tracker.counts))

    def newcomers(self, most: int, counts: FrequencyTracker) -> Tensor:
        """The most frequent ids that have no slot yet, at most `most`, all hot enough for the capacity."""
        hottest = counts.most_frequent(self.capacity)
        return hottest[~torch.isin(hottest, self.ids.cpu())][:most].to(self.ids.device)

    def free_slots(self) -> Tensor:
        """Slots that hold no row, (n,) int64."""
        return torch.nonzero(self.ids < 0).squeeze(1)

    def exchanges(self, counts: FrequencyTracker) -> tuple[Tensor, Tensor]:
        """Newcomers (n,), and the slots (n,) of the far colder rows that make room for them."""
        newcomers = self.newcomers(self.capacity, counts)
        held = counts.counts_of(self.ids.cpu())
        coldest = torch.argsort(held, stable=True)[: newcomers.numel()]
        new, old = counts.counts_of(newcomers.cpu()), held[coldest]
        worth = (new > HOTTER * old) & (new - old > DEVIATIONS * (new + old).sqrt())
        return newcomers[worth.to(newcomers.device)], coldest[worth].to(self.ids.device)

    @torch.no_grad()
    def admit(
        self, ids: Tensor, slots: Tensor, rows: Tensor, optimizer: FusedOptimizer | None, keys_of: KeysOf
    ) -> None:
        """Give distinct `ids` (n,) the `slots` (n,), holding `rows` (n, dim), with fresh optimizer state.

        Args:
            keys_of: the table's visit keys.
        """
        self.ids[slots] = ids
        self.rows[slots] = rows.to(self.rows.dtype)
        if optimizer is not None and self.state is not None:
            fresh = optimizer.new_state(self.rows.detach()[slots])
            assert fresh is not None
            self.state[slots] = fresh.to(self.state.dtype)
        self.index(keys_of)

    def begin_period(self) -> None:
        """After a fill or refresh: earlier counts weigh half, and the hit rate starts anew."""
        self.tracker.fade()
        self._lookups = self._hits = 0.0
        self.fill_is_due = False

    def index(self, keys_of: KeysOf) -> None:
        """Make the kernels' index of the ids held."""
        slots = torch.nonzero(self.ids >= 0).squeeze(1)
        keys, order = torch.sort(keys_of(self.ids[slots]))
        self.used = slots.numel()
        self.keys.fill_(NO_KEY)
        self.keys[: self.used] = keys
        self.slots[: self.used] = slots[order].to(torch.int32)

    @torch.no_grad()
    def clear(self, optimizer: FusedOptimizer | None) -> None:
        """As new: no row, no count."""
        self.rows.zero_()
        self.ids.fill_(-1)
        self.keys.fill_(NO_KEY)
        self.slots.zero_()
        fresh = None if optimizer is None else optimizer.new_state(self.rows.detach())
        if self.state is not None and fresh is not None:
            self.state.copy_(fresh)
        self.tracker = FrequencyTracker(self.tracker.capacity)
        self.used = self.steps = 0
        self._lookups = self._hits = 0.0
        self.fill_is_due = False

    def get_extra_state(self) -> dict[str, Any]:
        """Counts and steps, for `state_dict`."""
        self.tracker.merge()
        return {"ids": self.tracker.ids, "counts": self.tracker.counts, "steps": self.steps}

    def set_extra_state(self, state: dict[str, Any]) -> None:
        """Takes over what `get_extra_state` gave."""
        self.tracker.ids, self.tracker.counts = state["ids"], state["counts"]
        self.steps = state["steps"]
