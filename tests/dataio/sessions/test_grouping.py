"""Proposed groups are those the log was made with; their factors hold on sessions that were not looked at."""

import numpy as np
import pytest

from shardgym.dataio.sessions.grouping import propose_groups, table_specs
from shardgym.dataio.sessions.log import open_log
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
