"""Tables under DistributedDataParallel: after training, every process holds the same table, that of one process."""

import multiprocessing
import tempfile
from concurrent.futures import ProcessPoolExecutor

import pytest
import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

from shardgym.embeddings import SGD, Adagrad, CacheSchedule, TTEmbeddingBag

STEPS, RANKS = 24, 2
KINDS = [(kind, cached) for kind in ("plain", "sgd", "adagrad") for cached in (False, True)]
OPTIMIZERS = {"plain": None, "sgd": SGD(0.1), "adagrad": Adagrad(0.1)}


def build(kind, cached):
    schedule = CacheSchedule(warmup_steps=3, refresh_every=4, track_every=1, first_fill=0.5)
    cache = {"cache_rows": 8, "cache_schedule": schedule} if cached else {}
    return TTEmbeddingBag(
        500, 6, 4, init_std=0.5, optimizer=OPTIMIZERS[kind], dtype=torch.float64, include_last_offset=True,
        generator=torch.Generator().manual_seed(0), **cache,
    )  # fmt: skip


def batch(step, rank):
    """Each rank has hot ids of its own, that move half way."""
    generator = torch.Generator().manual_seed(100 * step + rank)
    hot = torch.randint(0, 6, (16,), generator=generator) + 10 * rank + 50 * (step >= STEPS // 2)
    return torch.cat([hot, torch.randint(0, 500, (16,), generator=generator)])


def train_rank(rank, folder):
    """Dense tables and cached ids after training, by kind of table."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/meet", rank=rank, world_size=RANKS)
    found = {}
    for kind, cached in KINDS:
        model = DistributedDataParallel(build(kind, cached), find_unused_parameters=kind != "plain")
        train(model, kind, [batch(step, rank) for step in range(STEPS)])
        table = model.module
        found[kind, cached] = table.to_dense().numpy(), [] if table.cache is None else table.cache.ids.tolist()
    dist.destroy_process_group()
    return found


def train(model, kind, batches):
    plain = torch.optim.SGD(model.parameters(), lr=0.1) if kind == "plain" else None
    for ids in batches:
        model(ids, torch.arange(0, ids.numel() + 1, 4)).square().mean().backward()
        if plain:
            plain.step()
            plain.zero_grad()


@pytest.fixture(scope="module")
def ranks():
    spawn = multiprocessing.get_context("spawn")
    with tempfile.TemporaryDirectory() as folder, ProcessPoolExecutor(RANKS, mp_context=spawn) as pool:
        runs = [pool.submit(train_rank, rank, folder) for rank in range(RANKS)]
        return [run.result(timeout=240) for run in runs]


@pytest.mark.parametrize(("kind", "cached"), KINDS)
def test_replicas_stay_equal_and_equal_one_process_with_all_batches(ranks, kind, cached):
    (first, ids), (second, other_ids) = (found[kind, cached] for found in ranks)
    torch.testing.assert_close(torch.from_numpy(first), torch.from_numpy(second), rtol=0, atol=1e-12)
    assert ids == other_ids
    assert not cached or max(ids) > 50  # rows of the later hot set came in
    table = build(kind, cached)
    train(table, kind, [torch.cat([batch(step, rank) for rank in range(RANKS)]) for step in range(STEPS)])
    torch.testing.assert_close(table.to_dense(), torch.from_numpy(first))
