"""Plans as one self-contained HTML page: stacked bars per device, memory, the table of methods."""

import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from shardgym.cli.pages import write_page
from shardgym.problem.costs import PHASES, StepCost
from shardgym.problem.plan_files import Candidate, Plan
from shardgym.problem.units import human_bytes

COLOURS = {"forward": "#3b6ea8", "forward_comm": "#9dc1e3", "backward_comm": "#f0c48a", "backward": "#d9822b"}


def write_report(path: Path, plans: Sequence[Plan]) -> None:
    """Write the page, atomically."""
    communicates = any(c.predicted.phase("forward_comm").any() for plan in plans for c in plan.candidates)
    write_page(path, "report.html.j2", plans=[plan_view(plan) for plan in plans], communicates=communicates)


def plan_figure(plan: Plan) -> Figure:
    """Three panels: every method's step, the chosen plan's phases per device, and its memory per device."""
    chosen = plan.chosen()
    figure = Figure(figsize=(13, 3.6), layout="constrained")
    methods, latency, memory = figure.subplots(1, 3, width_ratios=(1.2, 1, 1))
    _method_bars(methods, plan)
    if chosen.measured is None:
        _stack_phases(latency, chosen.predicted, 0.0, 0.7, "predicted")
    else:
        _stack_phases(latency, chosen.predicted, -0.2, 0.36, "predicted")
        _stack_phases(latency, chosen.measured, 0.2, 0.36, "measured", hatch="///")
    latency.set(title=f"{chosen.method}: phases", xlabel="device", ylabel="ms", xticks=range(plan.task.devices))
    latency.margins(y=0.35)
    latency.legend(fontsize=7, ncols=2, loc="upper center")
    _stack_memory(memory, plan, chosen)
    return figure


def _method_bars(axes: Axes, plan: Plan) -> None:
    """Step latency of each method, predicted beside measured, the best on top."""
    candidates = sorted(plan.candidates, key=lambda c: -float(c.predicted.step))
    at = np.arange(len(candidates))
    axes.barh(at + 0.2, [float(c.predicted.step) for c in candidates], 0.36, color="#5b7fa6", label="predicted")
    measured = [float(c.measured.step) if c.measured else 0.0 for c in candidates]
    if any(measured):
        axes.barh(at - 0.2, measured, 0.36, color="#c9d6e4", hatch="///", label="measured")
    axes.set_yticks(at, [c.method for c in candidates])
    axes.set(title=f"{plan.task.name}: step latency", xlabel="ms")
    axes.legend(fontsize=7)


def _stack_phases(axes: Axes, cost: StepCost, shift: float, width: float, kind: str, hatch: str = "") -> None:
    at = np.arange(len(cost.phases)) + shift
    bottom = np.zeros(len(at))
    for name in PHASES:
        heights = cost.phase(name)
        if heights.any():
            axes.bar(at, heights, width, bottom, color=COLOURS[name], hatch=hatch, label=f"{name}, {kind}")
        bottom += heights


def _stack_memory(axes: Axes, plan: Plan, chosen: Candidate) -> None:
    gigabytes = plan.task.table_bytes / 1e9
    for device, capacity in enumerate(plan.task.device_memory):
        bottom = 0.0
        for t in sorted(chosen.placement.tables_on(device), key=lambda t: -gigabytes[t]):
            axes.bar(device, gigabytes[t], 0.7, bottom, color="#7a9e7e", edgecolor="white", linewidth=0.5)
            bottom += gigabytes[t]
        axes.hlines(capacity / 1e9, device - 0.42, device + 0.42, color="#a33")
    axes.set(title="memory by table, line: capacity", xlabel="device", ylabel="GB")
    axes.set_xticks(range(plan.task.devices))


def plan_view(plan: Plan) -> dict[str, Any]:
    """What the page says of one plan."""
    task, chosen = plan.task, plan.chosen()
    drawing = io.StringIO()
    plan_figure(plan).savefig(drawing, format="svg", metadata={"Date": None})
    used = chosen.placement.memory(task)
    device_ms = chosen.predicted.phases.sum(axis=1)
    return {
        "name": task.name,
        "tables": len(task.tables),
        "bytes": human_bytes(float(task.table_bytes.sum())),
        "devices": task.devices,
        "batch_size": f"{task.batch_size:,}",
        "cost_model": plan.cost_model,
        "chosen": chosen.method,
        "why": explain(plan),
        "figure": drawing.getvalue()[drawing.getvalue().index("<svg") :],
        "methods": [_method_view(plan, c) for c in sorted(plan.candidates, key=lambda c: float(c.predicted.step))],
        "failures": plan.failures,
        "caveats": plan.caveats,
        "by_device": [
            {
                "tables": [_table_view(task.tables[t]) for t in chosen.placement.tables_on(device)],
                "used": human_bytes(float(used[device])),
                "capacity": human_bytes(task.device_memory[device]),
                "predicted": f"{device_ms[device]:.3f} ms",
            }
            for device in range(task.devices)
        ],
    }


def explain(plan: Plan) -> str:
    """Why the chosen plan, in a sentence: its step against the others', and how even its devices are."""
    chosen = plan.chosen()
    step = float(chosen.predicted.step)
    others = [float(c.predicted.step) for c in plan.candidates if c is not chosen]
    busy = chosen.predicted.phases.sum(axis=1)
    even = busy.mean() / max(busy.max(), 1e-12)
    slowest = int(busy.argmax())
    against = f"{1 - step / min(others):.1%} less than the next best method; " if others else ""
    return (
        f"a predicted step of {step:.3f} ms, {against}device {slowest} is the slowest, and the average device is busy "
        f"{even:.0%} as long."
    )


def _method_view(plan: Plan, candidate: Candidate) -> dict[str, str]:
    predicted = float(candidate.predicted.step)
    measured = float(candidate.measured.step) if candidate.measured else None
    return {
        "method": candidate.method,
        "predicted": f"{predicted:.3f} ms",
        "measured": f"{measured:.3f} ms" if measured else "-",
        "error": f"{predicted / measured - 1:+.1%}" if measured else "-",
        "fullest": f"{(candidate.placement.memory(plan.task) / plan.task.device_memory).max():.0%}",
        "seconds": f"{candidate.planning_seconds * 1e3:.1f} ms",
    }


def _table_view(table: Any) -> dict[str, Any]:
    kind = table.dtype if table.tensor_train is None else f"{table.dtype} tensor train {table.tensor_train.ranks}"
    return {
        "name": table.name,
        "rows": table.rows,
        "dim": table.dim,
        "pooling": table.pooling,
        "format": kind,
        "memory": human_bytes(table.bytes()),
    }
