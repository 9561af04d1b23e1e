"""RecD end to end: what deduplication gives in storage, reading, compute and communication.

    python -m benchmarks.recd [--only SECTION ...]

Prints a table of ratios beside their targets, then one JSON object on the last line. Ratios are of medians of
interleaved rounds in one process, on two threads.
"""

import json
from collections.abc import Callable, Mapping
from typing import Annotated, Any

import typer
from rich.console import Console
from rich.progress import Progress
from rich.table import Table

from benchmarks import recd_compute, recd_exchange, recd_real, recd_storage

SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    **recd_storage.SECTIONS,
    **recd_compute.SECTIONS,
    **recd_exchange.SECTIONS,
    **recd_real.SECTIONS,
}

TARGETS = {
    "storage.generated": 5.0,
    "storage.kuairand": 4.0,
    "reader_samples_per_s": 5.0,
    "batch_bytes": 10.0,
    "preprocess": 3.0,
    "train_step.factor_1_15": 0.95,
    "train_step.factor_5": 2.5,
    "train_step.factor_16": 4.0,
    "attention_over_factor": 0.9,
    "partial_factor": 8.0,
    "grouping_error": 0.05,
    "reader.sessions_4": 1.0,
    "reader.sessions_16": 5.0,
    "reader.sessions_40": 5.0,
    "partial_lookup": 0.98,
    "din_candidates_16": 3.0,
    "slate_step": 2.2,
    "train_step_vs_fbgemm.factor_5": 1.8,
    "train_step_vs_fbgemm.factor_16": 3.0,
}
"""Least value of each ratio; `grouping_error` is the one that must come below."""


def main(only: Annotated[list[str] | None, typer.Option(help="Section to run; all by default.")] = None) -> None:
    """Run the sections and print their numbers."""
    unknown = sorted(set(only or ()) - set(SECTIONS))
    if unknown:
        raise typer.BadParameter(f"no section {unknown}; there are {sorted(SECTIONS)}", param_hint="--only")
    console, numbers = Console(), {}
    with Progress(console=console, transient=True) as progress:
        for name in progress.track(only or list(SECTIONS), description="sections"):
            numbers = merged(numbers, SECTIONS[name]())
    console.print(table_of(numbers))
    print(json.dumps(rounded(numbers)))


def merged(left: Mapping[str, Any], right: Mapping[str, Any]) -> dict[str, Any]:
    """Both objects in one, nested ones too."""
    both = dict(left)
    for key, value in right.items():
        both[key] = merged(both[key], value) if isinstance(value, dict) and key in both else value
    return both


def flat(numbers: Mapping[str, Any], prefix: str = "") -> dict[str, float]:
    """Nested numbers under dotted names."""
    found: dict[str, float] = {}
    for key, value in numbers.items():
        found.update(flat(value, f"{prefix}{key}.") if isinstance(value, dict) else {prefix + key: value})
    return found


def rounded(numbers: Mapping[str, Any]) -> dict[str, Any]:
    """Four digits are more than the spread allows to tell apart."""
    return {k: rounded(v) if isinstance(v, dict) else float(f"{v:.4g}") for k, v in numbers.items()}


def table_of(numbers: Mapping[str, Any]) -> Table:
    """Each number beside its target."""
    table = Table("number", "measured", "target", title="RecD: ratios, bigger is better")
    for name, value in flat(numbers).items():
        target = TARGETS.get(name)
        sign = "<=" if name == "grouping_error" else ">="
        table.add_row(name, f"{value:.3f}", "" if target is None else f"{sign} {target}")
    return table


if __name__ == "__main__":
    typer.run(main)
