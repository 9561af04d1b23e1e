"""The yardsticks of the tensor-train benchmark: AUC, counted compression, and models that take any table."""

import pytest
import torch

from benchmarks.tensor_train_accuracy import Budget, Method, auc, build, compression, evaluate, make_table, tuned
from benchmarks.tensor_train_data import ClickData
from benchmarks.tensor_train_speed import compressions, largest_padding


def test_auc_against_counting_pairs():
    generator = torch.Generator().manual_seed(0)
    scores = torch.randint(0, 6, (60,), generator=generator).float()
    labels = torch.randint(0, 2, (60,), generator=generator).float()
    wins = (scores[labels > 0][:, None] - scores[labels == 0][None]).sign()
    assert auc(scores, labels) == pytest.approx((wins.double().mean().item() + 1) / 2)


def test_criteo_compressions_reach_the_published_ones():
    found = compressions()
    assert found["kaggle_r32"] >= 117
    assert found["kaggle_r8"] >= 221
    assert found["terabyte_r8"] >= 112
    assert largest_padding() < 0.02


def planted(users=600, items=500, events=12_000):
    """Clicks on every other group of items."""
    generator = torch.Generator().manual_seed(0)
    ids = torch.stack([torch.randint(0, n, (events,), generator=generator) for n in (users, items)], dim=1)
    labels = (ids[:, 1] // 50 % 2).float()
    return ClickData(("user", "item"), (users, items), ids, labels, torch.arange(events).split(events // 3))


@pytest.mark.parametrize("model", ["mf", "dlrm"])
@pytest.mark.parametrize("method", [Method("full"), Method("low_dim", 2), Method("qr", 16), Method("tt", 4, "cluster")])
def test_every_method_builds_and_counts_its_numbers(model, method):
    data = planted()
    built = build(model, data, method)
    assert built(data.ids[:7]).shape == (7,)
    held = sum(p.numel() for table in built.tables for p in table.parameters())
    assert compression(built, data) == pytest.approx(1100 * 32 / held)
    assert 0 <= evaluate(built, data, 2) <= 1
    assert make_table(method, data, 0)(torch.zeros(1, 1, dtype=torch.int64)).shape == (1, 32)


def test_tuning_learns_a_planted_pattern_and_is_repeatable():
    budget = Budget(batch=256, epochs=3, seeds=2)
    results = [tuned("dlrm", planted(), Method("tt", 4, "cluster"), budget)[0] for _ in range(2)]
    assert results[0] == results[1]
    assert min(results[0].aucs) > 0.8
