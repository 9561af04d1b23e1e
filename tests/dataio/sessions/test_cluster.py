"""Clustering keeps every sample, sorted by session and time, and comes to the same files however often it is killed."""

import fcntl
import json
import random
import subprocess
import sys
import tempfile
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st

from shardgym.dataio.sessions import sorting
from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
from shardgym.dataio.sessions.clustered_files import Manifest
from shardgym.dataio.sessions.log import open_log
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.synthetic import LogSpec, write_log as write_generated
from shardgym.problem.errors import InputError
from tests.dataio.sessions.reference import SCHEMA, all_flattened, by_session, flattened, logs, write_log
from tests.dataio.sessions.test_log import ROW

pytest.importorskip("duckdb", reason="clustering needs the extra `sessions`")


def files_of(folder):
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.suffix == ".parquet"}


@settings(max_examples=60)
@given(logs(), st.integers(1, 3), st.integers(1, 6), st.integers(1, 5))
def test_every_sample_is_kept_in_order_whatever_the_log(files, partitions, run, longest):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log", files)
        chosen = ClusterSettings(partitions=partitions, row_group_samples=run, longest_session=longest)
        manifest = cluster(folder / "log", folder / "out", SCHEMA, chosen)
        expected = by_session([row for rows in files for row in rows])
        assert all_flattened(folder / "out") == expected
        assert manifest.samples == len(expected)
        nulls = sum(row["session_id"] is None for row in expected)
        assert any(f"{nulls} samples have a null session id" in note for note in manifest.notes) == (nulls > 0)
        rows = [row for path in (folder / "out").glob("*.parquet") for row in pq.read_table(path).to_pylist()]
        assert all(len(row["timestamp"]) <= longest for row in rows)
        for row in rows:
            kinds = {(tuple(a), tuple(b)) for a, b in zip(row["a"], row["b"])}
            assert len(kinds) == len(row["a"]) == len(set(row["user.inverse"])), "unique lists, each in use"


def test_a_session_across_files_and_out_of_order_is_one_row(tmp_path):
    late, early = ROW | {"timestamp": 9, "h": [2, 3], "k": [2, 3]}, ROW | {"timestamp": 1, "h": [1, 2], "k": [1, 2]}
    write_log(tmp_path / "log", [[late], [ROW | {"session_id": "z"}], [early]])
    cluster(tmp_path / "log", tmp_path / "out", SCHEMA, ClusterSettings(partitions=1))
    rows = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    assert [(row["session_id"], row["timestamp"]) for row in rows] == [("s", [1, 9]), ("z", [1])]
    assert (rows[0]["h"], rows[0]["history.offset"], rows[0]["history.length"]) == ([1, 2, 3], [0, 1], [2, 2])


@pytest.mark.parametrize("newest_first", [False, True])
def test_sliding_histories_are_stored_once(tmp_path, newest_first):
    rows = []
    for session in ("p", "q", "r"):
        for at in range(10):
            window = [ord(session) * 100 + at + k for k in range(4)]
            window = window[::-1] if newest_first else window
            rows.append(ROW | {"session_id": session, "timestamp": at, "h": window, "k": [-v for v in window]})
    write_log(tmp_path / "log", [rows])
    cluster(tmp_path / "log", tmp_path / "out", SCHEMA)
    nested = pq.read_table(tmp_path / "out" / "part-00000.parquet").to_pylist()
    assert [len(row["h"]) for row in nested] == [13, 13, 13]
    assert all_flattened(tmp_path / "out") == by_session(rows)


def test_a_small_memory_gives_the_same_samples(tmp_path):
    spec = LogSpec(sessions=8000, samples_per_session=6)
    write_generated(spec, tmp_path / "log", rows_per_file=10_000)
    small = cluster(tmp_path / "log", tmp_path / "small", settings=ClusterSettings(memory=256 << 20, threads=1))
    large = cluster(tmp_path / "log", tmp_path / "large", settings=ClusterSettings(partitions=1))
    assert len(small.parts) == 1 + open_log(tmp_path / "log").decoded_bytes * 4 // (256 << 20)
    order = lambda row: row["session_id"]  # noqa: E731
    flat = [row for path in (tmp_path / "small").glob("*.parquet") for row in flattened(path, spec.schema)]
    assert sorted(flat, key=order) == flattened(tmp_path / "large" / "part-00000.parquet", spec.schema)
    assert small.samples == large.samples
    (part,) = large.parts
    assert sum(part.samples) == large.samples


# Dies at the n-th rename, removal or write of rows.
KILLED = """
import os, pathlib, shutil, signal, sys
import pyarrow.parquet as pq
left = int(sys.argv[1])
def counted(call):
    def do(*args, **kwargs):
        global left
        left -= 1
        if left == 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return call(*args, **kwargs)
    return do
pathlib.Path.replace = counted(pathlib.Path.replace)
pathlib.Path.unlink = counted(pathlib.Path.unlink)
pq.ParquetWriter.write_batch = counted(pq.ParquetWriter.write_batch)
pq.ParquetWriter.write_table = counted(pq.ParquetWriter.write_table)
pq.ParquetWriter.close = counted(pq.ParquetWriter.close)
shutil.rmtree = counted(shutil.rmtree)
os.replace = counted(os.replace)
from shardgym.dataio.sessions import sorting
from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
cluster(sys.argv[2], sys.argv[3], settings=ClusterSettings(partitions=3, row_group_samples=400, threads=1))
"""


def run_until_killed(log, out, calls):
    done = subprocess.run(
        [sys.executable, "-c", KILLED, str(calls), str(log), str(out)], capture_output=True, text=True
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == 0


def check_killed(tmp_path, points, runs_before_whole):
    log, whole = tmp_path / "log", tmp_path / "whole"
    write_generated(LogSpec(sessions=400, samples_per_session=8), log, rows_per_file=800)
    kept = ClusterSettings(partitions=3, row_group_samples=400, threads=1)
    cluster(log, whole, settings=kept)
    out = tmp_path / "out"
    killed = 0
    for calls in points:
        killed += not run_until_killed(log, out, calls)
        visible = {path.name for path in out.glob("*.parquet") if not path.name.startswith(".")}
        for name in visible:
            assert (out / name).read_bytes() == (whole / name).read_bytes(), "a part with its name is whole"
        if not (out / "_manifest.json").exists():
            with pytest.raises(InputError, match=r"no _manifest\.json"):
                Manifest.read(out)
    assert killed >= runs_before_whole
    assert cluster(log, out, settings=kept) == Manifest.read(whole)
    assert files_of(out) == files_of(whole)
    assert not (out / "_work").exists()


def test_kill_and_restart_gives_the_same_files(tmp_path):
    check_killed(tmp_path, random.Random(0).sample(range(3, 40), 3), 3)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(3))
def test_kill_and_restart_at_many_points(tmp_path, seed):
    check_killed(tmp_path, [random.Random(100 * seed + at).randint(1, 15) for at in range(12)], 5)


def test_a_finished_clustering_is_not_done_again(tmp_path):
    write_log(tmp_path / "log", [[ROW]])
    first = cluster(tmp_path / "log", tmp_path / "out", SCHEMA)
    before = (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns
    assert cluster(tmp_path / "log", tmp_path / "out", SCHEMA) == first
    assert (tmp_path / "out" / "part-00000.parquet").stat().st_mtime_ns == before
    with pytest.raises(InputError, match="clustered from other settings"):
        cluster(tmp_path / "log", tmp_path / "out", SCHEMA, ClusterSettings(compression_level=9))
    write_log(tmp_path / "log", [[ROW, ROW]])
    with pytest.raises(InputError, match="clustered from other files"):
        cluster(tmp_path / "log", tmp_path / "out", SCHEMA)


def test_what_stands_in_the_way_is_said(tmp_path):
    write_log(tmp_path / "log", [[ROW]])
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(InputError, match="taken: is not empty"):
        cluster(tmp_path / "log", tmp_path / "taken", SCHEMA)
    with pytest.raises(InputError, match="engine is 'spark'"):
        cluster(tmp_path / "log", tmp_path / "out", SCHEMA, engine="spark")
    with pytest.raises(InputError, match="memory is 5"):
        ClusterSettings(memory=5)
    uneven = ROW | {"h": [1, 2], "k": [1]}
    write_log(tmp_path / "uneven", [[uneven]])
    with pytest.raises(InputError, match=r"'history'.*differ in length"):
        cluster(tmp_path / "uneven", tmp_path / "uneven-out", SCHEMA)


def test_a_manifest_of_another_format_is_refused(tmp_path):
    write_log(tmp_path / "log", [[ROW]])
    cluster(tmp_path / "log", tmp_path / "out", SCHEMA)
    path = tmp_path / "out" / "_manifest.json"
    held = json.loads(path.read_text())
    held["versions"]["format"] = 99
    path.write_text(json.dumps(held))
    with pytest.raises(InputError, match="format 99 is not 2"):
        Manifest.read(tmp_path / "out")


def test_without_duckdb_the_extra_is_named(tmp_path, monkeypatch):
    write_log(tmp_path / "log", [[ROW]])
    monkeypatch.setitem(sys.modules, "duckdb", None)
    with pytest.raises(InputError, match=r"shardgym\[sessions\]"):
        cluster(tmp_path / "log", tmp_path / "out", SCHEMA)


def test_whole_number_sessions_and_timestamps_keep_their_types(tmp_path):
    kinds = {"session_id": pa.uint64(), "timestamp": pa.timestamp("ms", "UTC"), "f": pa.large_list(pa.float32())}
    table = pa.table(
        {"session_id": [2**63 + 1, 3, 2**63 + 1], "timestamp": [3, 1, 2], "f": [[0.5], [], [float("nan")]]},
        schema=pa.schema(kinds.items()),
    )
    pq.write_table(table, tmp_path / "log.parquet")
    cluster(tmp_path / "log.parquet", tmp_path / "out", SessionSchema(groups=(GroupSpec("f", ("f",)),)))
    nested = pq.read_table(tmp_path / "out" / "part-00000.parquet")
    assert nested.column("session_id").to_pylist() == [3, 2**63 + 1]
    assert nested.schema.field("timestamp").type.value_type == kinds["timestamp"]
    assert str(nested.column("f").to_pylist()) == "[[[]], [[nan], [0.5]]]"


@pytest.mark.slow
def test_ray_writes_the_same_files(tmp_path):
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    write_generated(LogSpec(sessions=500, samples_per_session=6), tmp_path / "log", rows_per_file=500)
    kept = ClusterSettings(memory=256 << 20, partitions=4, threads=1)
    local = cluster(tmp_path / "log", tmp_path / "local", settings=kept)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False)
    try:
        assert cluster(tmp_path / "log", tmp_path / "ray", settings=kept, engine="ray") == local
        assert files_of(tmp_path / "ray") == files_of(tmp_path / "local")
        write_log(tmp_path / "bad", [[ROW | {"timestamp": None}]])
        with pytest.raises(InputError, match="'timestamp' is null"):
            cluster(tmp_path / "bad", tmp_path / "bad-out", SCHEMA, kept, engine="ray")
    finally:
        ray.shutdown()


def test_two_runs_into_one_folder_do_not_mix(tmp_path):
    write_log(tmp_path / "log", [[ROW]])
    work = tmp_path / "out" / "_work"
    work.mkdir(parents=True)
    with open(work / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(InputError, match="another run is clustering"):
            cluster(tmp_path / "log", tmp_path / "out", SCHEMA)
    assert cluster(tmp_path / "log", tmp_path / "out", SCHEMA).samples == 1


def test_columns_that_differ_by_case_alone_are_kept_apart(tmp_path):
    kinds = {"session_id": pa.int64(), "timestamp": pa.int64(), "f": pa.list_(pa.int64()), "F": pa.list_(pa.int64())}
    table = pa.table({"session_id": [2, 1], "timestamp": [1, 2], "f": [[1], [2]], "F": [[3], []]}, pa.schema(kinds))
    pq.write_table(table, tmp_path / "log.parquet")
    schema = SessionSchema(groups=(GroupSpec("f", ("f",)), GroupSpec("F", ("F",))))
    for name, share in (("memory", 3), ("disk", 10**9)):
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(sorting, "IN_MEMORY_SHARE", share)
            cluster(tmp_path / "log.parquet", tmp_path / name, schema)
        nested = pq.read_table(tmp_path / name / "part-00000.parquet")
        assert nested.column("f").to_pylist() == [[[2]], [[1]]]
        assert nested.column("F").to_pylist() == [[[]], [[3]]]


@settings(max_examples=30)
@given(logs())
def test_sorted_in_memory_or_on_disk_the_files_are_the_same(files):
    with tempfile.TemporaryDirectory() as name, pytest.MonkeyPatch.context() as patch:
        folder = Path(name)
        write_log(folder / "log", files)
        cluster(folder / "log", folder / "memory", SCHEMA, ClusterSettings(partitions=1))
        patch.setattr(sorting, "IN_MEMORY_SHARE", 10**9)
        cluster(folder / "log", folder / "disk", SCHEMA, ClusterSettings(partitions=1))
        assert files_of(folder / "memory") == files_of(folder / "disk")


@pytest.mark.parametrize(
    ("error", "message"),
    [
        (pa.ArrowInvalid("Out of Memory Error: failed to allocate"), "does not fit the memory of 1000 MB; give more"),
        (MemoryError(), "does not fit the memory"),
        (OSError(28, "No space left on device"), r"cannot be written .*No space left on device.*run the same again"),
    ],
)
def test_what_memory_or_disk_refuses_is_one_sentence_and_can_go_on(tmp_path, monkeypatch, error, message):
    write_log(tmp_path / "log", [[ROW]])

    def refuse(*_, **__):
        raise error

    with monkeypatch.context() as patch:
        patch.setattr(pq.ParquetWriter, "write_table", refuse)
        with pytest.raises(InputError, match=message):
            cluster(tmp_path / "log", tmp_path / "out", SCHEMA)
    assert cluster(tmp_path / "log", tmp_path / "out", SCHEMA).samples == 1


def test_a_small_memory_sorts_many_columns(tmp_path):
    lists = {f"f{k}": [[at // 10] * 3 for at in range(3000)] for k in range(80)}
    table = pa.table({"session_id": [at // 10 for at in range(3000)], "timestamp": list(range(3000)), **lists})
    pq.write_table(table, tmp_path / "log.parquet")
    manifest = cluster(tmp_path / "log.parquet", tmp_path / "out", settings=ClusterSettings(memory=256 * 10**6))
    assert (manifest.samples, manifest.sessions) == (3000, 300)


def test_settings_out_of_range_are_said():
    with pytest.raises(InputError, match="compression_level is 99; give 22 at most"):
        ClusterSettings(compression_level=99)
    with pytest.raises(InputError, match="partitions is 100000; give 4096 at most"):
        ClusterSettings(partitions=100_000)


@pytest.mark.slow
def test_ray_says_what_no_machine_has(tmp_path):
    ray = pytest.importorskip("ray", reason="the extra `ray` is not installed")
    write_log(tmp_path / "log", [[ROW]])
    ray.init(num_cpus=1, include_dashboard=False, log_to_driver=False)
    try:
        with pytest.raises(InputError, match="a task takes 2 threads, but no machine of the cluster has more than 1"):
            cluster(tmp_path / "log", tmp_path / "out", SCHEMA, engine="ray")
        large = ClusterSettings(memory=10**15, threads=1)
        with pytest.raises(InputError, match="bytes of memory, but no machine"):
            cluster(tmp_path / "log", tmp_path / "large", SCHEMA, large, engine="ray")
    finally:
        ray.shutdown()
