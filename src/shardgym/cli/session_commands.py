"""`shardgym sessions`: generate, look at, group and cluster impression logs."""

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from rich.console import Console
from rich.table import Table

from shardgym.cli.console import progress_bars
from shardgym.problem.units import parse_bytes

if TYPE_CHECKING:
    from shardgym.dataio.sessions.clustered_files import Manifest
    from shardgym.dataio.sessions.grouping import Grouping
    from shardgym.dataio.sessions.log import SessionLog
    from shardgym.dataio.sessions.schema import SessionSchema

app = typer.Typer(help="Session logs: cluster them by session, stored without their repeats.", no_args_is_help=True)

LOG = typer.Argument(..., help="A Parquet file or a folder of them, one row per sample.")
SCHEMA = typer.Option(
    None, help="JSON that names the session, time, sample and feature columns; by default beside the log."
)


@app.command()
def generate(
    out: Path = typer.Argument(help="A new folder for the log."),
    sessions: int = typer.Option(10_000, help="How many sessions."),
    samples_per_session: float = typer.Option(16.0, help="Mean samples per session."),
    concurrent: int = typer.Option(4096, help="Mean sessions that are open at once."),
    seed: int = typer.Option(0, help="Same seed, same log."),
) -> None:
    """Write an impression log whose features stay or slide inside a session."""
    from shardgym.dataio.sessions.log import open_log
    from shardgym.dataio.sessions.synthetic import LogSpec, write_log

    spec = LogSpec(sessions, samples_per_session, concurrent=concurrent, seed=seed)
    with Console(stderr=True).status(f"generating {out}"):
        log = open_log(write_log(spec, out))
    print(f"{out}: {log.rows} samples in {len(log.files)} files")


@app.command()
def inspect(path: Path = typer.Argument(help="A raw log, or a folder that `cluster` wrote.")) -> None:
    """Say what a log or a clustered log holds."""
    from shardgym.dataio.sessions.clustered_files import MANIFEST, Manifest
    from shardgym.dataio.sessions.log import open_log

    if (path / MANIFEST).exists():
        _show_clustered(path, Manifest.read(path))
    else:
        log = open_log(path)
        print(f"{path}: a raw log of {log.rows} samples in {len(log.files)} files")
        _show_schema(log.schema)
        _show_notes(log.notes)


@app.command()
def group(
    log: Path = LOG,
    schema: Path | None = SCHEMA,
    out: Path | None = typer.Option(None, help="Write the schema with the proposed groups here."),
    samples: int = typer.Option(100_000, help="Samples to look at, and to hold out."),
    tables: Path | None = typer.Option(None, help="Write the features' tables here, as measured."),
    dim: int = typer.Option(64, help="Dim of those tables."),
) -> None:
    """Propose which features to deduplicate together, and in which form."""
    from shardgym.dataio.sessions.measured_tables import table_specs
    from shardgym.dataio.tables.table_files import write_tables

    opened = _opened(log, schema)
    grouping = _proposed(opened, samples)
    _show_grouping(grouping)
    proposed = grouping.schema(opened.schema)
    if out is not None:
        proposed.write(out)
        print(f"{out}: written; give it to `shardgym sessions cluster --schema`")
    if tables is not None:
        write_tables(tables, table_specs(replace(opened, schema=proposed), dim))
        print(f"{tables}: {len(proposed.features)} tables written")


@app.command()
def cluster(
    log: Path = LOG,
    out: Path = typer.Option(..., help="Folder for the clustered log; the same again goes on with a run cut off."),
    schema: Path | None = SCHEMA,
    memory: str = typer.Option("1GB", help="Memory to work in, about: 500MB, 1GB or 1GiB."),
    partitions: int = typer.Option(0, help="Parts to write; 0 for as many as let one fit the memory."),
    row_group_samples: int = typer.Option(32_768, help="Samples per row group, at most."),
    longest_session: int = typer.Option(4_096, help="Samples after which a session begins a new row."),
    level: int = typer.Option(3, help="Of zstd."),
    threads: int = typer.Option(2, help="Of the sort."),
    engine: str = typer.Option("local", help="local, or ray for the machines of a Ray cluster."),
) -> None:
    """Cluster a log by session and store each session's repeats once; goes on where an earlier run was cut off."""
    from shardgym.dataio.sessions.cluster import ClusterSettings, cluster as run

    settings = ClusterSettings(parse_bytes(memory), partitions, row_group_samples, longest_session, level, threads)
    opened = _opened(log, schema)
    with progress_bars(Console(stderr=True)) as progress:
        manifest = run(log, out, opened.schema, settings, engine, progress)
    _show_clustered(out, manifest)
    before, after = (sum(f.path.stat().st_size for f in opened.files), sum(part.bytes for part in manifest.parts))
    print(f"{before / 1e6:.1f} MB before, {after / 1e6:.1f} MB after: {before / max(1, after):.1f} times smaller")


def _opened(log: Path, schema: Path | None) -> "SessionLog":
    from shardgym.dataio.sessions.log import open_log
    from shardgym.dataio.sessions.schema import SessionSchema

    return open_log(log, None if schema is None else SessionSchema.read(schema))


def _proposed(log: "SessionLog", samples: int) -> "Grouping":
    from shardgym.dataio.sessions.grouping import propose_groups

    with Console(stderr=True).status("measuring a sample of the sessions"):
        return propose_groups(log, samples)


def _show_schema(schema: "SessionSchema") -> None:
    print(f"session {schema.session}, time {schema.time}, samples {', '.join(schema.samples) or 'none'}")
    table = Table("group", "form", "features")
    for each in schema.groups:
        table.add_row(each.name, each.form, ", ".join(each.features))
    Console().print(table)


def _show_clustered(folder: Path, manifest: "Manifest") -> None:
    from shardgym.dataio.sessions.decode import stored_factors

    print(
        f"{folder}: {manifest.samples} samples in {manifest.sessions} session rows, {len(manifest.parts)} parts, "
        f"{sum(part.bytes for part in manifest.parts) / 1e6:.1f} MB"
    )
    factors = stored_factors(folder, manifest)
    table = Table("group", "form", "features", "values over stored values")
    for each in manifest.schema.groups:
        table.add_row(each.name, each.form, ", ".join(each.features), f"{factors.get(each.name, 1.0):.2f}")
    Console().print(table)
    _show_notes(manifest.notes)


def _show_grouping(grouping: "Grouping") -> None:
    print(f"{grouping.samples_per_session:.2f} samples per session")
    features = Table("feature", "mean length", "stays")
    for feature in grouping.features:
        features.add_row(feature.name, f"{feature.length:.1f}", f"{feature.stay:.3f}")
    groups = Table("group", "form", "factor", "held out", "bytes", "step")
    for each in grouping.groups:
        groups.add_row(
            ", ".join(each.group.features),
            each.group.form,
            f"{each.predicted:.2f} ({each.low:.2f}-{each.high:.2f})",
            f"{each.measured:.2f}",
            f"{each.bytes_saved:.2f}",
            f"{each.step_saved:.2f}",
        )
    console = Console()
    console.print(features)
    console.print(groups)
    print(
        "factor: predicted on one part of the sessions, with the interval in which 95 of 100 others lie; held out: "
        "measured on another; bytes and step: of plain lists over those of the group"
    )


def _show_notes(notes: tuple[str, ...]) -> None:
    for note in notes:
        print(f"note: {note}")
