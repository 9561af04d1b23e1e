"""One shard of many formats against each table alone."""

from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
import torch

from shardgym.dataio.index_draw import draw_batch, draw_indices
from shardgym.embeddings.shard import EmbeddingShard, select_tables
from shardgym.embeddings.tables.frozen_bags import FrozenBags
from shardgym.embeddings.tables.table_batched import ReusedMemory
from shardgym.embeddings.tensor_train.shapes import choose_format
from shardgym.problem.errors import InputError
from shardgym.problem.tables import Dedup, TableSpec

REPEATS = Dedup(10, 0.8)
DENSE = [TableSpec("a", 30, 4), TableSpec("b", 20, 8, dtype="fp16"), TableSpec("c", 10, 4, pooling=2.5)]
TT = [
    TableSpec("t", 1000, 8, 3.0, tensor_train=choose_format(1000, 8, 4)),
    TableSpec("u", 500, 4, 2.0, tensor_train=choose_format(500, 4, 8, cached_rows=50)),
]
QUANTISED = [TableSpec("q", 40, 8, 2.0, dtype="int8"), TableSpec("r", 50, 4, 3.0, dtype="int8")]
HALVED = [TableSpec("h", 30, 6, 2.0, dtype="int4")]
REPEATING = [
    TableSpec("x", 60, 4, 2.0, dedup=REPEATS, group="g"),
    TableSpec("y", 60, 8, 1.5, dedup=REPEATS, group="g"),
    TableSpec("z", 60, 4, 1.0, dedup=Dedup(4, 0.5)),
]
ALL = [DENSE[0], REPEATING[0], TT[0], DENSE[1], QUANTISED[0], REPEATING[2], *HALVED, TT[1], REPEATING[1], QUANTISED[1]]


def filled(shard):
    """The shard with weights that are not all zero."""
    generator = torch.Generator().manual_seed(0)
    for op in shard.ops:
        if isinstance(op, FrozenBags):
            for packed, table in zip(op.packed, op.tables):
                weight = torch.randn(table.rows, table.dim, generator=generator)
                pack = {"int8": "byte", "int4": "4bit"}[op.dtype]
                packed.copy_(getattr(torch.ops.quantized, f"embedding_bag_{pack}_prepack")(weight))
        elif hasattr(op, "weights"):
            for weight in op.weights():
                weight.data.copy_(torch.randn(weight.shape, generator=generator))
    return shard


def alone(shard, t):
    """Table t as an op of its own: the rows (rows, dim) that the shard's op has for it, read one by one."""
    table = shard.tables[t]
    ids = torch.arange(table.rows)
    op, place = next((op, each.index(t)) for each, op in zip(shard.members, shard.ops) if t in each)
    members = len(next(each for each in shard.members if t in each))
    offsets = torch.zeros(members * table.rows + 1, dtype=torch.int64)
    offsets[place * table.rows + 1 : (place + 1) * table.rows + 1] = ids + 1
    offsets[(place + 1) * table.rows + 1 :] = table.rows
    with torch.no_grad():
        rows = op.eval()(ids, offsets).float()
    begin = sum(shard.tables[m].dim for m in next(each for each in shard.members if t in each)[:place])
    return rows[:, begin : begin + table.dim]


@pytest.mark.parametrize("tables", [DENSE, TT, QUANTISED, HALVED, REPEATING, ALL], ids=lambda ts: ts[0].name)
def test_a_plain_batch_pools_the_rows_of_each_table(tables):
    shard = filled(EmbeddingShard(tables))
    indices, offsets = draw_indices(tables, 16, np.random.default_rng(0))
    found = shard.eval()(indices, offsets)
    expected = []
    for t, table in enumerate(tables):
        ids, starts = select_tables(indices, offsets, [t], len(tables))
        rows = alone(shard, t)
        expected.append(torch.stack([rows[ids[b:e]].sum(0) for b, e in pairwise(starts)]).view(16, table.dim))
    torch.testing.assert_close(found, torch.cat(expected, dim=1), rtol=1e-3, atol=1e-3)


def test_a_deduplicated_batch_pools_what_its_expanded_lists_pool():
    shard = filled(EmbeddingShard(REPEATING))
    batch = draw_batch(shard, 64, np.random.default_rng(1))
    assert [part.offsets.numel() - 1 for part in batch] == [2 * round(64 / REPEATS.factor()), round(64 / 1.6)]
    assert all(part.inverse.unique().numel() == (part.offsets.numel() - 1) // n for part, n in zip(batch, (2, 1)))
    found = shard.pool(batch)
    for members, part in zip(shard.members, batch):
        lists = (part.offsets.numel() - 1) // len(members)
        for place, t in enumerate(members):
            rows = alone(shard, t)
            begin = sum(table.dim for table in REPEATING[:t])
            own = found[:, begin : begin + REPEATING[t].dim]
            for sample, unique in enumerate(part.inverse.tolist()):
                start, end = part.offsets[place * lists + unique : place * lists + unique + 2]
                torch.testing.assert_close(own[sample], rows[part.indices[start:end]].sum(0), rtol=1e-4, atol=1e-4)


def test_training_a_mixed_shard_changes_all_but_the_frozen_tables():
    shard = filled(EmbeddingShard(ALL)).train()
    before = [alone(shard, t).clone() for t in range(len(ALL))]
    shard.train()
    for seed in range(2):
        pooled = shard.pool(draw_batch(shard, 32, np.random.default_rng(seed)))
        pooled.backward(torch.ones_like(pooled))
    for t, table in enumerate(ALL):
        changed = not torch.equal(before[t], alone(shard, t))
        assert changed == (table.dtype not in ("int8", "int4")), table.name


def test_a_shard_of_frozen_tables_alone_has_a_backward():
    shard = EmbeddingShard(QUANTISED)
    pooled = shard.pool(draw_batch(shard, 8, np.random.default_rng(0)))
    pooled.backward(torch.ones_like(pooled))


def test_shards_that_cannot_be():
    with pytest.raises(InputError, match="needs at least one table"):
        EmbeddingShard([])
    with pytest.raises(InputError, match="table 'h': int4 rows need an even dim"):
        EmbeddingShard([replace(HALVED[0], dim=5)])
    with pytest.raises(InputError, match="not \\['fp32', 'int8'\\]"):
        FrozenBags([QUANTISED[0], DENSE[0]], ReusedMemory())
