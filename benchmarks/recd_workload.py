"""Batches of sessions for the RecD benchmarks: a given duplication, ids of a power law, the rows clustered."""

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor

BATCH = 2048
ROWS = 500_000
DIM = 64
SESSION_KEYS = [f"session_{k}" for k in range(8)]
ITEM_KEYS = ["item", "item_author"]
DENSE_FEATURES = 13
LOOKUPS = 80
"""Mean ids per list; with these and small MLPs the tables dominate a step. Shorter lists or larger MLPs gain less."""

POWER = 1.05
"""Exponent of the ids' popularity."""


@dataclass(frozen=True)
class Workload:
    """One batch as (deduplicated) features, dense features and labels.

    Args:
        batch: eight session features in one group, then two features of the item, each row its own.
        dense: (B, 13).
        labels: (B,).
    """

    batch: InverseKeyedJaggedTensor
    dense: Tensor
    labels: Tensor


def power_law_ids(count: int, rows: int, generator: torch.Generator) -> Tensor:
    """Ids whose popularity falls as rank to the POWER, popular ids spread over the table."""
    uniform = torch.rand(count, generator=generator, dtype=torch.float64)
    exponent = 1 - POWER
    rank = ((rows**exponent - 1) * uniform + 1) ** (1 / exponent)
    # A multiplier without a common factor with the rows permutes them.
    spread = next(k for k in range(int(0.618 * rows), rows) if math.gcd(k, rows) == 1)
    return (rank.long() - 1).clamp(0, rows - 1) * spread % rows


def inverse_of(factor: float, batch: int, generator: torch.Generator) -> Tensor:
    """(B,) sessions in order, batch / factor of them, of random sizes."""
    sessions = round(batch / factor)
    more = torch.randint(0, sessions, (batch - sessions,), generator=generator)
    return torch.cat([torch.arange(sessions), more]).sort().values


def lists_of(keys: list[str], rows: int, length: int, generator: torch.Generator) -> KeyedJaggedTensor:
    """Lists of half to one and a half times the length."""
    lengths = torch.randint(length // 2, length + length // 2 + 1, (len(keys) * rows,), generator=generator)
    ids = power_law_ids(int(lengths.sum()), ROWS, generator)
    return KeyedJaggedTensor(keys, ids, lengths=lengths)


def workload(factor: float, seed: int = 0) -> Workload:
    """A batch with the given rows per unique row in its session features."""
    generator = torch.Generator().manual_seed(seed)
    inverse = inverse_of(factor, BATCH, generator)
    sessions = FeatureGroup(lists_of(SESSION_KEYS, int(inverse[-1]) + 1, LOOKUPS, generator), inverse)
    ids = power_law_ids(len(ITEM_KEYS) * BATCH, ROWS, generator)
    items = KeyedJaggedTensor(ITEM_KEYS, ids, lengths=torch.ones_like(ids))
    return Workload(
        InverseKeyedJaggedTensor([sessions, FeatureGroup(items, None)]),
        torch.randn(BATCH, DENSE_FEATURES, generator=generator),
        torch.randint(0, 2, (BATCH,), generator=generator).float(),
    )
