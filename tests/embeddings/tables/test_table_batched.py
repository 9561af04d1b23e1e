"""The fused op against one nn.EmbeddingBag per table and row-wise Adagrad written out by hand."""

import numpy as np
import pytest
import torch

from shardgym.embeddings.tables.table_batched import (
    EPSILON,
    FBGEMM_AVAILABLE,
    ReusedMemory,
    TableBatchedBags,
    TorchBags,
    fbgemm_bags,
)
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TableSpec

TABLES = (TableSpec("a", rows=50, dim=8), TableSpec("b", rows=7, dim=4), TableSpec("c", rows=1, dim=12))
KERNELS = [
    pytest.param(TorchBags, id="torch"),
    pytest.param(
        fbgemm_bags, id="fbgemm", marks=pytest.mark.skipif(not FBGEMM_AVAILABLE, reason="FBGEMM is not installed")
    ),
]


def random_batch(rng, batch=6):
    """Bags of 0 to 4 ids, duplicates and empty bags included."""
    lengths = rng.integers(0, 5, size=(len(TABLES), batch))
    ids = [rng.integers(0, table.rows, size=row.sum()) for table, row in zip(TABLES, lengths)]
    offsets = np.concatenate([[0], lengths.ravel().cumsum()])
    return torch.from_numpy(np.concatenate(ids)), torch.from_numpy(offsets), lengths


def step_by_hand(weights, states, ids, lengths, grads, learning_rate):
    """One look-up and update in plain loops; weights and states change in place."""
    pooled, position = [], 0
    for weight, state, row, grad in zip(weights, states, lengths, grads):
        out, row_grads = np.zeros((len(row), weight.shape[1])), {}
        for bag, length in enumerate(row):
            for i in ids[position : position + length]:
                out[bag] += weight[i]
                row_grads[int(i)] = row_grads.get(int(i), 0) + grad[bag]
            position += length
        for i, row_grad in row_grads.items():
            state[i] += np.mean(row_grad**2)
            weight[i] -= learning_rate * row_grad / (np.sqrt(state[i]) + EPSILON)
        pooled.append(out)
    return np.concatenate(pooled, axis=1)


@pytest.mark.parametrize("kernel", KERNELS)
def test_look_up_and_update_match_plain_loops(kernel):
    rng = np.random.default_rng(0)
    memory = ReusedMemory()
    flat = memory.take("weights", torch.float32, sum(t.rows * t.dim for t in TABLES))
    flat.copy_(torch.from_numpy(rng.normal(size=len(flat)).astype(np.float32)))
    op = kernel(TABLES, flat, memory.take("states", torch.float32, sum(t.rows for t in TABLES)), 0.1)
    weights = [w.detach().numpy().astype(np.float64) for w in op.split_embedding_weights()]
    states = [np.zeros(t.rows) for t in TABLES]
    for _ in range(5):
        ids, offsets, lengths = random_batch(rng)
        grad = rng.normal(size=(lengths.shape[1], sum(t.dim for t in TABLES)))
        out = op(ids, offsets)
        split = np.split(grad, np.cumsum([t.dim for t in TABLES])[:-1], axis=1)
        expected = step_by_hand(weights, states, ids.numpy(), lengths, split, 0.1)
        np.testing.assert_allclose(out.detach().numpy(), expected, rtol=1e-4, atol=1e-5)
        out.backward(torch.from_numpy(grad.astype(np.float32)))
        for held, by_hand in zip(op.split_embedding_weights(), weights):
            np.testing.assert_allclose(held.detach().numpy(), by_hand, rtol=1e-4, atol=1e-5)


def test_reused_memory_is_grown_and_shared():
    memory = ReusedMemory()
    small = memory.take("weights", torch.float32, 10)
    large = memory.take("weights", torch.float32, 20)
    again = memory.take("weights", torch.float32, 15)
    assert len(small) == 10
    assert again.data_ptr() == large.data_ptr()
    assert memory.take("states", torch.float32, 20).data_ptr() != large.data_ptr()


def test_weights_share_memory_with_the_op():
    bags = TableBatchedBags(TABLES)
    for weight in bags.weights():
        weight.data.fill_(1.0)
    out = bags(torch.tensor([3, 4, 0, 0]), torch.tensor([0, 2, 3, 4]))
    assert out.tolist() == [[2.0] * 8 + [1.0] * 4 + [1.0] * 12]


def test_mixed_formats_are_refused_by_name():
    with pytest.raises(InputError, match=r"fp16.*fp32"):
        TableBatchedBags([TableSpec("a", 10, 4), TableSpec("b", 10, 4, dtype="fp16")])
    with pytest.raises(InputError, match="none given"):
        TableBatchedBags([])
