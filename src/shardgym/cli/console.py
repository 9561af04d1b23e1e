"""Progress bars and tables on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from rich.console import Console
from rich.progress import (
    BarColumn,
    Progress as Bars,
    TaskID,
    TaskProgressColumn,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from shardgym.problem.plan_files import Plan
from shardgym.problem.progress import Progress
from shardgym.problem.tables import TableSpec
from shardgym.problem.units import human_bytes

if TYPE_CHECKING:
    from shardgym.costmodel.measuring.repeatability import Disagreement
    from shardgym.workflow import Fit

console = Console()


@contextmanager
def progress_bars(to: Console = console) -> Iterator[Progress]:
    """What draws the progress of long work: a bar per stage, made when the stage is first heard of."""
    columns = (TextColumn("{task.description}"), BarColumn(), TaskProgressColumn(), TimeElapsedColumn())
    with Bars(*columns, TimeRemainingColumn(), TextColumn("{task.fields[note]}"), console=to) as bars:
        shown: dict[str, TaskID] = {}

        def move(stage: str, done: float, total: float, note: str = "") -> None:
            if stage not in shown:
                shown[stage] = bars.add_task(stage, total=total, note="")
            bars.update(shown[stage], completed=done, total=total, note=note)

        yield move


def show_tables(tables: tuple[TableSpec, ...], most: int = 12) -> None:
    """Print a table set: its largest members, and its totals."""
    view = Table(title=f"{len(tables)} tables, {human_bytes(sum(t.bytes() for t in tables))} with optimizer state")
    for column in ("name", "rows", "dim", "pooling", "dtype", "memory"):
        view.add_column(column, justify="left" if column in ("name", "dtype") else "right")
    for table in sorted(tables, key=TableSpec.bytes, reverse=True)[:most]:
        view.add_row(
            table.name, f"{table.rows:,}", str(table.dim), f"{table.pooling:g}", table.dtype, human_bytes(table.bytes())
        )
    if len(tables) > most:
        view.caption = f"the {most} largest; {len(tables) - most} more"
    console.print(view)


def show_fit(fitted: "Fit") -> None:
    """Print held-out errors, a row per model."""
    console.print(f"fitted on {fitted.train} groups, held out {fitted.test}")
    view = Table(title="Held-out error: median |predicted - measured| / measured, and Kendall's tau")
    view.add_column("model")
    for phase in ("forward", "backward", "step"):
        view.add_column(phase, justify="right")
    for model, by_phase in fitted.errors.items():
        view.add_row(model, *(f"{e.median_ape:.1%}  tau {e.kendall_tau:.3f}" for e in by_phase.values()))
    console.print(view)


def show_disagreement(apart: "Disagreement") -> None:
    """Print how far two measurements of the same groups are apart."""
    console.print("median disagreement of groups measured twice:")
    for kind, (forward, backward) in vars(apart).items():
        console.print(f"  {kind.replace('_', ' '):14} forward {forward:.1%}, backward {backward:.1%}")


def show_plan(plan: Plan) -> None:
    """Print a plan: a row a method, predicted beside measured."""
    task = plan.task
    view = Table(
        title=f"{task.name}: {len(task.tables)} tables on {task.devices} devices, batch {task.batch_size:,}",
        caption="step latency in ms; memory of the fullest device; chosen by prediction: in bold",
    )
    view.add_column("method", no_wrap=True)
    for column in ("predicted", "measured", "error", "memory", "planning"):
        view.add_column(column, justify="right")
    chosen = plan.chosen().method
    for candidate in sorted(plan.candidates, key=lambda c: float(c.predicted.step)):
        predicted = float(candidate.predicted.step)
        measured = float(candidate.measured.step) if candidate.measured else None
        fullest = (candidate.placement.memory(task) / task.device_memory).max()
        view.add_row(
            candidate.method,
            f"{predicted:.3f}",
            f"{measured:.3f}" if measured else "-",
            f"{predicted / measured - 1:+.1%}" if measured else "-",
            f"{fullest:.0%}",
            f"{candidate.planning_seconds * 1e3:.1f} ms",
            style="bold" if candidate.method == chosen else "",
        )
    console.print(view)
    for method, reason in plan.failures.items():
        console.print(f"[red]{method} found no placement:[/] {reason}")
    for sentence in plan.caveats:
        console.print(f"note: {sentence}", soft_wrap=True, markup=False)
