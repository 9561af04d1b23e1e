"""Clustering a raw log by session (RecD's O1 and O2, arXiv 2211.05239), in bounded memory, restartable."""

import fcntl
import itertools
import json
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardgym.dataio.sessions.clustered_files import MANIFEST, Manifest, current_versions, read_part, write_part
from shardgym.dataio.sessions.log import SessionLog, open_log
from shardgym.dataio.sessions.nested import nest, nested_runs
from shardgym.dataio.sessions.route import route_piece
from shardgym.dataio.sessions.schema import SessionSchema
from shardgym.dataio.sessions.sorting import Sort, duckdb_module
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import read_json, write_text
from shardgym.problem.progress import Progress, no_progress

WORK = "_work"
MOST_PARTITIONS = 4096
"""Each is a file, all of which are written at once while a log is routed."""


@public("shardgym.dataio")
@dataclass(frozen=True)
class ClusterSettings:
    """How a log is clustered.

    Args:
        memory: bytes that the process may take, about; 250 MB at least, beside the 0.3 GB of torch itself.
        partitions: parts written, 0 for as many as let one fit the memory; more machines want more.
        row_group_samples: samples of a row group, at most; what workers and ranks share out.
        longest_session: samples of a session after which a new row begins.
        compression_level: of zstd.
        threads: of the sort.

    Raises:
        InputError: names the setting that does not fit.
    """

    memory: int = 10**9
    partitions: int = 0
    row_group_samples: int = 32_768
    longest_session: int = 4_096
    compression_level: int = 3
    threads: int = 2

    def __post_init__(self) -> None:
        least = {"memory": 250 * 10**6, "partitions": 0}
        for name, value in asdict(self).items():
            if value < least.get(name, 1):
                raise InputError(f"{name} is {value}; give {least.get(name, 1)} or more")
        for name, most in (("compression_level", 22), ("partitions", MOST_PARTITIONS)):
            if getattr(self, name) > most:
                raise InputError(f"{name} is {getattr(self, name)}; give {most} at most")


@dataclass(frozen=True)
class ClusterPlan:
    """One log's clustering, resolved: what every task needs."""

    log: SessionLog
    settings: ClusterSettings
    out: Path
    partitions: int
    run_samples: int

    @classmethod
    def resolve(cls, log: SessionLog, out: Path, settings: ClusterSettings) -> "ClusterPlan":
        """Choose the partitions and the run length so that one of each fits the memory.

        Raises:
            InputError: there would be more partitions than files can be written at once.
        """
        sample_bytes = max(1, log.decoded_bytes // max(1, log.rows))
        partitions = settings.partitions or max(1, -(-log.decoded_bytes * 4 // settings.memory))
        if partitions > MOST_PARTITIONS:
            least = -(-log.decoded_bytes * 4 // MOST_PARTITIONS)
            raise InputError(f"{out}: the log would need {partitions} partitions; give {least / 1e9:.1f}GB of memory")
        fitting = max(1, settings.memory // 32 // sample_bytes)
        return cls(log, settings, out, partitions, min(settings.row_group_samples, fitting))

    @property
    def work(self) -> Path:
        """Where the unfinished state lies."""
        return self.out / WORK

    def identity(self) -> dict[str, Any]:
        """What must be the same for a run to go on where another was cut off."""
        settings = {name: value for name, value in asdict(self.settings).items() if name != "threads"}
        files = [(str(file.path), file.path.stat().st_size, file.path.stat().st_mtime_ns) for file in self.log.files]
        return json.loads(
            json.dumps(
                {
                    "settings": settings,
                    "partitions": self.partitions,
                    "schema": self.log.schema.to_dict(),
                    "files": files,
                }
            )
        )


def cluster(
    log: str | Path,
    out: str | Path,
    schema: SessionSchema | None = None,
    settings: ClusterSettings | None = None,
    engine: str = "local",
    progress: Progress = no_progress,
) -> Manifest:
    """Cluster a raw log by session into a folder of nested Parquet parts.

    A run that was cut off goes on where it stopped and gives the same files; nothing half-written has its
    final name; the manifest comes last.

    Args:
        log: a Parquet file or a folder of them, one row per sample.
        out: a new folder, or one that an earlier run of the same log and settings left.
        schema: roles of the columns; see `open_log` for None.
        settings: memory, partitions, compression.
        engine: "local", or "ray" for the machines of a Ray cluster that share the folders.
        progress: counts samples in each of two stages.

    Raises:
        InputError: the log cannot be read, the folder holds something else, or an engine is not installed.
    """
    run = _runner(engine)
    duckdb_module()
    out = Path(out).absolute()
    plan = ClusterPlan.resolve(open_log(Path(log).absolute(), schema), out, settings or ClusterSettings())
    if (out / MANIFEST).exists():
        _agree(plan, Manifest.read(out).plan)
        shutil.rmtree(plan.work, ignore_errors=True)
        return Manifest.read(out)
    with _sole_use(plan):
        pieces = plan.log.pieces(plan.settings.memory // 2)
        for done in itertools.accumulate(run(route, [(plan, at) for at in range(len(pieces))])):
            progress("route samples", done, plan.log.rows)
        for done in itertools.accumulate(run(write_partition, [(plan, at) for at in range(plan.partitions)])):
            progress("cluster samples", done, plan.log.rows)
        parts = tuple(read_part(_part_path(plan, at)) for at in range(plan.partitions))
        manifest = Manifest(plan.log.schema, parts, _notes(plan, parts), plan.identity(), current_versions())
        if manifest.samples != plan.log.rows:
            raise InputError(f"{out}: holds {manifest.samples} of {plan.log.rows} samples; remove it and cluster again")
        manifest.write(out)
        shutil.rmtree(plan.work, ignore_errors=True)
        return manifest


def _notes(plan: ClusterPlan, parts: tuple) -> tuple[str, ...]:
    nulls = sum(part.null_sessions for part in parts)
    said = f"{nulls} samples have a null session id: each is kept as a session of its own"
    return (*plan.log.notes, said) if nulls else plan.log.notes


def route(plan: ClusterPlan, number: int) -> int:
    """Route one piece of the log; its samples. A task of the first stage."""
    piece = plan.log.pieces(plan.settings.memory // 2)[number]
    with _in_one_sentence(plan, f"piece {number} of the log"):
        route_piece(plan.log, piece, plan.partitions, plan.work / "routed" / f"{number:05d}")
    return sum(plan.log.files[piece.file].rows[piece.first : piece.end])


def write_partition(plan: ClusterPlan, number: int) -> int:
    """Sort, nest and write one partition; its samples. A task of the second stage."""
    path = _part_path(plan, number)
    if not path.exists():
        schema, arrow = plan.log.schema, plan.log.arrow
        longest = plan.settings.longest_session
        sort = Sort(schema, arrow, plan.settings.memory, plan.settings.threads, plan.work / f"sort-{number:05d}")
        files = sorted((plan.work / "routed").glob(f"*/{number:05d}.parquet"))
        nested = nest(arrow.empty_table(), schema, longest).schema
        with _in_one_sentence(plan, f"partition {number} of {plan.partitions}"):
            runs = nested_runs(sort.batches(files), schema, plan.run_samples, longest)
            write_part(path, nested, runs, schema, plan.settings.compression_level)
    for routed in (plan.work / "routed").glob(f"*/{number:05d}.parquet"):
        routed.unlink(missing_ok=True)
    return sum(read_part(path).samples)


@contextmanager
def _in_one_sentence(plan: ClusterPlan, what: str) -> Iterator[None]:
    """Say what memory or a disk refused, whichever library it was asked through."""
    try:
        yield
    except InputError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, MemoryError) or "out of memory" in str(error).lower():
            raise InputError(
                f"{plan.out}: {what} does not fit the memory of {plan.settings.memory / 1e6:.0f} MB; "
                "give more memory or partitions, in a new folder"
            ) from None
        if isinstance(error, OSError) or type(error).__module__.split(".")[0].strip("_") == "duckdb":
            raise InputError(
                f"{plan.out}: {what} cannot be written ({reason}); free space or mend the folder, then run the same "
                "again: it goes on where it stopped"
            ) from None
        raise


def _part_path(plan: ClusterPlan, number: int) -> Path:
    return plan.out / f"part-{number:05d}.parquet"


def _runner(engine: str) -> Callable[[Callable, list[tuple]], Iterator[int]]:
    if engine == "local":
        return lambda task, arguments: (task(*each) for each in arguments)
    if engine == "ray":
        from shardgym.dataio.sessions.ray import run_on_ray

        return run_on_ray
    raise InputError(f"engine is {engine!r}; give local or ray")


@contextmanager
def _sole_use(plan: ClusterPlan) -> Iterator[None]:
    """Take the output folder for this plan alone, or say what is in the way."""
    out, begun = plan.out, plan.work / "plan.json"
    if out.exists() and not plan.work.exists() and (not out.is_dir() or any(out.iterdir())):
        raise InputError(f"{out}: is not empty; give a new folder")
    plan.work.mkdir(parents=True, exist_ok=True)
    with open(plan.work / "lock", "w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise InputError(f"{out}: another run is clustering into it; wait for it to end") from None
        if begun.exists():
            _agree(plan, read_json(begun, "remove the folder and cluster again"))
        else:
            write_text(begun, json.dumps(plan.identity()))
        for unfinished in out.glob(".*.partial"):
            unfinished.unlink()
        yield


def _agree(plan: ClusterPlan, theirs: dict[str, Any]) -> None:
    mine = plan.identity()
    if theirs != mine:
        differing = ", ".join(key for key in mine if theirs.get(key) != mine[key])
        raise InputError(f"{plan.out}: was clustered from other {differing}; give a new folder, or remove this one")
