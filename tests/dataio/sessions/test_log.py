"""Raw logs: what is handled and said, what is refused by name; generated logs have the numbers asked for."""

import itertools

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from shardgym.dataio.sessions.log import open_log
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.synthetic import LogSpec, SlidingGroup, StayingGroup, write_log as write_generated
from shardgym.problem.errors import InputError
from tests.dataio.sessions.reference import SCHEMA, write_log

ROW = {"session_id": "s", "timestamp": 1, "click": 0, "price": 1.0, "a": [1], "b": [], "h": [1], "k": [2], "n": []}


def rows_of(log):
    return [row for piece in log.pieces(1) for _, batch in log.batches(piece) for row in batch.to_pylist()]


def write(path, **columns):
    pq.write_table(pa.table({"session_id": [1, 2], "timestamp": [5, 6], **columns}), path)


def test_null_lists_become_empty_and_null_floats_nan(tmp_path):
    write_log(tmp_path, [[ROW | {"a": None, "price": None}]])
    (row,) = rows_of(open_log(tmp_path, SCHEMA))
    assert row["a"] == []
    assert np.isnan(row["price"])


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"timestamp": None}, "000.parquet.*'timestamp' is null at row 1"),
        ({"click": None}, "000.parquet.*'click' is null at row 1"),
        ({"a": [1, None]}, "000.parquet.*'a' has a null inside a list"),
    ],
)
def test_other_nulls_are_refused_by_row(tmp_path, change, message):
    write_log(tmp_path, [[ROW, ROW | change]])
    with pytest.raises(InputError, match=message):
        rows_of(open_log(tmp_path, SCHEMA))


def test_a_truncated_file_is_named_before_anything_is_read(tmp_path):
    write_log(tmp_path, [[ROW], [ROW]])
    whole = (tmp_path / "001.parquet").read_bytes()
    (tmp_path / "001.parquet").write_bytes(whole[:-20])
    with pytest.raises(InputError, match=r"001\.parquet: not a whole Parquet file"):
        open_log(tmp_path, SCHEMA)


def test_a_corrupt_page_is_named(tmp_path):
    write_log(tmp_path, [[ROW] * 3])
    path = tmp_path / "000.parquet"
    data = bytearray(path.read_bytes())
    data[4:200] = bytes(196)
    path.write_bytes(data)
    with pytest.raises(InputError, match=r"000\.parquet: corrupt from about row 0"):
        rows_of(open_log(tmp_path, SCHEMA))


def test_types_that_widen_are_widened_and_said(tmp_path):
    write(tmp_path / "a.parquet", f=pa.array([[1], [2]], pa.list_(pa.int32())))
    write(tmp_path / "b.parquet", f=pa.array([[1 << 40], []], pa.large_list(pa.int64())), extra=[0, 0])
    schema = SessionSchema(groups=(GroupSpec("f", ("f",)),))
    log = open_log(tmp_path, schema)
    assert log.arrow.field("f").type == pa.large_list(pa.int64())
    assert [row["f"] for row in rows_of(log)] == [[1], [2], [1 << 40], []]
    assert any("'f'" in note and "int64" in note for note in log.notes)
    assert any("extra" in note for note in log.notes)


@pytest.mark.parametrize(
    ("column", "message"),
    [
        ({"g": [[1], [2]]}, r"b\.parquet: has no column 'f'"),
        ({"f": [["x"], ["y"]]}, r"b\.parquet: column 'f' is .*string.*but .*a\.parquet"),
        ({"f": [1.0, 2.0]}, r"b\.parquet: column 'f' is double"),
    ],
)
def test_drift_that_cannot_be_reconciled_names_file_and_column(tmp_path, column, message):
    write(tmp_path / "a.parquet", f=[[1], [2]])
    write(tmp_path / "b.parquet", **column)
    with pytest.raises(InputError, match=message):
        open_log(tmp_path, SessionSchema(groups=(GroupSpec("f", ("f",)),)))


def test_columns_of_the_wrong_kind_are_refused(tmp_path):
    write(tmp_path / "a.parquet", f=[["x"], ["y"]], label=["p", "q"], g=[[1.5], [2.5]], h=[[1], [2]])
    for schema, message in [
        (SessionSchema(groups=(GroupSpec("f", ("f",)),)), "'f'.*lists of numbers"),
        (SessionSchema(samples=("label",)), "'label'.*numbers"),
        (SessionSchema(groups=(GroupSpec("gh", ("g", "h")),)), "'gh' mixes double and int64"),
        (SessionSchema(time="label"), "'label'.*whole numbers or timestamps"),
    ]:
        with pytest.raises(InputError, match=message):
            open_log(tmp_path, schema)


def test_default_roles_and_their_absence(tmp_path):
    write(tmp_path / "a.parquet", f=[[1], [2]], label=[0, 1])
    schema = open_log(tmp_path).schema
    assert (schema.samples, schema.features) == (("label",), ("f",))
    pq.write_table(pa.table({"user": [1]}), tmp_path / "a.parquet")
    with pytest.raises(InputError, match="no column 'session_id'"):
        open_log(tmp_path)
    with pytest.raises(InputError, match="no Parquet file here"):
        open_log(tmp_path / "nothing")


def test_a_schema_round_trips_and_refuses_contradictions(tmp_path):
    SCHEMA.write(tmp_path / "_schema.json")
    assert SessionSchema.read(tmp_path / "_schema.json") == SCHEMA
    with pytest.raises(InputError, match="'a' is named twice"):
        SessionSchema(samples=("a",), groups=(GroupSpec("g", ("a",)),))
    with pytest.raises(InputError, match="form is 'sliding'"):
        GroupSpec("g", ("a",), "sliding")
    (tmp_path / "_schema.json").write_text("{}")
    with pytest.raises(InputError, match=r"_schema\.json: schema: 'groups'"):
        SessionSchema.read(tmp_path / "_schema.json")


def test_a_generated_log_has_its_spec(tmp_path):
    spec = LogSpec(
        sessions=3000,
        samples_per_session=6,
        groups=(
            StayingGroup(GroupSpec("user", ("u", "v")), stay=0.9, length=3),
            SlidingGroup(GroupSpec("past", ("p", "q"), "partial"), window=5, shift=0.7),
        ),
        concurrent=50,
        seed=3,
    )
    log = open_log(write_generated(spec, tmp_path / "log", rows_per_file=4000))
    assert log.schema == spec.schema
    assert len(log.files) > 2
    rows = rows_of(log)
    times = [row["timestamp"] for row in rows]
    assert times == sorted(times)
    sessions = {}
    for row in rows:
        sessions.setdefault(row["session_id"], []).append(row)
    assert len(sessions) == 3000
    assert len(rows) / 3000 == pytest.approx(6, rel=0.05)
    pairs = [pair for held in sessions.values() for pair in itertools.pairwise(held)]
    assert np.mean([a["u"] == b["u"] and a["v"] == b["v"] for a, b in pairs]) == pytest.approx(0.9, abs=0.01)
    shifts = []
    for a, b in pairs:
        shift = next(k for k in range(6) if a["p"][k:] == b["p"][: 5 - k] and a["q"][k:] == b["q"][: 5 - k])
        shifts.append(shift)
    assert np.mean(shifts) == pytest.approx(0.7, abs=0.04)
    batch = [row["session_id"] for row in rows[1000:1100]]
    assert len(set(batch)) > 25, "sessions are interleaved"
    with pytest.raises(InputError, match="not empty"):
        write_generated(spec, tmp_path / "log")


def test_truth_values_are_labels_of_0_and_1(tmp_path):
    write(tmp_path / "a.parquet", click=[True, False], flags=[[True], []])
    log = open_log(tmp_path)
    assert log.schema.samples == ("click",)
    assert [(row["click"], row["flags"]) for row in rows_of(log)] == [(1, [1]), (0, [])]
