"""Tables batched in one op against the same tables looked up one by one."""

import copy

import pytest
import torch

from shardgym.embeddings import TableBatchedTTEmbeddingBags, TTEmbeddingBag
from shardgym.embeddings.tables.fused_optimizers import SGD, Adagrad
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TableSpec, TensorTrainFormat
from tests.embeddings.tensor_train.truth import KERNELS, random_bags, table_of

SHAPES = [
    (300, 6, (8, 8, 8), (2, 1, 3), (4, 5)),
    (90, 4, (10, 10), (2, 2), (3,)),
    (50, 5, (1, 50), (2, 3), (7,)),
    (400, 8, (5, 4, 5, 4), (2, 2, 2, 1), (3, 4, 2)),
]


def batch_for(bags, seed):
    """indices and offsets of all tables, table-major, and each table's own."""
    own = [random_bags(shape[0], bags, 4, seed + k) for k, shape in enumerate(SHAPES)]
    sizes = torch.tensor([0, *(indices.numel() for indices, _ in own)]).cumsum(0)
    offsets = torch.cat([own[0][1][:1], *(offsets[1:] + start for (_, offsets), start in zip(own, sizes))])
    return torch.cat([indices for indices, _ in own]), offsets, own


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("bags", [0, 1, 40])
def test_one_op_does_what_single_tables_do(kernel, bags):
    options = [
        {"optimizer": SGD(0.1), "cache_rows": 9},
        {"mode": "mean", "padding_idx": 2},
        {"optimizer": Adagrad(0.1), "row_order": torch.randperm(50)},
        {"optimizer": SGD(0.2)},
    ]
    alone = [table_of(shape, k, include_last_offset=True, **o) for k, (shape, o) in enumerate(zip(SHAPES, options))]
    alone[0].cache.observe(torch.arange(20, 28))
    alone[0].cache_populate()
    batched = TableBatchedTTEmbeddingBags([copy.deepcopy(table) for table in alone], kernel=kernel)
    for step in range(3):
        indices, offsets, own = batch_for(bags, 10 * step)
        out = batched(indices, offsets)
        singles = [table(*part) for table, part in zip(alone, own)]
        torch.testing.assert_close(out, torch.cat(singles, dim=1))
        upstream = torch.randn(out.shape, dtype=out.dtype)
        out.backward(upstream)
        torch.cat(singles, dim=1).backward(upstream)
    for table, other in zip(alone, batched.tables):
        torch.testing.assert_close(table.to_dense(), other.to_dense())
    for ours, theirs in zip(batched.tables[1].cores, alone[1].cores):
        torch.testing.assert_close(ours.grad, theirs.grad)


@pytest.mark.parametrize("kernel", KERNELS)
def test_weights_reach_every_table(kernel):
    tables = [table_of(shape, include_last_offset=True) for shape in SHAPES]
    indices, offsets, own = batch_for(7, 0)
    weights = torch.rand(indices.numel(), dtype=torch.float64, requires_grad=True)
    parts = weights.split([part.numel() for part, _ in own])
    truth = torch.cat([table(*part, w) for table, part, w in zip(tables, own, parts)], dim=1)
    out = TableBatchedTTEmbeddingBags(tables, kernel)(indices, offsets, weights)
    torch.testing.assert_close(out, truth)
    upstream = torch.randn_like(out)
    torch.testing.assert_close(
        torch.autograd.grad(out, weights, upstream), torch.autograd.grad(truth, weights, upstream)
    )


def test_a_bad_id_in_the_last_table_leaves_all_tables_untouched():
    tables = [table_of(shape, cache_rows=2, optimizer=SGD(1.0)) for shape in SHAPES]
    batched = TableBatchedTTEmbeddingBags(tables)
    with pytest.raises(InputError, match="id 400 is outside"):
        batched(torch.tensor([1, 2, 3, 400]), torch.arange(5))
    assert all(table.cache.steps == 0 for table in tables)
    with pytest.raises(InputError, match="3 bags do not divide among 4 tables"):
        batched(torch.tensor([1, 2, 3]), torch.arange(4))


def test_from_specs_makes_fresh_tables_and_refuses_dense_ones():
    form = TensorTrainFormat((4, 4), (10, 10, 10), (2, 2, 2))
    specs = [TableSpec("a", 900, 8, tensor_train=form), TableSpec("b", 1000, 7, tensor_train=form)]
    batched = TableBatchedTTEmbeddingBags.from_specs(specs, optimizer=SGD(0.1))
    assert batched(torch.tensor([1, 2]), torch.arange(3)).shape == (1, 15)
    assert batched.compression_ratio == pytest.approx((900 * 8 + 1000 * 7) / (2 * form.parameters()))
    with pytest.raises(InputError, match="'c': is dense"):
        TableBatchedTTEmbeddingBags.from_specs([TableSpec("c", 9, 8)])
    with pytest.raises(InputError, match="several dtypes"):
        TableBatchedTTEmbeddingBags([TTEmbeddingBag(9, 4, 2), TTEmbeddingBag(9, 4, 2, dtype=torch.float64)])
