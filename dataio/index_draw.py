"""Ids for tables, drawn so that a batch reuses them as the tables' reuse bins say.

A reference batch of `REFERENCE_BATCH` bags is a fixed multiset of ids: each bin holds its share of the unique ids,
each as often as is typical of the bin. A batch of B bags is a random part of that multiset, drawn without
replacement, so a small batch reuses less, as it does in real logs.
"""

from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.dataio.tables.reuse import reference_counts
from shardgym.embeddings.shard import EmbeddingShard, OpBatch
from shardgym.problem.tables import TableSpec


def draw_indices(
    tables: Sequence[TableSpec], batch_size: int, rng: np.random.Generator
) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch for a table-batched look-up.

    Returns:
        indices (N,) int64 and offsets (T * B + 1,) int64, table by table.
    """
    lengths = [bag_lengths(table.pooling, batch_size, rng) for table in tables]
    ids = [draw_ids(table, int(lens.sum()), rng) for table, lens in zip(tables, lengths)]
    offsets = np.concatenate([[0], np.cumsum(np.concatenate(lengths))])
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(offsets)


def draw_batch(shard: EmbeddingShard, batch_size: int, rng: np.random.Generator) -> list[OpBatch]:
    """A batch for a shard: tables of a deduplicated feature group get unique lists and an inverse (RecD's IKJT).

    Of B samples such a group has B / factor unique lists. Rows are clustered by session, so that each list serves
    neighbouring samples, one at least.
    """
    batch = []
    for members in shard.members:
        tables = [shard.tables[t] for t in members]
        factor = tables[0].dedup.factor()
        lists = max(1, round(batch_size / factor))
        inverse = None
        if factor > 1:
            samples = 1 + rng.multinomial(batch_size - lists, np.full(lists, 1 / lists))
            inverse = torch.from_numpy(np.repeat(np.arange(lists), samples))
        batch.append(OpBatch(*draw_indices(tables, lists, rng), inverse))
    return batch


def bag_lengths(pooling: float, batch_size: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """Ids in each bag, (B,): the whole part of the pooling factor, and one more with the chance of the rest."""
    whole = int(pooling)
    return whole + (rng.random(batch_size) < pooling - whole).astype(np.int64)


def draw_ids(table: TableSpec, count: int, rng: np.random.Generator) -> NDArray[np.int64]:
    """`count` ids of the table, a part of its reference multiset, in random order."""
    if count == 0:
        return np.zeros(0, dtype=np.int64)
    unique, counts = reference_counts(table)
    slots = unique * counts  # places in the multiset, by bin
    # More ids than a reference batch has: whole multisets, and a part of one.
    repeats, rest = divmod(count, int(slots.sum()))
    taken = rng.multivariate_hypergeometric(slots, rest, method="marginals")
    first_rank = np.cumsum(unique) - unique
    ranks = []
    for k in np.flatnonzero(unique):
        part = rng.choice(slots[k], size=taken[k], replace=False, shuffle=False) // counts[k]
        whole = np.tile(np.repeat(np.arange(unique[k]), counts[k]), repeats)
        ranks.append(first_rank[k] + np.concatenate([whole, part]))
    drawn = np.concatenate(ranks)
    rng.shuffle(drawn)
    return scatter_rows(drawn, table.rows)


def scatter_rows(rank: NDArray[np.int64], rows: int) -> NDArray[np.int64]:
    """Spread popularity ranks over the table by a fixed bijection of 0..rows-1, so that hot rows are not neighbours."""
    step = int(rows * 0.6180339887) | 1
    while np.gcd(step, rows) != 1:
        step += 2
    return (rank * step) % rows
