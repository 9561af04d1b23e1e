"""Generated impression logs with known samples per session, stay probability and window shift, of any size."""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from shardgym.dataio.sessions.schema import SCHEMA_FILE, GroupSpec, SessionSchema
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import replacing

SESSIONS_PER_BLOCK = 2048


@public("shardgym.dataio")
@dataclass(frozen=True)
class StayingGroup:
    """Features whose lists stay from sample to sample, and change together.

    Args:
        group: the features and their form.
        stay: chance d that the lists stay from one sample to the next.
        length: mean ids per list (Poisson).
        rows: ids are below this, the small ones more frequent.
    """

    group: GroupSpec
    stay: float = 0.98
    length: float = 20.0
    rows: int = 100_000


@public("shardgym.dataio")
@dataclass(frozen=True)
class SlidingGroup:
    """Features that are aligned windows over a session's history, the newest id last.

    Args:
        group: the features and their form.
        window: ids per list.
        shift: mean ids by which the window moves from one sample to the next (Poisson).
        rows: ids are below this.
    """

    group: GroupSpec
    window: int = 50
    shift: float = 0.5
    rows: int = 100_000


@public("shardgym.dataio")
@dataclass(frozen=True)
class LogSpec:
    """A log to generate: one row per sample, sessions interleaved in time.

    Args:
        sessions: number of sessions.
        samples_per_session: mean samples S per session (geometric, at least 1).
        groups: the list-valued features.
        concurrent: mean sessions that are open at once, so how far a session's samples lie apart.
        seed: same seed, same log.

    Raises:
        InputError: names the field that does not fit.
    """

    sessions: int = 10_000
    samples_per_session: float = 16.0
    groups: tuple[StayingGroup | SlidingGroup, ...] = (
        StayingGroup(GroupSpec("user", ("user_tags", "user_follows")), 0.98, 30),
        StayingGroup(GroupSpec("context", ("query_terms",)), 0.95, 8),
        SlidingGroup(GroupSpec("history", ("watched_videos", "watched_authors"), "partial"), 50, 0.5),
    )
    concurrent: int = 4096
    seed: int = 0

    def __post_init__(self) -> None:
        self._require(self.sessions >= 1, "sessions", "1 or more")
        self._require(self.samples_per_session >= 1, "samples_per_session", "1 or more")
        self._require(self.concurrent >= 1, "concurrent", "1 or more")
        for group in self.groups:
            chance = group.stay if isinstance(group, StayingGroup) else 0.0
            if not (0 <= chance <= 1 and group.rows >= 1):
                raise InputError(f"group {group.group.name!r}: give stay between 0 and 1 and rows of 1 or more")

    def _require(self, holds: bool, name: str, wanted: str) -> None:
        if not holds:
            raise InputError(f"log: {name} is {getattr(self, name)}; give {wanted}")

    @property
    def schema(self) -> SessionSchema:
        """The roles of the columns that `write_log` writes."""
        groups = tuple(group.group for group in self.groups)
        return SessionSchema(samples=("item_id", "price", "click"), groups=groups)


def write_log(spec: LogSpec, folder: str | Path, rows_per_file: int = 200_000) -> Path:
    """Write the log in time order as `log-00000.parquet`, ... with its schema; memory does not grow with its size.

    Returns:
        The folder.

    Raises:
        InputError: the folder holds a log already.
    """
    folder = Path(folder)
    if folder.exists() and any(folder.iterdir()):
        raise InputError(f"{folder}: is not empty; give a new folder for the log")
    folder.mkdir(parents=True, exist_ok=True)
    blocks = _Blocks(generate_blocks(spec))
    number = 0
    while (table := blocks.take(rows_per_file)) is not None:
        with (
            replacing(folder / f"log-{number:05d}.parquet") as partial,
            pq.ParquetWriter(partial, table.schema, compression="zstd") as writer,
        ):
            left = rows_per_file
            while table is not None:
                writer.write_table(table, row_group_size=16_384)
                left -= table.num_rows
                table = blocks.take(left)
        number += 1
    spec.schema.write(folder / SCHEMA_FILE)
    return folder


class _Blocks:
    """Tables taken from a stream of them, cut where a file ends."""

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables = (table for table in tables if table.num_rows)
        self._rest: pa.Table | None = None

    def take(self, rows: int) -> pa.Table | None:
        """The next rows, at most so many; None for no rows and at the end."""
        table = self._rest if self._rest is not None else next(self._tables, None) if rows else None
        if table is None or not rows:
            return None
        self._rest = table.slice(rows) if table.num_rows > rows else None
        return table.slice(0, rows)


def generate_blocks(spec: LogSpec) -> Iterator[pa.Table]:
    """The log in time order, in tables of bounded size.

    Sessions start evenly in time and draw a gap for every sample; a block's rows are sent once no later
    block can start before them.
    """
    rng = np.random.default_rng(spec.seed)
    pending = None
    # One tick between starts; a session stays open for `concurrent` ticks on average.
    gap = max(1.0, spec.concurrent / spec.samples_per_session)
    for first in range(0, spec.sessions, SESSIONS_PER_BLOCK):
        count = min(SESSIONS_PER_BLOCK, spec.sessions - first)
        block = _block(spec, rng, first, count, gap)
        pending = block if pending is None else pa.concat_tables([pending, block])
        pending = pending.sort_by([("timestamp", "ascending"), ("session_id", "ascending")])
        # Sessions of the next block all start at its first tick or later.
        ready = int(np.searchsorted(pending["timestamp"].to_numpy(), first + count))
        yield pending.slice(0, ready)
        pending = pending.slice(ready)
    if pending is not None:
        yield pending


def _block(spec: LogSpec, rng: np.random.Generator, first: int, count: int, gap: float) -> pa.Table:
    sizes = rng.geometric(1 / spec.samples_per_session, count)
    session = np.repeat(np.arange(count), sizes)
    is_first = np.r_[True, session[1:] != session[:-1]]
    n = session.size
    gaps = np.where(is_first, 0, rng.exponential(gap, n)).astype(np.int64)
    elapsed = np.cumsum(gaps)
    time = first + session + elapsed - np.repeat(elapsed[is_first], sizes)
    columns: dict[str, pa.Array] = {
        "session_id": pa.array(first + session),
        "timestamp": pa.array(time),
        "item_id": pa.array(_ids(rng, n, 1_000_000)),
        "price": pa.array(rng.lognormal(2, 1, n).astype(np.float32)),
        "click": pa.array((rng.random(n) < 0.1).astype(np.int8)),
    }
    for group in spec.groups:
        if isinstance(group, StayingGroup):
            columns.update(_staying(group, rng, is_first))
        else:
            columns.update(_sliding(group, rng, is_first))
    return pa.table(columns)


def _staying(group: StayingGroup, rng: np.random.Generator, is_first: np.ndarray) -> dict[str, pa.Array]:
    changed = is_first | (rng.random(is_first.size) >= group.stay)
    which = np.cumsum(changed) - 1
    columns = {}
    for name in group.group.features:
        lengths = rng.poisson(group.length, int(changed.sum()))
        values = pa.array(_ids(rng, int(lengths.sum()), group.rows))
        unique = pa.LargeListArray.from_arrays(pa.array(_offsets(lengths)), values)
        columns[name] = unique.take(pa.array(which))
    return columns


def _sliding(group: SlidingGroup, rng: np.random.Generator, is_first: np.ndarray) -> dict[str, pa.Array]:
    n, window = is_first.size, group.window
    # Each session opens with a whole window of its own; later samples move it by their shift.
    end = np.cumsum(np.where(is_first, window, rng.poisson(group.shift, n)))
    positions = (end[:, None] - window + np.arange(window)).reshape(n * window)
    offsets = pa.array(np.arange(n + 1, dtype=np.int64) * window)
    columns = {}
    for name in group.group.features:
        pool = _ids(rng, int(end[-1]), group.rows)
        columns[name] = pa.LargeListArray.from_arrays(offsets, pa.array(pool[positions]))
    return columns


def _offsets(lengths: np.ndarray) -> np.ndarray:
    return np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)


def _ids(rng: np.random.Generator, count: int, rows: int) -> np.ndarray:
    """Ids whose logarithm is uniform: popularity falls as 1 / id."""
    return np.minimum(np.exp(rng.random(count) * np.log(rows + 1)).astype(np.int64), rows) - 1
