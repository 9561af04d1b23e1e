"""The `shardgym` command."""

import os
import sys
import warnings
from typing import Any

import typer

from shardgym.cli import cost_commands, planner_commands, session_commands
from shardgym.problem.errors import InputError
from shardgym.version import __version__

app = typer.Typer(
    help="Place recommender embedding tables on devices, by costs measured on real kernels.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
app.add_typer(cost_commands.app)
app.add_typer(planner_commands.app)
app.add_typer(session_commands.app, name="sessions")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"shardgym {__version__}")
        raise typer.Exit


@app.callback()
def options(
    version: bool = typer.Option(False, "--version", callback=_print_version, is_eager=True, help="Print the version."),
) -> None:
    """Options of the command itself."""


def _print_warning(message: Warning | str, *origin: Any, **more: Any) -> None:
    print(f"shardgym: warning: {message}", file=sys.stderr)


def main() -> None:
    """Run the command; bad input ends in one sentence on stderr and exit code 2."""
    # Threads that spin while they wait make tiny ops slow on a shared machine; must be set before OpenMP loads.
    os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
    warnings.showwarning = _print_warning
    try:
        app()
    except InputError as error:
        print(f"shardgym: {error}", file=sys.stderr)
        sys.exit(2)
