"""Tensor-train tables measured: `python -m benchmarks.tensor_train [--only SECTION] [--quick]`.

Sections: speed (a step, forward, memory), one_core (steps on one core, small calls, long bags, a second thread), drift
(the cache after the hot ids moved), compression, accuracy-DATA-MODEL for two data sets and two models, cache
(quality with and without it). Prints tables, then one JSON object as the last line. Wants two quiet cores.
"""

import argparse
import json
import os
from functools import partial

# Idle threads must not spin while others measure.
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")

import torch
from rich.console import Console
from rich.table import Table

from benchmarks import (
    tensor_train_accuracy as accuracy,
    tensor_train_data as real,
    tensor_train_speed as speed,
    tensor_train_targets as targets,
)

THREADS = 2
RANKS = {"kuairand": (16, 8), "ml100k": (8, 4)}
LOW_DIMS = (2, 1)
console = Console(width=120)


def run_speed(quick: bool) -> dict:
    """Step and forward against nn.EmbeddingBag and naive torch, and the memory of a step."""
    processes = speed.OtherProcesses()
    measured, cache = speed.measure_speed(steps=9 if quick else 25)
    others = processes.share()
    table = Table("traffic", "contestant", "step, ms", "forward, ms", "step / EmbeddingBag")
    for traffic, found in measured.items():
        base = found["embedding_bag"][0]
        for name, times in found.items():
            table.add_row(traffic, name, f"{times[0]:.2f}", f"{times[1]:.2f}", f"{times[0] / base:.2f}")
    console.print(table)
    plain = {name: found for name, found in measured.items() if "naive_torch" in found}
    naive = {name: found["naive_torch"][0] / found["tensor_train"][0] for name, found in plain.items()}
    cached = measured["zipf_1.2_cached"]
    memory = speed.step_memory_mb()
    console.print(f"other processes used {100 * others:.0f}% of the processors meanwhile")
    console.print(f"one uniform step takes {memory:.1f} MB beyond the parameters, outputs included")
    return {
        "step_vs_embedding_bag": _ratios(plain, "tensor_train", 0),
        "step_vs_embedding_bag_chosen_shape": _ratios(plain, "tensor_train_chosen_shape", 0),
        "cached_step_vs_embedding_bag": _round(cached["tensor_train"][0] / cached["embedding_bag"][0]),
        "cache": {name: _round(value) for name, value in cache.items()},
        "forward_vs_embedding_bag": _ratios(plain, "tensor_train", 1),
        "speedup_vs_naive_torch": _round(min(naive.values())),
        "speedup_vs_naive_torch_by_traffic": {name: _round(ratio) for name, ratio in naive.items()},
        "extra_memory_mb": _round(memory),
        "other_processes_cpu_share": _round(others),
    }


def _ratios(measured: dict, contestant: str, which: int) -> dict[str, float]:
    return {name: _round(found[contestant][which] / found["embedding_bag"][which]) for name, found in measured.items()}


def _round(value: float) -> float:
    return round(float(value), 3)


def run_compression(quick: bool) -> dict:
    """Whole-embedding compression of the Criteo models."""
    del quick  # arithmetic: nothing to shorten
    found = speed.compressions()
    table = Table("case", "compression", "published")
    for (name, ratio), published in zip(found.items(), (117, 221, 112)):
        table.add_row(name, f"{ratio:.1f}x", f"{published}x")
    console.print(table)
    console.print(f"largest padding: {100 * speed.largest_padding():.2f}% of a table's rows")
    return {"compression": {name: _round(ratio) for name, ratio in found.items()}}


def run_accuracy(source: str, model: str, quick: bool) -> dict:
    """Every method on one data set, with one model."""
    if real.SOURCES[source]() is None:
        return _skipped(f"accuracy-{source}-{model}", real.HOW_TO_GET[source])
    compared = accuracy.methods(RANKS[source], LOW_DIMS)
    results = accuracy.compare(source, model, compared, _budget(source, quick), THREADS)
    _print_results(f"{source}, {model}", results)
    return {"accuracy": {f"{source}_{model}": {result.method: result.record() for result in results}}}


def _budget(source: str, quick: bool) -> accuracy.Budget:
    batch = {"kuairand": 2048, "ml100k": 512}[source]
    return accuracy.Budget(batch, epochs=2 if quick else 6, seeds=1 if quick else 3)


def _print_results(title: str, results: list[accuracy.Result]) -> None:
    table = Table("method", "compression", "test AUC", "std", "rate", "decay", title=title)
    for result in results:
        record = result.record()
        table.add_row(
            result.method, f"{result.compression:.1f}x", f"{record['auc_mean']:.4f}", f"{record['auc_std']:.4f}",
            f"{result.rate:g}", f"{result.decay:g}",
        )  # fmt: skip
    console.print(table)


def _skipped(section: str, how_to: str) -> dict:
    console.print(f"{section}: skipped, its data is not here ({how_to})")
    return {"skipped": {section: how_to}}


def run_cache(quick: bool) -> dict:
    """Quality with and without the hot-row cache: a DLRM on KuaiRand, cluster order, rank 8."""
    if real.kuairand() is None:
        return _skipped("cache", real.HOW_TO_GET["kuairand"])
    compared = [accuracy.Method("tt", 8, "cluster", cached) for cached in (False, True)]
    results = accuracy.compare("kuairand", "dlrm", compared, _budget("kuairand", quick), THREADS)
    _print_results("with and without a cache of 5% of the rows", results)
    return {"convergence": {name: r.record() for name, r in zip(("without_cache", "with_cache"), results)}}


def run_one_core(quick: bool) -> dict:
    """Steps on one core over nn.EmbeddingBag's, small calls, long bags, and what a second thread gives."""
    found = targets.measure(steps=5 if quick else 15)
    table = Table("measured", "value")
    for name, value in targets.flat(found).items():
        table.add_row(name, f"{value:.2f}")
    console.print(table)
    return found


def run_drift(quick: bool) -> dict:
    """Hit rate of a refreshed cache after the hot ids moved, over what it was before."""
    del quick  # a few seconds
    recovery = targets.drift_recovery()
    console.print(f"hit rate two refreshes after a drift, over that before: {recovery:.2f}")
    return {"drift_recovery": _round(recovery)}


RUN = {
    "speed": run_speed,
    "one_core": run_one_core,
    "drift": run_drift,
    "compression": run_compression,
    **{f"accuracy-{s}-{m}": partial(run_accuracy, s, m) for s in ("ml100k", "kuairand") for m in ("mf", "dlrm")},
    "cache": run_cache,
}


def merged(parts: list[dict]) -> dict:
    """One object of all sections; `accuracy` and `skipped` gather what several sections give."""
    whole: dict = {}
    for part in parts:
        for key, value in part.items():
            if isinstance(value, dict):
                whole.setdefault(key, {}).update(value)
            else:
                whole[key] = value
    return whole


def main() -> None:
    """Run the sections asked for."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", choices=RUN, action="append", help="a section; may be given several times")
    parser.add_argument("--quick", action="store_true", help="fewer steps, epochs and seeds")
    asked = parser.parse_args()
    torch.set_num_threads(THREADS)
    parts = [RUN[section](asked.quick) for section in asked.only or RUN]
    print(json.dumps({"benchmark": "tensor_train", "threads": THREADS, "torch": torch.__version__} | merged(parts)))


if __name__ == "__main__":
    main()
