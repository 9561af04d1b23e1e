"""Sharded look-ups on gloo processes: what one process computes, with bytes that fall with the duplicates."""

import pytest
import torch
import torch.multiprocessing as mp

from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from tests.embeddings.models.sharded_bags_worker import DIMS, KEYS, ROWS, bags_of, output_gradient, run

SESSIONS, SAMPLES = 6, 8


def batch(seed, sessions=SESSIONS, weighted=False):
    """Sessions of eight samples; a and b repeat together, c is the sample's own."""
    generator = torch.Generator().manual_seed(seed)

    def lists(keys, rows):
        lengths = torch.randint(0, 6, (len(keys) * rows,), generator=generator)
        ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
        weights = torch.rand(len(ids), generator=generator) if weighted else None
        return KeyedJaggedTensor(keys, ids, weights, lengths, stride=rows)

    inverse = torch.arange(sessions).repeat_interleave(SAMPLES)
    groups = [FeatureGroup(lists(["a", "b"], sessions), inverse)]
    groups.append(FeatureGroup(lists(["c"], sessions * SAMPLES), None))
    return InverseKeyedJaggedTensor(groups, KEYS)


def empty():
    return InverseKeyedJaggedTensor.empty_like(batch(0))


def cases(ranks):
    ikjts = [batch(seed, sessions=SESSIONS + seed) for seed in range(ranks)]
    weighted = [batch(seed, weighted=True) for seed in range(ranks)]
    with_empty = [empty(), *ikjts[1:]]
    windows = [PartialInverseKeyedJaggedTensor.from_kjt(b.to_kjt(), [["a"], ["c"]]) for b in ikjts]
    weighted_windows = [PartialInverseKeyedJaggedTensor.from_kjt(b.to_kjt(), [["a"]]) for b in weighted]
    # Windows on one process, lists on the others.
    mixed = [windows[0], *(b.to_kjt() for b in ikjts[1:])]
    plain = [b.to_kjt() for b in ikjts]
    return [ikjts, plain, weighted, with_empty, [empty()] * ranks, windows, weighted_windows, mixed]


@pytest.fixture(scope="module", params=[3, pytest.param(4, marks=pytest.mark.slow)])
def outcome(request, tmp_path_factory):
    """Every case looked up on gloo processes; some hold no table."""
    ranks = request.param
    device_of = {"a": 0, "b": 1, "c": 0}
    folder = tmp_path_factory.mktemp("exchange")
    mp.spawn(run, (ranks, str(folder), cases(ranks), device_of), nprocs=ranks)
    return cases(ranks), device_of, [torch.load(folder / f"rank{rank}.pt") for rank in range(ranks)]


def test_every_process_gets_what_one_process_would_compute(outcome):
    inputs, _, results = outcome
    bags = bags_of(KEYS)
    for case, batches in enumerate(inputs):
        for rank, part in enumerate(batches):
            torch.testing.assert_close(results[rank][case]["pooled"], bags(expanded(part)).detach())


def test_a_table_s_gradient_sums_all_batches(outcome):
    inputs, device_of, results = outcome
    for case, batches in enumerate(inputs):
        bags = bags_of(KEYS)
        for part in batches:
            bags(expanded(part)).backward(output_gradient(part.stride()))
        for key, parameter in zip(KEYS, bags.parameters()):
            torch.testing.assert_close(results[device_of[key]][case]["grads"][key], parameter.grad)


def test_only_unique_rows_travel(outcome):
    inputs, device_of, results = outcome
    unique, plain = inputs[0], inputs[1]
    for case, batches in ((0, unique), (1, plain)):
        for rank, part in enumerate(batches):
            away = [key for key in KEYS if device_of[key] != rank]
            lists = {key: held(part, key) for key in away}
            traffic = results[rank][case]["traffic"]
            assert traffic["ids"] == sum(8 * len(kept.values()) for kept in lists.values())
            back = sum(4 * DIMS[key] * kept.lengths().numel() for key, kept in lists.items())
            assert traffic["gradients"] == back
    fewer, more = (sum_of(results, case, ["ids", "rows", "gradients"], [1]) for case in (0, 1))
    assert fewer < more
    # A batch of nothing sends nothing but the counts.
    assert sum_of(results, 4, ["ids", "rows", "gradients"], range(len(results))) == 0


def expanded(part):
    return part if isinstance(part, KeyedJaggedTensor) else part.to_kjt()


def held(part, key):
    if isinstance(part, KeyedJaggedTensor):
        return part[key]
    return part.group_of(key).unique[key]


def sum_of(results, case, kinds, ranks):
    return sum(results[rank][case]["traffic"][kind] for rank in ranks for kind in kinds)


def test_layouts_that_do_not_fit_are_named(outcome):
    no_table, stray, total = outcome[2][0][-1]
    assert "holds tables [] but device_of gives it ['a', 'b', 'c']" in no_table
    assert "{'a': 9} are not among" in stray
    assert total == 10


def test_a_pool_travels_once(outcome):
    inputs, device_of, results = outcome
    pool = inputs[5][1].group_of("a")
    assert pool.lengths.sum() > 1.7 * pool.shared()
    traffic = results[1][5]["traffic"]
    assert device_of["a"] == device_of["c"] == 0
    others = inputs[5][1].group_of("c")
    c = others.shared() if others.lengths.sum() > 1.7 * others.shared() else int(others.lengths.sum())
    assert traffic["ids"] == 8 * (pool.shared() + c)
