"""Transforms on unique lists give what they give on every list; each against plain Python."""

import bisect

import pytest
import torch
from hypothesis import given, strategies as st

from shardgym.dataio.sessions.transforms import Bucketize, Clamp, HashIds, Truncate, transformed
from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.problem.errors import InputError
from tests.embeddings.jagged.strategies import batches, groupings, kjt_of, lists_of

BOUNDARIES = (-1.0, 0.0, 2.0)
WRAP = 1 << 64


def fmix64(value, rows):
    """MurmurHash3's 64-bit finaliser in Python's whole numbers, the 33-bit shifts keeping 31 bits."""
    word = value % WRAP
    for multiplier in (-0xAE502812AA7333, -0x3B314601E57A13AD):
        word = (word ^ ((word >> 33) & 0x7FFFFFFF)) * multiplier % WRAP
    word ^= (word >> 33) & 0x7FFFFFFF
    return (word & 0x7FFFFFFFFFFFFFFF) % rows


PLAIN = {
    Clamp(-1, 2): lambda row: [min(max(value, -1), 2) for value in row],
    Bucketize(BOUNDARIES): lambda row: [bisect.bisect_right(BOUNDARIES, value) for value in row],
    HashIds(1000): lambda row: [fmix64(value, 1000) for value in row],
    HashIds(7, salt=3): lambda row: [fmix64(value + 3 * 0x9E3779B9, 7) for value in row],
    Truncate(2): lambda row: row[-2:],
    Truncate(1, "first"): lambda row: row[:1],
    Truncate(0): lambda row: [],
}

pipelines = st.lists(st.sampled_from(list(PLAIN)), max_size=3)


def plainly(rows, transforms):
    for each in transforms:
        rows = [PLAIN[each](row) for row in rows]
    return rows


def values_of(batch):
    return {key: [[value for value, _ in row] for row in rows] for key, rows in lists_of(batch).items()}


@given(batches(), st.data())
def test_plain_and_deduplicated_batches_are_transformed_alike(kjt, data):
    transforms = {key: data.draw(pipelines) for key in kjt.keys() if data.draw(st.booleans())}  # noqa: SIM118
    groups = data.draw(groupings(kjt.keys()))
    rows = values_of(kjt)
    if kjt.values().dtype != torch.int64:
        kjt = kjt_of(kjt.keys(), rows)
    expected = {key: plainly(rows[key], transforms.get(key, [])) for key in kjt.keys()}  # noqa: SIM118
    assert values_of(transformed(kjt, transforms)) == expected
    made = transformed(InverseKeyedJaggedTensor.from_kjt(kjt, groups), transforms)
    InverseKeyedJaggedTensor(made.groups, made.keys(), made.stride())
    assert values_of(made.to_kjt()) == expected


@given(st.lists(st.integers(0, 5), min_size=1, max_size=8), pipelines, pipelines)
def test_windows_are_transformed_where_they_are_shared(ends, first, second):
    history = [3, -2, 7, 0, 2, 9, -5, 1, 4]
    rows = {
        "h": [history[max(0, end - 3) : end] for end in ends],
        "k": [history[max(0, end - 3) : end] for end in ends],
    }
    kjt = kjt_of(["h", "k"], rows)
    batch = PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["h", "k"]])
    made = transformed(batch, {"h": first, "k": second})
    PartialInverseKeyedJaggedTensor(made.groups, made.keys(), made.stride())
    assert values_of(made.to_kjt()) == {"h": plainly(rows["h"], first), "k": plainly(rows["k"], second)}


def test_weights_go_with_their_values():
    kjt = KeyedJaggedTensor(
        ["a"], torch.arange(5), weights=torch.arange(5.0), lengths=torch.tensor([3, 0, 2]), stride=3
    )
    made = transformed(kjt, {"a": [Truncate(1)]})
    assert (made.values().tolist(), made.weights().tolist()) == ([2, 4], [2.0, 4.0])


def test_hashed_ids_spread_evenly():
    ids = HashIds(64).values(torch.arange(64_000) * 4096)
    counts = torch.bincount(ids, minlength=64)
    assert int(counts.min()) > 850
    assert int(counts.max()) < 1150


def test_floats_are_bucketised_and_types_that_differ_are_said():
    kjt = KeyedJaggedTensor(["a", "b"], torch.tensor([0.5, float("nan"), 3.0]), lengths=torch.tensor([1, 2]), stride=1)
    with pytest.raises(InputError, match="a and b share a group"):
        transformed(kjt, {"a": [Bucketize(BOUNDARIES)]})
    made = transformed(kjt, {"a": [Bucketize(BOUNDARIES)], "b": [Bucketize(BOUNDARIES)]})
    assert made.values().tolist() == [2, 3, 3]
    assert made.values().dtype == torch.int64


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: HashIds(0), "rows is 0"),
        (lambda: Clamp(2, 1), "low 2 is not at most high 1"),
        (lambda: Bucketize((1.0, 1.0)), "do not rise"),
        (lambda: Truncate(-1), "-1"),
        (lambda: Truncate(1, "middle"), "middle"),
    ],
)
def test_bad_settings_are_named(make, message):
    with pytest.raises(InputError, match=message):
        make()
