"""The hot-row cache: what is admitted, that training survives refreshes, and that state follows its row."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardgym.embeddings.tables.fused_optimizers import SGD, Adagrad, RowwiseAdagrad
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule, FrequencyTracker
from shardgym.problem.errors import InputError
from tests.embeddings.tensor_train.truth import KERNELS, dense_table, pooled, random_bags, table_of

SHAPE = (500, 6, (8, 8, 8), (2, 1, 3), (4, 5))


def filled(ids, kernel="torch", **options):
    """A table whose cache holds `ids`."""
    table = table_of(SHAPE, include_last_offset=True, cache_rows=len(ids) + 3, kernel=kernel, **options)
    table.cache.observe(table.positions(torch.tensor(ids)))
    assert table.cache_populate() == len(ids)
    return table


@pytest.mark.parametrize("kernel", KERNELS)
def test_filling_the_cache_changes_no_row(kernel):
    table = table_of(SHAPE, cache_rows=20, kernel=kernel)
    before = table.to_dense()
    table.cache.observe(torch.arange(100, 130))
    assert table.cache_populate() == 20
    torch.testing.assert_close(table.to_dense(), before)


@pytest.mark.parametrize("kernel", KERNELS)
@pytest.mark.parametrize("optimizer", [None, SGD(0.1), Adagrad(0.1), RowwiseAdagrad(0.1)])
@pytest.mark.parametrize("ordered", [False, True])
def test_cached_rows_train_as_rows_and_the_others_through_the_cores(kernel, optimizer, ordered):
    order = torch.randperm(500, generator=torch.Generator().manual_seed(3)) if ordered else None
    hot = [7, 3, 499, 250, 12]
    table = filled(hot, kernel, optimizer=optimizer, row_order=order)
    cores = [core.detach().clone().requires_grad_() for core in table.cores]
    rows = table.rows(torch.tensor(hot)).requires_grad_()
    outside = torch.optim.SGD if optimizer is None or isinstance(optimizer, SGD) else torch.optim.Adagrad
    truth_optimizer = outside([*cores, rows], lr=0.1)
    plain = None if optimizer else torch.optim.SGD(table.parameters(), lr=0.1)
    positions = torch.arange(500) if order is None else order
    for step in range(4):
        indices, offsets = random_bags(500, 30, 6, step)
        indices[::3] = torch.tensor(hot).repeat(len(indices))[: len(indices[::3])]
        upstream = torch.randn(30, 6, dtype=torch.float64, generator=torch.Generator().manual_seed(step))
        weight = dense_table(cores, 512, 6)[positions].index_put((torch.tensor(hot),), rows)
        out = table(indices, offsets)
        truth = pooled(weight, indices, offsets)
        torch.testing.assert_close(out, truth)
        out.backward(upstream)
        truth_optimizer.zero_grad()
        truth.backward(upstream)
        if isinstance(optimizer, RowwiseAdagrad):
            _rowwise_step([*cores, rows], truth_optimizer, 0.1)
        else:
            truth_optimizer.step()
        if plain:
            plain.step()
            plain.zero_grad()


def _rowwise_step(weights, optimizer, lr):
    for weight in weights:
        state = optimizer.state[weight]
        square = weight.grad.square().flatten(1).mean(1)
        state["row"] = state.get("row", 0) + square
        weight.data -= lr * weight.grad / (state["row"].sqrt() + 1e-10).view(-1, *(1,) * (weight.dim() - 1))


@pytest.mark.parametrize("optimizer", [SGD(0.1), Adagrad(0.1), RowwiseAdagrad(0.1)])
def test_a_refresh_keeps_what_was_trained_and_its_state_and_gives_newcomers_fresh_state(optimizer):
    table = filled([5, 6, 7], optimizer=optimizer)
    table(torch.tensor([5, 5, 6, 300]), torch.tensor([0, 2, 4])).square().sum().backward()
    trained = table.rows(torch.tensor([5, 6, 7]))
    state = None if table.cache.state is None else table.cache.state[:3].clone()
    newcomer = table.rows(torch.tensor([300]))
    for _ in range(50):
        table.cache.observe(torch.tensor([300, 301]))
    assert table.cache_populate() == 2
    torch.testing.assert_close(table.rows(torch.tensor([5, 6, 7])), trained, rtol=0, atol=0)
    torch.testing.assert_close(table.rows(torch.tensor([300])), newcomer)
    if state is not None:
        assert torch.equal(table.cache.state[:3], state)
        assert not table.cache.state[3:].any()
    # A full cache takes nobody, and loses nobody.
    for _ in range(50):
        table.cache.observe(torch.tensor([400, 401]))
    assert table.cache_populate() == 1
    assert table.cache_populate() == 0
    torch.testing.assert_close(table.rows(torch.tensor([5, 6, 7])), trained, rtol=0, atol=0)


def test_the_schedule_fills_by_itself_and_reports_the_hit_rate():
    schedule = CacheSchedule(warmup_steps=3, refresh_every=4, track_every=2, first_fill=0.5)
    table = TTEmbeddingBag(500, 6, 4, cache_rows=4, cache_schedule=schedule, optimizer=SGD(0.1))
    batch = torch.tensor([[1, 1, 1, 2, 2, 3]])
    used = []
    for _ in range(8):
        table(batch).sum().backward()
        used.append(table.cache_stats().used)
    assert used == [0, 0, 2, 2, 2, 2, 3, 3]
    table(batch)
    table(batch)
    assert table.cache_stats().hit_rate == pytest.approx(1.0)
    table.eval()
    steps = table.cache.steps
    table(batch)
    assert table.cache.steps == steps


def test_only_tables_with_a_cache_can_fill_it():
    with pytest.raises(InputError, match="cache_rows"):
        TTEmbeddingBag(10, 4, 2).cache_populate()
    with pytest.raises(InputError, match="first_fill"):
        CacheSchedule(first_fill=0)


@settings(deadline=None, max_examples=50)
@given(batches=st.lists(st.lists(st.integers(0, 30), min_size=1, max_size=20), min_size=1, max_size=12))
def test_the_tracker_counts_exactly_while_ids_fit(batches):
    tracker, counts = FrequencyTracker(capacity=40), torch.zeros(31)
    for batch in batches:
        ids, number = torch.unique(torch.tensor(batch), return_counts=True)
        tracker.add(ids, number)
        counts[ids] += number
    best = torch.argsort(counts, descending=True, stable=True)[: int((counts > 0).sum())]
    assert tracker.most_frequent(40).tolist() == best.tolist()


def test_the_tracker_stays_within_its_capacity_and_keeps_the_frequent():
    tracker = FrequencyTracker(capacity=50)
    generator = torch.Generator().manual_seed(0)
    for _ in range(100):
        batch = torch.cat([torch.arange(5), torch.randint(100, 100_000, (30,), generator=generator)])
        tracker.add(*torch.unique(batch, return_counts=True))
    assert sorted(tracker.most_frequent(5).tolist()) == [0, 1, 2, 3, 4]
    assert tracker.ids.numel() <= 50


def drifting(optimizer, steps, schedule, moved):
    """A table trained towards a fixed dense one on zipf ids whose hot set moves at step `moved`; hit rates by step."""
    rows, dim = 4000, 8
    generator = torch.Generator().manual_seed(0)
    target = torch.randn(rows, dim, generator=generator)
    table = TTEmbeddingBag(
        rows, dim, 8, optimizer=optimizer, cache_rows=100, cache_schedule=schedule, init_std=0.1,
        generator=torch.Generator().manual_seed(0),
    )  # fmt: skip
    share = torch.arange(1, rows + 1).double() ** -1.2
    rates = []
    for step in range(steps):
        ids = torch.multinomial(share, 512, replacement=True, generator=generator)
        ids = (ids + (2000 if step >= moved else 0)) % rows
        rates.append(torch.isin(ids, table.cache.ids).double().mean().item())
        out = table(ids.view(-1, 1))
        (out - target[ids]).square().mean(1).sum().backward()
    return table, target, rates


def test_the_cache_follows_a_moved_hot_set_within_two_refreshes_and_reports_it():
    schedule = CacheSchedule(warmup_steps=20, refresh_every=50, track_every=2, first_fill=1.0)
    moved = 20 + 3 * 50 + 25  # in the middle of a period
    table, _, rates = drifting(Adagrad(0.05), moved + 100, schedule, moved)
    before = sum(rates[moved - 20 : moved]) / 20
    just_after = sum(rates[moved : moved + 20]) / 20
    after = sum(rates[-20:]) / 20
    assert just_after < 0.3 * before
    assert after > 0.9 * before
    assert table.cache_stats().hit_rate == pytest.approx(after, abs=0.08)
    assert table.cache_stats().used == table.cache.capacity == torch.unique(table.cache.ids).numel()


def test_on_a_stationary_stream_refreshes_cost_no_quality():
    errors = []
    for refresh_every in (30, 10**9):
        schedule = CacheSchedule(warmup_steps=20, refresh_every=refresh_every, track_every=2, first_fill=1.0)
        table, target, _ = drifting(Adagrad(0.05), 400, schedule, moved=10**9)
        share = torch.arange(1, 4001).double() ** -1.2
        errors.append(float(((table.to_dense() - target).square().mean(1) * share).sum() / share.sum()))
    assert errors[0] < 1.03 * errors[1]


@pytest.mark.parametrize("optimizer", [None, SGD(0.1), Adagrad(0.1)])
def test_an_evicted_row_keeps_most_of_what_it_learned_and_its_slot_starts_fresh(optimizer):
    table = table_of(SHAPE, cache_rows=2, optimizer=optimizer)
    table.cache.observe(torch.tensor([5, 6]))
    table.cache_populate()
    before = table.rows(torch.tensor([5, 300]))
    with torch.no_grad():
        table.cache.rows[table.cache.ids == 5] += 0.5
        if table.cache.state is not None:
            table.cache.state += 3.0
    for _ in range(50):
        table.cache.observe(torch.tensor([6, 300]))
    table.cache.tracker.fade()
    assert table.cache_refresh() == 1
    assert sorted(table.cache.ids.tolist()) == [6, 300]
    assert ((table.rows(torch.tensor([5]))[0] - before[0] - 0.5).norm() / (0.5 * 6**0.5)).item() < 0.1
    if table.cache.state is not None:
        slot = int(torch.nonzero(table.cache.ids == 300))
        assert not table.cache.state[slot].any()
        assert table.cache.state[1 - slot].any()
