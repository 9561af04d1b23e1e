"""How well latencies are predicted: on the shipped measurements, on public ones, and where it counts, in ranking.

    python -m benchmarks.costmodel [part ...]
    python -m benchmarks.costmodel --all-to-all FILE    fit on the public 4-process set, judge this file of its columns

Parts: own, public, all_to_all, small_data, speed, ranking, monotone; all of them by default. Held-out groups
hold no table that was trained on. The last line is one JSON object.
"""

import argparse
import json
import time
import warnings
from collections.abc import Callable
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from scipy.stats import kendalltau

from benchmarks.all_to_all_costs import all_to_all
from benchmarks.cost_ranking import TIMING, measure_task
from benchmarks.public_costs import fused_data, ten_parts
from benchmarks.public_data import public_data
from shardgym.costmodel.fit import FitOptions, fit_additive, fit_network, phase_errors
from shardgym.costmodel.measuring.drift import without_drift
from shardgym.costmodel.measuring.meter import Meter
from shardgym.costmodel.networks.dreamshard_network import DreamShardCost, features_with_batch, published_features
from shardgym.costmodel.networks.training import train
from shardgym.costmodel.pricing.ranges import OutOfRangeWarning
from shardgym.costmodel.shipped import shipped_cost, shipped_samples
from shardgym.costmodel.splits import Split, split_by_tables
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.placements import UNPLACED
from shardgym.problem.tasks import Task

OPTIONS = FitOptions(members=3)
DREAMSHARD_STEPS = 3_000
"""As published: 10 iterations of 300."""
TASKS = 50
console = Console(width=110)


def own_split() -> Split:
    """The shipped groups, a seventh of the pools held out."""
    return split_by_tables(without_drift(shipped_samples()), held_out=0.15, seed=1)


def own() -> dict[str, Any]:
    """Errors of the network, the additive model and DreamShard's network on held-out groups."""
    split = own_split()
    models = {
        "own": fit_network(split.train, OPTIONS),
        "own_additive": fit_additive(split.train),
        "own_dreamshard": DreamShardCost.fit(split.train, DREAMSHARD_STEPS, published_features),
        "own_dreamshard_with_batch": DreamShardCost.fit(split.train, DREAMSHARD_STEPS, features_with_batch),
    }
    rows = {name: phase_errors(model, split.test) for name, model in models.items()}
    dense = [s for s in split.test if all(t.tensor_train is None and t.dedup.factor() == 1 for t in s.tables)]
    rows["own_dense_groups"] = phase_errors(models["own"], dense)
    show = Table(title=f"own: {len(split.train):,} groups to train on, {len(split.test):,} of unseen tables")
    for column in ("model", "forward", "backward", "step (median APE / Kendall tau)"):
        show.add_column(column)
    for name, errors in rows.items():
        show.add_row(name, *(f"{100 * e.median_ape:.2f}% / {e.kendall_tau:.3f}" for e in errors.values()))
    console.print(show)
    return {name: {phase: asdict(e) for phase, e in errors.items()} for name, errors in rows.items()}


def public() -> dict[str, Any]:
    """The public measurements: fused costs of 4 and 8 processes."""
    found: dict[str, Any] = {}
    tables = public_data("dlrm_tables_856.parquet")
    for name in ("4proc", "8proc"):
        path = public_data(f"fbgemm_cpu_fused_{name}.parquet")
        if path is None or tables is None:
            console.print(f"public {name}: the data is not on this machine")
            continue
        found[f"fbgemm_{name}"] = _public_fused(fused_data(path, tables))
    show = Table(title="public: last tenth of the groups")
    for column in ("file", "median APE", "Kendall tau"):
        show.add_column(column)
    for name, row in found.items():
        show.add_row(name, f"{100 * row['median_ape']:.2f}%", f"{row['kendall_tau']:.4f}")
    console.print(show)
    return {"public": found}


def _public_fused(data) -> dict[str, float]:
    training, validation, testing = (torch.from_numpy(part) for part in ten_parts(len(data)))
    test = data.take(testing)
    members = []
    for seed in range(3):
        network = train(data.take(torch.cat([training, validation])), replace(OPTIONS, epochs=60, seed=seed))
        with torch.no_grad():
            members.append(network(test.features, test.group_of(), len(test))[:, 0].numpy())
    return _errors(np.mean(members, axis=0), test.targets[:, 0].numpy())


def _errors(predicted: np.ndarray, measured: np.ndarray) -> dict[str, float]:
    ape = np.abs(predicted - measured) / measured
    return {"median_ape": float(np.median(ape)), "kendall_tau": float(kendalltau(predicted, measured).statistic)}


def small_data() -> dict[str, Any]:
    """Error of the step against the number of training groups."""
    split = own_split()
    order = np.random.default_rng(0).permutation(len(split.train))
    found = {}
    for count in (100, 300, 1000, len(split.train)):
        chosen = [split.train[k] for k in order[:count]]
        epochs = max(OPTIONS.epochs, min(400, 60_000 // count))
        found[str(count)] = phase_errors(fit_network(chosen, FitOptions(epochs=epochs)), split.test)["step"].median_ape
        console.print(f"small_data: {count:,} groups, step median APE {100 * found[str(count)]:.2f}%")
    return {"small_data": found}


def speed() -> dict[str, Any]:
    """Device costs per second in batches of placements, and the time of one placement's cost."""
    model, rng = shipped_cost(), np.random.default_rng(0)
    task = Task(dlrm_like(50, seed=5, row_scale=0.3), (2**40,) * 8, 4096)
    device_of = rng.integers(8, size=(2000, 50))
    batched = _best_seconds(lambda: model.costs(task, device_of), 7)
    single = _best_seconds(lambda: model.costs(task, device_of[:1]), 300)
    found = {"device_costs_per_s": device_of.shape[0] * 8 / batched, "single_ms": 1e3 * single}
    console.print(f"speed: {found['device_costs_per_s']:,.0f} device costs/s, single {found['single_ms']:.3f} ms")
    return {"speed": found}


def _best_seconds(run: Callable[[], object], times: int) -> float:
    """Median seconds of a run, after one warm-up."""
    run()
    seconds = []
    for _ in range(times):
        start = time.perf_counter()
        run()
        seconds.append(time.perf_counter() - start)
    return float(np.median(seconds))


def ranking() -> dict[str, Any]:
    """Measured cost of the placement ranked best, over the best measured of 30, for 50 tasks of unseen tables."""
    torch.set_num_threads(1)
    meter, model = Meter(timing=TIMING), shipped_cost()
    ranked = [measure_task(number, meter).ranked(model) for number in range(TASKS)]
    ratios = [one.ratio for one in ranked]
    chance = np.mean([one.measured.mean() / one.measured.min() for one in ranked])
    found = {"mean_ratio": float(np.mean(ratios)), "worst_ratio": max(ratios), "mean_of_random_choice": float(chance)}
    console.print(f"ranking: mean {found['mean_ratio']:.4f}, worst {max(ratios):.4f}; a random choice {chance:.3f}")
    return {"ranking": found}


def monotone() -> dict[str, Any]:
    """Share of random groups to which another table was added without lowering any phase of the device."""
    model, rng = shipped_cost(), np.random.default_rng(1)
    held = 0
    for seed in range(20):
        task = Task(dlrm_like(40, seed=seed, row_scale=0.3), (2**40,) * 3, int(rng.integers(512, 65536)))
        device_of = rng.integers(UNPLACED, 3, size=(100, 40))
        added = rng.integers(40, size=100)
        device_of[np.arange(100), added] = UNPLACED
        more = device_of.copy()
        more[np.arange(100), added] = 0
        held += int((model.costs(task, more).phases >= model.costs(task, device_of).phases).all(axis=(1, 2)).sum())
    console.print(f"monotone: {held} of 2000")
    return {"monotone_share": held / 2000}


PARTS = {part.__name__: part for part in (own, public, all_to_all, small_data, speed, ranking, monotone)}


def main() -> None:
    """Run the parts and print the JSON line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("parts", nargs="*", choices=[*PARTS, []], help="all by default")
    parser.add_argument("--all-to-all", type=Path, metavar="FILE")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore", OutOfRangeWarning)
    if arguments.all_to_all is not None:
        record = all_to_all(arguments.all_to_all)
    else:
        record = {}
        for name in arguments.parts or PARTS:
            record |= PARTS[name]()
    if "all_to_all" in record:
        console.print(record["all_to_all"])
    print(json.dumps(record))


if __name__ == "__main__":
    main()
