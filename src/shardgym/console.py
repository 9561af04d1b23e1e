"""How the commands speak: progress bars and tables on the terminal."""

from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TaskID,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from shardgym.costmodel.fit import PhaseError
from shardgym.costmodel.plan_file import Plan
from shardgym.embeddings.tables import TableSpec

console = Console()


class Bar:
    """One line of progress."""

    def __init__(self, progress: Progress, task: TaskID) -> None:
        self._progress, self._task = progress, task

    def at(self, completed: float, note: str = "") -> None:
        """Move the bar to `completed` of its total."""
        self._progress.update(self._task, completed=completed, note=note)

    def step(self, note: str = "") -> None:
        """Move the bar by one."""
        self._progress.update(self._task, advance=1, note=note)


@contextmanager
def bar(what: str, total: float, unit: str = "") -> Iterator[Bar]:
    """A progress bar that counts to `total`; whole counts are shown, seconds are not."""
    count = [MofNCompleteColumn()] if unit != "s" else []
    columns = [TextColumn("{task.description}"), BarColumn(), *count, TimeElapsedColumn(), TimeRemainingColumn()]
    with Progress(*columns, TextColumn("{task.fields[note]}"), console=console) as progress:
        yield Bar(progress, progress.add_task(what, total=total, note=""))


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


def show_errors(errors: dict[str, dict[str, PhaseError]]) -> None:
    """Print held-out errors, a row a model."""
    view = Table(title="Held-out error: median |predicted - measured| / measured, and Kendall's tau")
    view.add_column("model")
    for phase in ("forward", "backward", "step"):
        view.add_column(phase, justify="right")
    for model, by_phase in errors.items():
        view.add_row(model, *(f"{e.median_ape:.1%}  tau {e.kendall_tau:.3f}" for e in by_phase.values()))
    console.print(view)


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


def human_bytes(count: float) -> str:
    """A size in decimal units, as memory is given to the commands."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
