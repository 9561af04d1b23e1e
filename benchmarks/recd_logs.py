"""The logs that storage and reading are measured on: a generated one, and KuaiRand's events with histories."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.synthetic import LogSpec, SlidingGroup, StayingGroup
from shardgym.embeddings.jagged.ops import window_positions

SPEC = LogSpec(
    sessions=8_000,
    samples_per_session=16,
    groups=(
        StayingGroup(GroupSpec("user", ("tags", "follows", "interests", "cohorts")), stay=0.98, length=30),
        StayingGroup(GroupSpec("context", ("query_terms", "page_topics")), stay=0.95, length=8),
        SlidingGroup(GroupSpec("history", ("watched_videos", "watched_authors"), "partial"), window=50, shift=0.5),
    ),
    seed=1,
)
"""16 samples per session: four user features that stay at 0.98, two of context at 0.95, two histories that slide."""

HISTORY = 50
KUAIRAND = SessionSchema(
    "user_id",
    "time_ms",
    ("video_id", "author_id", "tab", "duration_ms", "play_time_ms", "is_click", "long_view"),
    (GroupSpec("clicked", ("clicked_videos",), "partial"), GroupSpec("watched", ("watched_videos",), "partial")),
)
"""The user is the session; histories hold what was clicked, and what played, before the event, oldest first."""


def kuairand_log(path: Path) -> pa.Table:
    """KuaiRand's events (Gao et al., 2022) in time order with click and watch histories of 50 videos."""
    names = [*KUAIRAND.columns[: 2 + len(KUAIRAND.samples)]]
    events = pq.read_table(path, columns=names)
    columns = {name: events[name].to_numpy() for name in names}
    by_user = np.lexsort((columns["time_ms"], columns["user_id"]))
    in_time = np.argsort(columns["time_ms"][by_user], kind="stable")
    table = events.take(pa.array(by_user))
    for name, counts in (("clicked_videos", "is_click"), ("watched_videos", "play_time_ms")):
        history = _history(columns["user_id"][by_user], columns["video_id"][by_user], columns[counts][by_user] > 0)
        table = table.append_column(name, history)
    return table.take(pa.array(in_time))


def _history(user: np.ndarray, video: np.ndarray, kept: np.ndarray) -> pa.Array:
    """The last `HISTORY` kept videos of the same user before each row; rows by user and time."""
    before = np.concatenate([[0], np.cumsum(kept)])
    starts = np.maximum(before[:-1] - HISTORY, before[np.searchsorted(user, user)])
    lengths = torch.from_numpy(before[:-1] - starts)
    positions = window_positions(torch.from_numpy(starts), lengths).numpy()
    offsets = np.concatenate([[0], np.cumsum(lengths.numpy())])
    return pa.LargeListArray.from_arrays(pa.array(offsets), pa.array(video[kept][positions]))
