"""The reader hands out every sample as it was logged, and resumes at any batch under any number of workers."""

import hashlib
import pickle
import tempfile
import warnings
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardgym.dataio.sessions.batch import SessionBatch
from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
from shardgym.dataio.sessions.loader import SessionLoader
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.dataio.sessions.transforms import Clamp, Truncate, transformed
from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.problem.errors import InputError
from tests.dataio.sessions.reference import NAMES, SCHEMA, by_session, clustered_log, fingerprint, logs, write_log
from tests.dataio.sessions.test_log import ROW

pytest.importorskip("duckdb", reason="clustering needs the extra `sessions`")

TIMED = ("timestamp", "click", "price")


@pytest.fixture(scope="module")
def clustered(tmp_path_factory):
    return clustered_log(tmp_path_factory.mktemp("sessions"))


def rows_of(batch):
    """The samples of a batch as dicts, the session left out."""
    features = {key: [row.tolist() for row in lists.to_dense()] for key, lists in batch.features.to_dict().items()}
    columns = {name: column.tolist() for name, column in batch.samples.items()}
    return [
        {name: values[at] for name, values in {**columns, **features}.items()} for at in range(batch.features.stride())
    ]


def validated(batch):
    """The batch once its invariants are checked."""
    features = batch.features
    type(features)(features.groups, features.keys())
    return batch


@settings(max_examples=40)
@given(logs(), st.integers(1, 5), st.integers(1, 3), st.booleans(), st.integers(1, 3))
def test_batches_hold_every_sample_once(files, batch_size, window, shuffle, longest):
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        write_log(folder / "log", files)
        chosen = ClusterSettings(partitions=1, row_group_samples=4, longest_session=longest)
        cluster(folder / "log", folder / "out", SCHEMA, chosen)
        dataset = SessionDataset(
            folder / "out",
            batch_size,
            drop_last=False,
            shuffle_window=window,
            shuffle=shuffle,
            samples=TIMED,
        )
        batches = [validated(batch) for batch in dataset]
        expected = by_session([row for rows in files for row in rows])
        expected = [{name: value for name, value in row.items() if name != "session_id"} for row in expected]
        found = [row for batch in batches for row in rows_of(batch)]
        if window == 1 and not shuffle:
            known = sum(row["session_id"] is not None for rows in files for row in rows)
            assert found[len(found) - known :] == expected[len(expected) - known :]
        assert sorted(map(repr, found)) == sorted(map(repr, expected))
        assert all(batch.features.stride() == batch_size for batch in batches[:-1])
        assert len(dataset) == len(batches)


def test_batches_are_deduplicated_without_hashing_and_hold_one_tensor(clustered):
    dataset = SessionDataset(clustered, 256)
    batch = next(iter(dataset))
    assert isinstance(batch.features, PartialInverseKeyedJaggedTensor)
    assert batch.features.factor() > 3
    plain = batch.features.to_kjt().size_in_bytes()
    assert batch.size_in_bytes() < plain / 2.5
    exact = InverseKeyedJaggedTensor.from_kjt(batch.features.to_kjt(), [["user_tags", "user_follows"]])
    (group,) = (each for each in batch.features.groups if each.keys == ("user_tags", "user_follows"))
    assert group.unique_rows() == exact.groups[0].unique_rows(), "as few unique lists as hashing finds"
    copied = pickle.loads(pickle.dumps(batch))
    assert copied.features.equal(batch.features)
    assert copied.buffer.numel() == batch.buffer.numel() == batch.size_in_bytes()
    assert copied.features.tensors()[0].data_ptr() == copied.buffer.data_ptr(), "views, not copies"


def test_batches_may_be_written_to_without_a_warning_or_a_trace(clustered):
    untouched = [fingerprint(batch) for batch in SessionDataset(clustered, 100)]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for batch, expected in zip(SessionDataset(clustered, 100), untouched):
            assert fingerprint(batch) == expected
            for tensor in (*batch.features.tensors(), *batch.samples.values()):
                tensor.zero_()


@pytest.mark.parametrize("workers", [1, 2])
def test_ranks_share_the_samples(clustered, workers):
    def rows(world, drop_last):
        read = []
        for rank in range(world):
            dataset = SessionDataset(clustered, 50, rank=rank, world_size=world, drop_last=drop_last, samples=NAMES)
            loader = SessionLoader(dataset, workers - 1)
            read.append([row for batch in loader for row in zip(*(batch.samples[n].tolist() for n in batch.samples))])
        return read

    (alone,) = rows(1, drop_last=False)
    shared = rows(2, drop_last=False)
    assert sorted(alone) == sorted(shared[0] + shared[1])
    assert abs(len(shared[0]) - len(shared[1])) <= 1
    even = rows(2, drop_last=True)
    assert len(even[0]) == len(even[1]) == len(alone) // 100 * 50
    assert len(set(even[0]) | set(even[1])) == 2 * len(even[0])


def test_what_does_not_fit_is_said(clustered, tmp_path):
    with pytest.raises(InputError, match=r"samples are no batch of 8 on each of 999 ranks"):
        SessionDataset(clustered, 8, rank=0, world_size=999)
    with pytest.raises(InputError, match="feature 'likes' is not in the log"):
        SessionDataset(clustered, 8, features=["likes"])
    with pytest.raises(InputError, match="no feature 'likes' is read"):
        SessionDataset(clustered, 8, transforms={"likes": [Clamp(0, 1)]})
    with pytest.raises(InputError, match="batch_size is 0"):
        SessionDataset(clustered, 0)
    with pytest.raises(InputError, match="rank is 2 of world_size 2"):
        SessionDataset(clustered, 8, rank=2, world_size=2)
    with pytest.raises(InputError, match=r"no _manifest\.json here"):
        SessionDataset(tmp_path, 8)


def test_missing_truncated_and_corrupt_parts_are_named(tmp_path):
    write_log(tmp_path / "log", [[ROW | {"timestamp": at, "a": [at] * 50} for at in range(40)]])
    cluster(tmp_path / "log", tmp_path / "out", SCHEMA)
    (part,) = (tmp_path / "out").glob("part-*.parquet")
    whole = part.read_bytes()
    part.write_bytes(whole[:-9])
    with pytest.raises(InputError, match=rf"part-00000\.parquet: has {len(whole) - 9} bytes where {len(whole)}"):
        SessionDataset(tmp_path / "out", 8)
    broken = bytearray(whole)
    broken[4:300] = bytes(296)
    part.write_bytes(broken)
    with pytest.raises(InputError, match=r"part-00000\.parquet: row group 0 is corrupt"):
        list(SessionDataset(tmp_path / "out", 8))
    part.write_bytes(bytes(len(whole)))
    with pytest.raises(InputError, match=r"part-00000\.parquet: not as it was written"):
        list(SessionDataset(tmp_path / "out", 8))
    part.unlink()
    with pytest.raises(InputError, match=r"part-00000\.parquet: is missing"):
        SessionDataset(tmp_path / "out", 8)


def test_some_features_and_transforms_are_as_on_the_whole(clustered):
    whole = [batch.features.to_kjt() for batch in SessionDataset(clustered, 100)]
    chosen = ["watched_authors", "user_tags"]
    transforms = {"watched_authors": [Truncate(7)], "user_tags": [Clamp(5, 50)]}
    some = SessionDataset(clustered, 100, features=chosen, samples=(), transforms=transforms)
    for plain, batch in zip(whole, some):
        assert sorted(batch.features.keys()) == sorted(chosen)
        assert batch.samples == {}
        expected = transformed(plain.select(batch.features.keys()), transforms)
        assert validated(batch).features.to_kjt().equal(expected)


def test_a_wider_shuffle_window_costs_deduplication(clustered):
    factors = []
    for window in (1, 2, 8):
        batches = list(SessionDataset(clustered, 64, shuffle_window=window))
        factors.append(np.mean([batch.features.factor() for batch in batches]))
    assert factors[0] > factors[1] > factors[2]


def test_a_batch_of_nothing_packs():
    batch = SessionBatch(InverseKeyedJaggedTensor([], stride=0), {"label": torch.zeros(0)})
    dataset_batch = pickle.loads(pickle.dumps(batch))
    assert dataset_batch.features.stride() == 0
    assert dataset_batch.samples["label"].shape == (0,)


def test_flipped_bytes_are_never_read_as_rows(tmp_path):
    rows = [ROW | {"session_id": f"s{at % 7}", "timestamp": at, "a": [at, 5], "h": [at], "k": [1]} for at in range(60)]
    write_log(tmp_path / "log", [rows])
    cluster(tmp_path / "log", tmp_path / "out", SCHEMA, ClusterSettings(partitions=1, row_group_samples=20))
    (part,) = (tmp_path / "out").glob("part-*.parquet")
    whole = part.read_bytes()
    names = ("timestamp", *SCHEMA.samples)
    expected = [fingerprint(batch) for batch in SessionDataset(tmp_path / "out", 8, samples=names)]
    caught = 0
    for at in range(0, len(whole), 29):
        part.write_bytes(whole[:at] + bytes([whole[at] ^ 0x41]) + whole[at + 1 :])
        try:
            read_back = [fingerprint(batch) for batch in SessionDataset(tmp_path / "out", 8, samples=names)]
        except InputError as error:
            assert "part-00000.parquet" in str(error)  # noqa: PT017
            caught += 1
        else:
            assert read_back == expected, f"byte {at}"
    assert caught > len(whole) // 29 // 2


@pytest.mark.parametrize("text", [False, True])
@pytest.mark.parametrize("shuffle", [False, True])
def test_the_session_of_each_sample_can_be_read(tmp_path, text, shuffle):
    sessions = [f"s{at // 3}" if text else at // 3 for at in range(30)]
    columns = {"session_id": sessions, "timestamp": list(range(30)), "click": [0] * 30}
    pq.write_table(pa.table(columns), tmp_path / "log.parquet")
    cluster(tmp_path / "log.parquet", tmp_path / "out")
    for names in (("session_id",), ("session_id", "timestamp")):
        dataset = SessionDataset(tmp_path / "out", 4, samples=names, shuffle=shuffle, drop_last=False)
        batches = list(dataset)
        ids = [each for batch in batches for each in batch.samples["session_id"].tolist()]
        if text:
            digest = lambda name: hashlib.blake2b(name.encode(), digest_size=8).digest()  # noqa: E731
            known = {int.from_bytes(digest(name), "little", signed=True): name for name in set(sessions)}
            ids = [known[each] for each in ids]
        assert sorted(ids) == sorted(sessions)
    times = [each for batch in batches for each in batch.samples["timestamp"].tolist()]
    assert ids == [sessions[at] for at in times]
