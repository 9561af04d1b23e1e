"""Proposed groups are those the log was made with; their factors hold on sessions that were not looked at."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardgym.dataio.sessions.forms import form_stats
from shardgym.dataio.sessions.grouping import group_name, propose_groups
from shardgym.dataio.sessions.log import open_log
from shardgym.dataio.sessions.measured_tables import table_specs
from shardgym.dataio.sessions.schema import GroupSpec
from shardgym.dataio.sessions.survey import sample_sessions
from shardgym.dataio.sessions.synthetic import LogSpec, SlidingGroup, StayingGroup, write_log
from shardgym.problem.errors import InputError

SPEC = LogSpec(
    sessions=4000,
    samples_per_session=8,
    groups=(
        StayingGroup(GroupSpec("user", ("u", "v")), stay=0.95, length=6, rows=500),
        StayingGroup(GroupSpec("query", ("q",)), stay=0.6, length=10, rows=500),
        StayingGroup(GroupSpec("item", ("i",)), stay=0.0, length=3, rows=500),
        SlidingGroup(GroupSpec("past", ("p", "r")), window=20, shift=1.5, rows=500),
    ),
    concurrent=50,
    seed=4,
)


@pytest.fixture(scope="module")
def log(tmp_path_factory):
    return open_log(write_log(SPEC, tmp_path_factory.mktemp("grouping") / "log"))


def by_features(grouping):
    return {frozenset(each.group.features): each for each in grouping.groups}


def test_groups_and_forms_are_found(log):
    groups = by_features(propose_groups(log, 16_000))
    assert {features: each.group.form for features, each in groups.items()} == {
        frozenset("uv"): "exact",
        frozenset("q"): "exact",
        frozenset("i"): "none",
        frozenset("pr"): "partial",
    }


def test_predicted_factors_hold_on_held_out_sessions(log):
    grouping = propose_groups(log, 16_000)
    groups = by_features(grouping)
    S = grouping.samples_per_session
    assert pytest.approx(8, rel=0.06) == S
    # RecD's formula with the numbers that the log was made with.
    assert groups[frozenset("uv")].predicted == pytest.approx(8 / (1 + 7 * 0.05), rel=0.06)
    assert groups[frozenset("q")].predicted == pytest.approx(8 / (1 + 7 * 0.4), rel=0.06)
    assert groups[frozenset("pr")].predicted == pytest.approx(8 * 20 / (20 + 7 * 1.5), rel=0.06)
    assert grouping.error < 0.08
    stats = {each.name: each for each in grouping.features}
    assert stats["q"].stay == pytest.approx(0.6, abs=0.02)
    assert stats["u"].length == pytest.approx(6, rel=0.05)


def test_samples_are_whole_sessions_and_disjoint(log):
    one, other = sample_sessions(log, 5_000, parts=2)
    ids = [set(part.table.column("session_id").to_pylist()) for part in (one, other)]
    assert not ids[0] & ids[1]
    whole = {}
    for piece in log.pieces(1 << 40):
        for _, batch in log.batches(piece):
            for session in batch.column("session_id").to_pylist():
                whole[session] = whole.get(session, 0) + 1
    for part in (one, other):
        sessions, counts = np.unique(part.table.column("session_id").to_numpy(), return_counts=True)
        assert counts.tolist() == [whole[session] for session in sessions.tolist()]


def test_tables_carry_what_was_measured(log):
    tables = {table.name: table for table in table_specs(log, dim=16, rows={"u": 1000}, samples=16_000)}
    assert (tables["u"].rows, tables["u"].dim, tables["u"].group) == (1000, 16, "user")
    assert tables["v"].rows <= 500
    assert tables["u"].pooling == pytest.approx(6, rel=0.05)
    assert tables["u"].dedup.stay_probability == pytest.approx(0.95, abs=0.01)
    assert tables["i"].dedup.stay_probability == pytest.approx(0.0, abs=0.01)
    ids = sample_sessions(log, 16_000)[0].ids("q", 1 << 16).numpy()
    counts = np.unique(ids, return_counts=True)[1]
    assert tables["q"].reuse_bins[1] == pytest.approx((counts == 2).mean())
    assert tables["q"].reuse_bins[3] == pytest.approx(((counts > 4) & (counts <= 8)).mean())
    with pytest.raises(InputError, match=r"'u': id \d+ is beyond its 5 rows"):
        table_specs(log, dim=16, rows={"u": 5}, samples=16_000)


def slates(folder, sessions=400, seed=0):
    """A slate shown with each of its items, few or very many: the list never changes, long sessions have long lists."""
    rng = np.random.default_rng(seed)
    session, slate, item = [], [], []
    for s in range(sessions):
        items = rng.integers(0, 10_000, 2 + min(300, int(4 * rng.pareto(1.2)))).tolist()
        session += [s] * len(items)
        slate += [items] * len(items)
        item += [[each] for each in items]
    columns = {"session_id": session, "timestamp": list(range(len(session))), "slate": slate, "item": item}
    folder.mkdir()
    pq.write_table(pa.table(columns), folder / "log.parquet")
    return open_log(folder)


def test_lists_that_never_change_are_one_exact_group(tmp_path):
    groups = by_features(propose_groups(slates(tmp_path / "log"), 4_000))
    slate = groups[frozenset(["slate"])]
    assert (slate.group.form, groups[frozenset(["item"])].group.form) == ("exact", "none")
    assert slate.stay == 1.0
    # A session of n items holds n ids once instead of n times n: sum of n^2 over sum of n, far above the mean n.
    assert slate.step_saved > 2 * slate.predicted


def test_measured_factors_lie_in_the_interval_as_often_as_it_says(log):
    seen = sample_sessions(log, 1_500, parts=20)
    for features, form in ((("u", "v"), "exact"), (("q",), "exact"), (("p", "r"), "partial")):
        stats = [form_stats(sample, features, form) for sample in seen]
        low, high = np.array([a.interval(b.sessions) for a in stats for b in stats if a is not b]).T
        factors = np.array([b.factor for a in stats for b in stats if a is not b])
        inside = ((low <= factors) & (factors <= high)).mean()
        assert inside > 0.85
        assert (high - low).mean() < 0.4 * factors.mean(), "narrow enough to say something"


def test_many_features_that_share_nothing_are_one_group_of_a_short_name(tmp_path):
    n, rng = 400, np.random.default_rng(0)
    columns = {f"feature_{k}": [[int(v)] for v in rng.integers(0, 1000, n)] for k in range(40)}
    pq.write_table(
        pa.table({"session_id": np.arange(n) // 4, "timestamp": np.arange(n), **columns}), tmp_path / "a.parquet"
    )
    (group,) = propose_groups(open_log(tmp_path / "a.parquet"), 200).groups
    assert (group.group.form, len(group.group.features)) == ("none", 40)
    assert len(group.group.name) < 60
    assert group_name(["a", "b"]) == "a+b"
