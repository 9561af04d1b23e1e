"""A tensor-train table's cores beside its hot-row cache: which rows lie where, and how they change places."""

import math

import torch
from torch import Tensor, nn

from shardgym.embeddings.kernels.tt_reference import three_cores, tt_rows, visit_key
from shardgym.embeddings.tables.bag_table import BagTable
from shardgym.embeddings.tables.fused_optimizers import FusedOptimizer
from shardgym.embeddings.tensor_train.frequency import FrequencyTracker
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule, CacheStats, HotRows
from shardgym.embeddings.tensor_train.replicas import Replicas
from shardgym.embeddings.tensor_train.write_back import write_back
from shardgym.problem.errors import InputError


class CachedTable(BagTable):
    """What `TTEmbeddingBag` does with its cache.

    `cores` (p_k, r_k, q_k, r_(k+1)) hold every row; where `cache` holds a row too, its own value counts.
    """

    cores: nn.ParameterList
    cache: HotRows | None
    cache_schedule: CacheSchedule | None
    optimizer: FusedOptimizer | None
    replicas: Replicas | None

    def core_list(self) -> list[nn.Parameter]:
        """The cores, without the look-ups by name that indexing a ParameterList costs."""
        return list(self.cores.parameters(recurse=False))

    @property
    def compute_dtype(self) -> torch.dtype:
        """float64 for float64 cores, else float32."""
        return torch.float64 if self.core_list()[0].dtype == torch.float64 else torch.float32

    def run_cache(self, positions: Tensor) -> None:
        assert self.cache is not None
        self.cache.steps += 1
        schedule = self.cache_schedule or CacheSchedule()
        # While the cache is empty every step is tracked; then one in so many is enough to follow drift.
        if not self.cache.used or schedule.tracks(self.cache.steps):
            self.cache.observe(positions)
        if self.cache_schedule is not None and schedule.fills(self.cache.steps):
            self.cache.fill_is_due = True
        # Between two look-ups of one step the rows must stay: the first one's backward still needs them.
        if self.cache.fill_is_due and not self.cache.is_open():
            if self.cache.used:
                self.cache_refresh()
            else:
                self.cache_populate(math.ceil(schedule.first_fill * self.cache.capacity))

    def cache_populate(self, most: int | None = None) -> int:
        """Move the hottest tracked rows without a slot into free slots of the cache; rows already there stay.

        Under DDP the counts of all processes are added up, so all must call this at the same step.

        Args:
            most: rows to admit at most; all free slots where left out.

        Returns:
            The number of rows admitted. Their optimizer state starts fresh.

        Raises:
            InputError: for a table without a cache, or while a look-up awaits its backward.
        """
        cache = self._idle_cache("cache_populate")
        free = cache.free_slots()
        newcomers = cache.newcomers(free.numel() if most is None else min(most, free.numel()), self._counts())
        self._admit(newcomers, free[: newcomers.numel()])
        cache.begin_period()
        return newcomers.numel()

    def cache_refresh(self) -> int:
        """Follow the traffic: fill free slots, then give slots of rows that went cold to rows that became hot.

        What the cold rows learned is written back to the cores (see `write_back`), which moves rows that share their
        slices a little; their optimizer state is dropped. On a stationary stream few are exchanged.

        Returns:
            The number of rows admitted.

        Raises:
            InputError: as `cache_populate`.
        """
        cache = self._idle_cache("cache_refresh")
        counts, free = self._counts(), cache.free_slots()
        newcomers = cache.newcomers(free.numel(), counts)
        self._admit(newcomers, free[: newcomers.numel()])
        if newcomers.numel() == free.numel():
            hot, slots = cache.exchanges(counts)
            self._write_back(slots)
            self._admit(hot, slots)
            newcomers = torch.cat([newcomers, hot])
        cache.begin_period()
        return newcomers.numel()

    def _idle_cache(self, caller: str) -> HotRows:
        if self.cache is None:
            raise InputError(f"{caller}: the table has no cache; build it with cache_rows of at least 1")
        if self.cache.is_open():
            raise InputError(f"{caller}: a look-up awaits its backward; move rows between steps")
        return self.cache

    def _counts(self) -> FrequencyTracker:
        assert self.cache is not None
        return self.cache.counts(self.replicas)

    def _admit(self, newcomers: Tensor, slots: Tensor) -> None:
        assert self.cache is not None
        if newcomers.numel():
            self.cache.admit(newcomers, slots, self._tt_rows(newcomers), self.optimizer, self.keys_of)

    @torch.no_grad()
    def _write_back(self, slots: Tensor) -> None:
        assert self.cache is not None
        if not slots.numel():
            return
        cores = [core.detach().to(self.compute_dtype) for core in self.cores]
        rows = self.cache.rows.detach()[slots].to(self.compute_dtype)
        for core, moved in zip(self.cores, write_back(cores, self.cache.ids[slots], rows)):
            core.copy_(moved)

    def cache_stats(self) -> CacheStats:
        """Slots used, slots in all, and the hit rate since the last fill."""
        if self.cache is None:
            return CacheStats(0, 0, 0.0)
        return self.cache.stats()

    def keys_of(self, positions: Tensor) -> Tensor:
        return visit_key(positions, self.three_cores())

    def three_cores(self) -> tuple[Tensor, Tensor, Tensor]:
        first, second, third = three_cores([core.detach().to(self.compute_dtype) for core in self.core_list()])
        return first.contiguous(), second.contiguous(), third.contiguous()

    @torch.no_grad()
    def _tt_rows(self, positions: Tensor) -> Tensor:
        return tt_rows(self.three_cores(), positions, self.embedding_dim)
