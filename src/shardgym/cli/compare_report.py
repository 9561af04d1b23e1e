"""A comparison of planners as a table for the terminal, as JSON, and as one HTML page with plots."""

import base64
import io
from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.figure import Figure
from rich.table import Table

from shardgym.agents.judging.compare import Summary, Trial
from shardgym.cli.pages import write_page
from shardgym.problem.files import write_json

COLUMNS = (
    "family", "planner", "budget s", "mean", "p95", "worst", "to", "feasible", "plan s", "to the first (95%)",
    "measured ms",
)  # fmt: skip

EXTRAPOLATED = " *"
"""Behind a family whose costs rest on extrapolation in part."""


def rich_table(summaries: Sequence[Summary], title: str = "planners") -> Table:
    """For the terminal."""
    caption = "* costs of this family rest on extrapolation in part" if any(s.extrapolated for s in summaries) else None
    table = Table(title=title, caption=caption)
    for name in COLUMNS:
        table.add_column(name, justify="left" if name in ("family", "planner", "to") else "right")
    for row in map(_row, summaries):
        table.add_row(*row)
    return table


def write_trials(path: Path, trials: Sequence[Trial], summaries: Sequence[Summary]) -> None:
    """Every trial and the summary, atomically."""
    record = {"summary": [asdict(s) for s in summaries], "trials": [_trial(t) for t in trials]}
    write_json(Path(path), record)


def write_html(path: Path, trials: Sequence[Trial], summaries: Sequence[Summary], about: str) -> None:
    """One page that needs no other file, atomically."""
    failures = [f"{t.family}, {t.planner} at {t.budget:g} s: {t.failure}" for t in trials if t.failure]
    plots = [(name, _plot([s for s in summaries if s.family == name])) for name in _families(summaries)]
    rows = [_row(s) for s in summaries]
    write_page(path, "compare.html.j2", about=about, columns=COLUMNS, rows=rows, plots=plots, failures=failures)


def _families(summaries: Sequence[Summary]) -> list[str]:
    return list(dict.fromkeys(s.family for s in summaries))


def _row(s: Summary) -> tuple[str, ...]:
    mean, low, high = s.against_first
    paired = "" if np.isnan(mean) else f"{mean:.4f} [{low:.4f}, {high:.4f}]"
    measured = "" if s.measured is None else f"{s.measured:.2f}"
    ratios = ("-" if np.isnan(value) else f"{value:.4f}" for value in (s.mean, s.p95, s.worst))
    return (
        f"{s.family}{EXTRAPOLATED if s.extrapolated else ''}",
        s.planner,
        f"{s.budget:g}",
        *ratios,
        s.to,
        f"{s.feasible:.0%}",
        f"{s.seconds:.3f}",
        paired,
        measured,
    )


def _trial(trial: Trial) -> dict[str, Any]:
    record = asdict(trial)
    record["placement"] = list(trial.placement.device_of) if trial.placement else None
    return record


def _plot(summaries: Sequence[Summary]) -> str:
    """Mean ratio against planning time, a line for each planner; base64 of a PNG."""
    figure = Figure(figsize=(7, 3.6), layout="constrained")
    axes = figure.subplots()
    for planner in dict.fromkeys(s.planner for s in summaries):
        points = [(max(s.seconds, 1e-4), s.mean) for s in summaries if s.planner == planner]
        axes.plot(*zip(*points), marker="o", label=planner)
    axes.set_xscale("log")
    axes.set_xlabel("planning time, s")
    axes.set_ylabel(f"step / {summaries[0].to}")
    axes.set_title(summaries[0].family)
    axes.legend(fontsize=7, loc="center left", bbox_to_anchor=(1, 0.5))
    image = io.BytesIO()
    figure.savefig(image, format="png", dpi=110)
    return base64.b64encode(image.getvalue()).decode()
