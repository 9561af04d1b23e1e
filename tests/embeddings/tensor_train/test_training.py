"""Training a tensor-train table: frozen parts, decay of rows, clipping, schedules, checkpoints, precision."""

import copy

import pytest
import torch
import torch.nn.functional as F

from shardgym.embeddings import SGD, Adagrad, Adam, RowwiseAdagrad, TTEmbedding, TTEmbeddingBag
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule
from shardgym.problem.errors import InputError
from tests.embeddings.tensor_train.truth import KERNELS, dense_table, pooled, random_bags, table_of

SHAPE = (500, 6, (8, 8, 8), (2, 1, 3), (4, 5))
IDS = torch.arange(24).view(6, 4)


@pytest.mark.parametrize("kernel", KERNELS)
def test_second_order_gradients_are_refused(kernel):
    table = table_of(SHAPE, kernel=kernel)
    out = table(IDS).square().sum()
    grads = torch.autograd.grad(out, list(table.cores), create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        sum(grad.square().sum() for grad in grads).backward()


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("frozen", [0, 1, 2])
def test_a_frozen_core_stays_while_the_others_train(kernel, frozen):
    table = table_of(SHAPE, optimizer=SGD(0.1), kernel=kernel)
    table.cores[frozen].requires_grad_(False)
    before = [core.detach().clone() for core in table.cores]
    table(IDS).square().sum().backward()
    for k, (core, earlier) in enumerate(zip(table.cores, before)):
        assert torch.equal(core, earlier) == (k == frozen)


def test_weight_decay_decays_rows_as_a_dense_table_decays():
    table = table_of(SHAPE, optimizer=SGD(0.1, weight_decay=0.1), cache_rows=5)
    table.cache.observe(torch.arange(5))
    table.cache_populate()
    before = table.to_dense()
    for _ in range(100):
        (0 * table(IDS)).sum().backward()
    torch.testing.assert_close(table.to_dense(), before * (1 - 0.1 * 0.1) ** 100)


@pytest.mark.parametrize("steps", [6])
def test_adam_on_cores_is_torchs_adam(steps):
    table = table_of(SHAPE, optimizer=Adam(0.05, betas=(0.8, 0.95)), include_last_offset=True)
    cores = [core.detach().clone().requires_grad_() for core in table.cores]
    outside = torch.optim.Adam(cores, lr=0.05, betas=(0.8, 0.95))
    for step in range(steps):
        indices, offsets = random_bags(500, 30, 5, step)
        upstream = torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        table(indices, offsets).backward(upstream)
        outside.zero_grad()
        pooled(dense_table(cores, 500, 6), indices, offsets).backward(upstream)
        outside.step()
    for ours, theirs in zip(table.cores, cores):
        torch.testing.assert_close(ours.detach(), theirs.detach())


def test_adam_on_hot_rows_counts_each_rows_own_steps():
    optimizer = Adam(0.1)
    weight = torch.randn(4, 3, dtype=torch.float64)
    rows = [row.clone().requires_grad_() for row in weight]
    outside = [torch.optim.Adam([row], lr=0.1) for row in rows]
    state = optimizer.new_state(weight)
    for step in range(5):
        touched = torch.tensor([[0, 2], [1, 2], [2, 3], [0, 1], [2, 0]][step])
        grad = torch.randn(2, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        optimizer.update_rows(weight, state, touched, grad)
        for k, own in zip(touched.tolist(), grad):
            rows[k].grad = own
            outside[k].step()
    torch.testing.assert_close(weight, torch.stack([row.detach() for row in rows]))


def test_clipping_bounds_the_gradient_of_cores_and_hot_rows_together():
    def moved(max_norm):
        table = table_of(SHAPE, optimizer=SGD(1.0, max_norm=max_norm), cache_rows=3)
        table.cache.observe(torch.arange(3))
        table.cache_populate()
        before = [weight.detach().clone() for weight in table.weights()]
        table(IDS).square().sum().backward()
        return torch.cat([(weight - old).flatten() for weight, old in zip(table.weights(), before)])

    whole, clipped = moved(None), moved(0.5)
    assert clipped.norm().item() == pytest.approx(0.5)
    torch.testing.assert_close(clipped, whole * (0.5 / whole.norm()))
    with pytest.raises(InputError, match="max_norm"):
        SGD(max_norm=0.0)


def test_a_schedule_may_set_the_learning_rate():
    table = table_of(SHAPE, optimizer=Adagrad(0.1))
    table.optimizer.lr = 0.0
    before = table.to_dense()
    table(IDS).sum().backward()
    assert torch.equal(table.to_dense(), before)


@pytest.mark.parametrize("optimizer", [Adagrad(0.1), RowwiseAdagrad(0.1), Adam(0.1)])
def test_half_precision_keeps_optimizer_state_in_float32(optimizer):
    table = TTEmbeddingBag(500, 6, 4, optimizer=optimizer, cache_rows=4)
    table(IDS).sum().backward()
    state = table.core_state_1.clone()
    table.bfloat16()
    assert table.core_state_1.dtype == table.cache.state.dtype == torch.float32
    assert torch.equal(table.core_state_1, state)
    assert all(core.dtype == torch.bfloat16 for core in table.cores)
    before = [core.detach().clone() for core in table.cores]
    table(IDS).sum().backward()
    assert not any(torch.equal(core, earlier) for core, earlier in zip(table.cores, before))


def test_checkpoints_load_with_and_without_optimizer_state():
    trained = table_of(SHAPE, 0, optimizer=Adagrad(0.1), cache_rows=4)
    plain = table_of(SHAPE, 1, cache_rows=4)
    trained(IDS).sum().backward()
    plain.load_state_dict(trained.state_dict())
    torch.testing.assert_close(plain.to_dense(), trained.to_dense())
    other = table_of(SHAPE, 2, optimizer=Adagrad(0.1), cache_rows=4)
    own_state = other.core_state_0.clone()
    other.load_state_dict(plain.state_dict())
    torch.testing.assert_close(other.to_dense(), trained.to_dense())
    assert torch.equal(other.core_state_0, own_state)


@pytest.mark.parametrize(
    ("name", "damage"),
    [
        ("row_order", torch.zeros(500, dtype=torch.int32)),
        ("row_order", torch.arange(500, dtype=torch.int32) + 1),
        ("cache.ids", torch.tensor([7, 7, -1, -1])),
        ("cache.ids", torch.tensor([500, 1, -1, -1])),
    ],
)
def test_a_damaged_state_dict_is_refused_before_anything_changes(name, damage):
    table = table_of(SHAPE, cache_rows=4, row_order=torch.randperm(500))
    before = table.to_dense()
    state = copy.deepcopy(table.state_dict())
    state[name] = damage
    with pytest.raises(InputError, match=f"state_dict: 0.{name}"):
        torch.nn.Sequential(table).load_state_dict({f"0.{key}": value for key, value in state.items()})
    assert torch.equal(table.to_dense(), before)


def test_meta_tables_take_no_memory_and_can_be_filled_later():
    with torch.device("meta"):
        table = TTEmbeddingBag(500, 6, 4, optimizer=Adagrad(0.1), cache_rows=4)
    assert all(tensor.is_meta for tensor in (*table.parameters(), *table.buffers()))
    table.to_empty(device="cpu").reset_parameters(torch.Generator().manual_seed(0))
    same = TTEmbeddingBag(500, 6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(table.to_dense(), same.to_dense())
    table(IDS).sum().backward()
    assert not torch.equal(table.to_dense(), same.to_dense())


def test_the_default_dtype_is_torchs():
    torch.set_default_dtype(torch.float64)
    try:
        assert TTEmbeddingBag(10, 4, 2).cores[0].dtype == torch.float64
    finally:
        torch.set_default_dtype(torch.float32)


def test_a_schedule_needs_a_cache_and_no_grad_look_ups_do_not_fill_it():
    with pytest.raises(InputError, match="cache_schedule is given but cache_rows is 0"):
        TTEmbeddingBag(500, 6, 4, cache_schedule=CacheSchedule())
    table = TTEmbeddingBag(500, 6, 4, cache_rows=4, cache_schedule=CacheSchedule(warmup_steps=1))
    with torch.no_grad():
        table(IDS)
    assert table.cache.steps == table.cache_stats().used == 0


@pytest.mark.parametrize("optimizer", [None, SGD(0.1)])
def test_a_fill_between_two_look_ups_of_a_step_waits_for_its_backward(optimizer):
    table = table_of(SHAPE, cache_rows=4, cache_schedule=CacheSchedule(warmup_steps=2), optimizer=optimizer)
    first, second = table(IDS), table(IDS + 100)
    assert table.cache_stats().used == 0
    with pytest.raises(InputError, match="a look-up awaits its backward"):
        table.cache_populate()
    if optimizer is None:
        (first.sum() + second.sum()).backward()
    else:
        first.sum().backward()
        del second
    table(IDS)
    assert table.cache_stats().used == 4


@pytest.mark.parametrize("kernel", KERNELS)
def test_maxima_and_their_gradients(kernel):
    table = table_of(SHAPE, mode="max", include_last_offset=True, padding_idx=3, kernel=kernel)
    indices, offsets = random_bags(500, 9, 5, 0)
    indices[::3] = 3
    cores = [core.detach().clone().requires_grad_() for core in table.cores]
    truth = pooled(dense_table(cores, 500, 6), indices, offsets, "max", padding_idx=3)
    out = table(indices, offsets)
    torch.testing.assert_close(out, truth)
    upstream = torch.randn_like(out)
    for ours, theirs in zip(torch.autograd.grad(out, list(table.cores), upstream),
                            torch.autograd.grad(truth, cores, upstream)):  # fmt: skip
        torch.testing.assert_close(ours, theirs)


def test_the_unpooled_table_gives_a_row_per_id():
    table = TTEmbedding(500, 6, 4, init_std=1.0, padding_idx=2)
    ids = torch.tensor([[[0, 5], [499, 5]], [[2, 1], [7, 7]]])
    dense = table.to_dense()
    dense[2] = 0
    torch.testing.assert_close(table(ids), F.embedding(ids, dense))
    assert table(torch.tensor(5)).shape == (6,)
    assert table(torch.zeros(0, 3, dtype=torch.int64)).shape == (0, 3, 6)
