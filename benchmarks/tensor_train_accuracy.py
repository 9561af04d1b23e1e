"""Accuracy of compressed tables on real clicks and ratings, each tuned on validation, beside a tuned full table.

Every method gets its learning rate and weight decay chosen by validation AUC, and every run its epoch; the test part is
looked at once, at that epoch. Row orders come from training events alone.
"""

import copy
import itertools
import multiprocessing
import statistics
from concurrent.futures import ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from functools import cache

import torch
import torch.nn.functional as F
from rich.progress import Progress
from torch import Tensor, nn

from benchmarks.tensor_train_data import SOURCES, ClickData
from benchmarks.tensor_train_models import MatrixFactorization, SmallDLRM
from shardgym.embeddings.tables.compressed import LowDimEmbeddingBag, QREmbeddingBag, QuantizedEmbeddingBag
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule
from shardgym.embeddings.tensor_train.row_order import cluster_order, frequency_order

DIM = 32
STD = {"tt": 0.02}
"""Of a table's first values, by kind; OTHER_STD elsewhere. Trains learn sooner from smaller ones, rows from larger."""

OTHER_STD = 0.05
COMPRESSED_FROM = 500
"""Fields with at least so many values are compressed; the rest stays full in every method."""

RATES, DECAYS = (1e-2,), (0.1, 0.3)
FULL_RATES, FULL_DECAYS = (3e-3, 1e-2), (0.0, 0.1, 1.0, 4.0)
"""The full table is tuned over more settings: it must not lose for want of tuning."""

PATIENCE = 2
"""Epochs without a better validation AUC after which a run ends."""


@dataclass(frozen=True)
class Method:
    """A way to hold the large tables.

    Args:
        kind: "full", "low_dim", "qr" or "tt".
        size: numbers a row (low_dim), ids a bucket (qr) or rank (tt).
        order: "given", "frequency" or "cluster" (tt).
        cached: whether a tensor train has a cache of 5% of its rows, filled as it trains.
    """

    kind: str
    size: int = 0
    order: str = "given"
    cached: bool = False

    @property
    def name(self) -> str:
        """Key of the results."""
        if self.kind == "tt":
            return f"tt_r{self.size}_{self.order}" + "_cached" * self.cached
        return f"{self.kind}_{self.size}" if self.kind == "low_dim" else self.kind


@dataclass(frozen=True)
class Result:
    """One method on one data set and model: test AUCs over seeds, and the compression of all tables together."""

    method: str
    compression: float
    aucs: tuple[float, ...]
    rate: float
    decay: float

    def record(self) -> dict[str, float]:
        """For the JSON line."""
        return {
            "compression": round(self.compression, 2),
            "auc_mean": round(statistics.mean(self.aucs), 5),
            "auc_std": round(statistics.stdev(self.aucs) if len(self.aucs) > 1 else 0.0, 5),
        }


@dataclass(frozen=True)
class Budget:
    """How long to train."""

    batch: int
    epochs: int
    seeds: int


def methods(ranks: tuple[int, int], low_dims: tuple[int, int]) -> list[Method]:
    """All that is compared; tensor trains at two ranks, low dimensions of about their sizes."""
    others = [Method("full"), *(Method("low_dim", size) for size in low_dims), Method("qr", 16)]
    trains = itertools.product(ranks, ("given", "frequency", "cluster"))
    return others + [Method("tt", rank, order) for rank, order in trains]


def make_table(method: Method, data: ClickData, field: int) -> nn.Module:
    """The table of one large field."""
    rows, std = data.sizes[field], STD.get(method.kind, OTHER_STD)
    if method.kind == "full":
        return full_table(rows, DIM)
    if method.kind == "low_dim":
        return LowDimEmbeddingBag(rows, DIM, method.size, std=std)
    if method.kind == "qr":
        return QREmbeddingBag(rows, DIM, buckets=rows // method.size, std=std)
    cache = {}
    if method.cached:
        schedule = CacheSchedule(warmup_steps=20, refresh_every=40, track_every=5)
        cache = {"cache_rows": rows // 20, "cache_schedule": schedule}
    order = row_orders(data)[method.order].get(field)
    return TTEmbeddingBag(rows, DIM, method.size, row_order=order, init_std=std, **cache)


def full_table(rows: int, dim: int) -> nn.Module:
    """A plain table with normal first values."""
    table = nn.EmbeddingBag(rows, dim, mode="sum")
    nn.init.normal_(table.weight, std=OTHER_STD if dim > 1 else 1e-3)
    return table


def large_fields(data: ClickData) -> list[int]:
    """Fields whose tables are compressed."""
    return [k for k, rows in enumerate(data.sizes) if rows >= COMPRESSED_FROM]


@cache
def row_orders(data: ClickData) -> dict[str, dict[int, Tensor]]:
    """Orders of every large field, from training events."""
    fields = large_fields(data)
    return {
        "given": {},
        "frequency": {k: frequency_order(data.counts(k)) for k in fields},
        "cluster": {k: cluster_order(data.interactions(k), data.sizes[k]) for k in fields},
    }


def build(model: str, data: ClickData, method: Method) -> nn.Module:
    """The model with its large tables held as the method says."""
    large = set(large_fields(data))
    fields = range(2 if model == "mf" else len(data.sizes))
    tables = [make_table(method, data, k) if k in large else full_table(data.sizes[k], DIM) for k in fields]
    if model == "mf":
        return MatrixFactorization(tables, [full_table(data.sizes[k], 1) for k in (0, 1)])
    return SmallDLRM(tables, DIM)


def compression(model: nn.Module, data: ClickData) -> float:
    """Dense numbers over held numbers of all tables of the model (row orders apart)."""
    tables = list(model.tables)
    dense = sum(data.sizes[k] * DIM for k in range(len(tables)))
    held = sum(sum(p.numel() for p in table.parameters()) for table in tables)
    quantized = [table for table in tables if isinstance(table, QuantizedEmbeddingBag)]
    return dense / (held + sum(table.packed.numel() / 4 for table in quantized))


def auc(scores: Tensor, labels: Tensor) -> float:
    """Area under the ROC curve by the rank sum; ties count half."""
    _, inverse, counts = torch.unique(scores, return_inverse=True, return_counts=True)
    last = counts.cumsum(0).double()
    ranks = (last - (counts - 1) / 2)[inverse]
    positives = labels.sum().double()
    negatives = len(labels) - positives
    return float((ranks[labels > 0].sum() - positives * (positives + 1) / 2) / (positives * negatives))


@torch.no_grad()
def evaluate(model: nn.Module, data: ClickData, part: int) -> float:
    """AUC on validation (1) or test (2)."""
    model.eval()
    ids, labels = data.part(part)
    scores = torch.cat([model(piece) for piece in ids.split(16384)])
    model.train()
    return auc(scores, labels)


def train(
    model: nn.Module, data: ClickData, budget: Budget, rate: float, decay: float, seed: int
) -> tuple[float, dict]:
    """Best validation AUC over epochs, and the weights at that epoch; ends after PATIENCE worse epochs."""
    generator = torch.Generator().manual_seed(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=rate, weight_decay=decay, fused=True)
    ids, labels = data.part(0)
    best, weights, worse = 0.0, {}, 0
    for _ in range(budget.epochs):
        for batch in torch.randperm(len(labels), generator=generator).split(budget.batch):
            loss = F.binary_cross_entropy_with_logits(model(ids[batch]), labels[batch])
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        reached = evaluate(model, data, 1)
        if reached > best:
            best, weights, worse = reached, copy.deepcopy(model.state_dict()), 0
        elif (worse := worse + 1) == PATIENCE:
            break
    return best, weights


def tuned(model_name: str, data: ClickData, method: Method, budget: Budget) -> tuple[Result, list[nn.Module]]:
    """The method with its best learning rate and weight decay, over all seeds; and the trained models."""
    tried: dict[tuple[float, float], tuple[float, nn.Module]] = {}
    full = method.kind == "full"
    for rate, decay in itertools.product(FULL_RATES if full else RATES, FULL_DECAYS if full else DECAYS):
        tried[rate, decay] = _run(model_name, data, method, budget, rate, decay, seed=0)
    rate, decay = max(tried, key=lambda setting: tried[setting][0])
    models = [tried[rate, decay][1]]
    models += [_run(model_name, data, method, budget, rate, decay, seed)[1] for seed in range(1, budget.seeds)]
    aucs = tuple(evaluate(model, data, 2) for model in models)
    return Result(method.name, compression(models[0], data), aucs, rate, decay), models


def _run(
    model_name: str, data: ClickData, method: Method, budget: Budget, rate: float, decay: float, seed: int
) -> tuple[float, nn.Module]:
    torch.manual_seed(seed)
    model = build(model_name, data, method)
    reached, weights = train(model, data, budget, rate, decay, seed)
    model.load_state_dict(weights)
    return reached, model


def quantized(models: list[nn.Module], data: ClickData, full: Result, bits: int) -> Result:
    """The tuned full models with their large tables quantised after training."""
    aucs = []
    for model in models:
        small = copy.deepcopy(model)
        for k in large_fields(data):
            if k < len(small.tables):
                small.tables[k] = QuantizedEmbeddingBag.from_dense(model.tables[k].weight, bits)
        aucs.append(evaluate(small, data, 2))
    return Result(f"int{bits}", compression(small, data), tuple(aucs), full.rate, full.decay)


def run_method(source: str, model: str, method: Method, budget: Budget) -> list[Result]:
    """One method on one data set, and the full table quantised beside it; for a process of its own, on one thread."""
    torch.set_num_threads(1)
    data = SOURCES[source]()
    assert data is not None
    result, models = tuned(model, data, method, budget)
    if method.kind != "full":
        return [result]
    return [result, *(quantized(models, data, result, bits) for bits in (8, 4))]


def compare(source: str, model: str, compared: list[Method], budget: Budget, workers: int) -> list[Result]:
    """Results of the methods, in their order; `workers` methods are trained at a time."""
    with ProcessPoolExecutor(workers, mp_context=multiprocessing.get_context("spawn")) as pool, Progress() as progress:
        runs = [pool.submit(run_method, source, model, method, budget) for method in compared]
        for _ in progress.track(as_completed(runs), total=len(runs), description=f"{source}, {model}"):
            pass
        return [result for run in runs for result in run.result()]
