"""Plain references for session logs: rows as dicts, a slow reader of nested files, random small logs."""

import pyarrow as pa
import pyarrow.parquet as pq
from hypothesis import strategies as st

from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.synthetic import LogSpec, write_log as write_generated

SCHEMA = SessionSchema(
    "session_id",
    "timestamp",
    ("click", "price"),
    (
        GroupSpec("user", ("a", "b"), "exact"),
        GroupSpec("history", ("h", "k"), "partial"),
        GroupSpec("other", ("n",), "none"),
    ),
)
ARROW = pa.schema(
    [
        ("session_id", pa.string()),
        ("timestamp", pa.int64()),
        ("click", pa.int8()),
        ("price", pa.float32()),
        *((name, pa.list_(pa.int64())) for name in ("a", "b", "h", "k", "n")),
    ]
)


def write_log(folder, files):
    """Write lists of row dicts as Parquet files, in order."""
    folder.mkdir(parents=True, exist_ok=True)
    for number, rows in enumerate(files):
        table = pa.Table.from_pylist(rows, schema=ARROW)
        pq.write_table(table, folder / f"{number:03d}.parquet", row_group_size=3)
    return folder


def by_session(rows):
    """Rows by session and time, ties as they come. Samples without a session come first, in no order of their own."""
    known = [row for row in rows if row["session_id"] is not None]
    return sorted((row for row in rows if row["session_id"] is None), key=repr) + sorted(
        known, key=lambda row: (row["session_id"], row["timestamp"])
    )


def flattened(path, schema=SCHEMA):
    """Rows of one nested file, read by plain Python."""
    rows = []
    for nested in pq.read_table(path).to_pylist():
        for at in range(len(nested[schema.time])):
            row = {schema.session: nested[schema.session]}
            row.update({name: nested[name][at] for name in (schema.time, *schema.samples)})
            for group in schema.groups:
                for feature in group.features:
                    lists = nested[feature]
                    if group.form == "exact":
                        row[feature] = lists[nested[f"{group.name}.inverse"][at]]
                    elif group.form == "none":
                        row[feature] = lists[at]
                    else:
                        start = nested[f"{group.name}.offset"][at]
                        row[feature] = lists[start : start + nested[f"{group.name}.length"][at]]
            rows.append(row)
    return rows


def all_flattened(folder, schema=SCHEMA):
    """Rows of every part of a folder, by session as `by_session` has them."""
    rows = [row for path in sorted(folder.glob("*.parquet")) for row in flattened(path, schema)]
    return by_session(rows)


@st.composite
def logs(draw):
    """A few files of rows whose sessions repeat, slide, tie in time, lie across files, and may be null."""
    sessions = ["s", "séance", "会话", "", "s2", None] if draw(st.booleans()) else ["s", "t"]
    ids = st.integers(-3, 3) | st.integers(-(2**63), 2**63 - 1)
    states = {session: draw(st.lists(ids, min_size=6, max_size=6)) for session in sessions}
    files = []
    for _ in range(draw(st.integers(1, 3))):
        rows = []
        for _ in range(draw(st.integers(0, 8))):
            session = draw(st.sampled_from(sessions))
            state = states[session]
            if draw(st.booleans()):
                state.append(draw(ids))
            window = state[-draw(st.integers(1, 4)) :] if draw(st.booleans()) else state[-4:]
            rows.append(
                {
                    "session_id": session,
                    "timestamp": draw(st.integers(0, 5)),
                    "click": draw(st.integers(0, 1)),
                    "price": draw(st.floats(width=32, allow_nan=False)),
                    "a": state[:2],
                    "b": state[: draw(st.integers(0, 1))],
                    "h": window,
                    "k": window[::-1],
                    "n": draw(st.lists(ids, max_size=2)),
                }
            )
        files.append(rows)
    return files


NAMES = ("timestamp", "item_id", "price")


def clustered_log(folder):
    """About 960 generated samples in 11 row groups of 3 parts."""
    write_generated(LogSpec(sessions=120, samples_per_session=8, concurrent=20), folder / "log")
    cluster(folder / "log", folder / "out", settings=ClusterSettings(partitions=3, row_group_samples=90))
    return folder / "out"


def fingerprint(batch):
    """A batch, bit for bit."""
    return batch.features.stride(), batch.buffer.numpy().tobytes()
