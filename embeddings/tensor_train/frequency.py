"""Which ids are looked up most, in bounded memory."""

from collections.abc import Iterable

import torch
from torch import Tensor


class FrequencyTracker:
    """Counts of the ids seen most, in bounded memory: beyond `capacity` ids, the rarest are forgotten.

    Ids and counts wait unmerged until they fill the capacity, so that a step pays a fraction of a merge.

    Args:
        capacity: ids counted at most.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.ids = torch.zeros(0, dtype=torch.int64, device="cpu")
        self.counts = torch.zeros(0, dtype=torch.float64, device="cpu")
        self._waiting: list[tuple[Tensor, Tensor]] = []

    @classmethod
    def merged(cls, capacity: int, parts: Iterable[tuple[Tensor, Tensor]]) -> "FrequencyTracker":
        """One tracker of the ids (n,) and counts (n,) of several."""
        whole = cls(capacity)
        whole._waiting = list(parts)
        whole.merge()
        return whole

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
        counts = torch.zeros(ids.numel(), dtype=torch.float64, device="cpu")
        counts.index_add_(0, inverse, torch.cat([counts for _, counts in parts]))
        if ids.numel() > self.capacity:
            most = torch.argsort(counts, descending=True, stable=True)[: self.capacity].sort().values
            ids, counts = ids[most], counts[most]
        self.ids, self.counts = ids, counts

    def fade(self) -> None:
        """Halve the counts, so that later look-ups weigh more."""
        self.merge()
        self.counts = self.counts / 2

    def most_frequent(self, count: int) -> Tensor:
        """The `count` ids of highest count, the highest first; equal counts by id."""
        self.merge()
        return self.ids[torch.argsort(self.counts, descending=True, stable=True)[:count]]

    def counts_of(self, ids: Tensor) -> Tensor:
        """Counts (n,) of ids (n,), 0 for ids that are not tracked."""
        self.merge()
        if not self.ids.numel():
            return torch.zeros(ids.numel(), dtype=torch.float64, device="cpu")
        place = torch.searchsorted(self.ids, ids).clamp_(max=self.ids.numel() - 1)
        return torch.where(self.ids[place] == ids, self.counts[place], 0.0)
