"""Windows of shared values: exact expansion, the sharing that sliding histories allow, kept by every operation."""

import pickle

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor, WindowGroup
from shardgym.embeddings.jagged.windows import find_windows_reference
from shardgym.embeddings.kernels.build import load_kernel
from shardgym.problem.errors import InputError
from tests.embeddings.jagged.strategies import bits, bits_of, kjt_of


@st.composite
def histories(draw):
    """Rows of one or two keys side by side: windows of one stream, stray rows and empty rows among them."""
    keys = ["video", "author"][: draw(st.integers(1, 2))]
    stream = draw(st.lists(st.integers(0, 3), min_size=1, max_size=12))
    rows = []
    for _ in range(draw(st.integers(0, 8))):
        start = draw(st.integers(0, len(stream) - 1))
        rows.append(stream[start : start + draw(st.integers(0, 5))])
    per_key = {key: [[value * (k + 1) for value in row] for row in rows] for k, key in enumerate(keys)}
    weights = None
    if draw(st.booleans()):
        weights = {key: [[draw(st.sampled_from([1.0, 0.5])) for _ in row] for row in rows] for key in keys}
    return kjt_of(keys, per_key, weights, draw(st.sampled_from([torch.int32, torch.int64])))


def sliding(rows, window, newest_first=False):
    lists = [list(range(max(0, end - window), end)) for end in range(1, rows + 1)]
    return kjt_of(["video"], {"video": [row[::-1] if newest_first else row for row in lists]})


def test_the_example_of_the_paper():
    partial = PartialInverseKeyedJaggedTensor.from_kjt(kjt_of(["a"], {"a": [[3, 4, 5], [4, 5, 6]]}), [["a"]])
    (group,) = partial.groups
    assert group.values.tolist() == [[3, 4, 5, 6]]
    assert list(zip(group.starts.tolist(), group.lengths.tolist())) == [(0, 3), (1, 3)]


@pytest.mark.parametrize("newest_first", [False, True])
def test_sliding_histories_are_held_once(newest_first):
    kjt = sliding(100, window=20, newest_first=newest_first)
    partial = PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["video"]])
    assert partial.groups[0].shared() == 100
    assert partial.factor() == pytest.approx(kjt.values().numel() / 100)
    assert InverseKeyedJaggedTensor.from_kjt(kjt).factor() == 1.0
    assert partial.to_kjt().equal(kjt)


def test_interleaved_users_need_an_order():
    one, two = sliding(30, 10), sliding(30, 10)
    lists = [row for pair in zip(one["video"].to_dense(), two["video"].to_dense()) for row in pair]
    rows = [(row + 1000 * (k % 2)).tolist() for k, row in enumerate(lists)]
    kjt = kjt_of(["video"], {"video": rows})
    by_user = torch.cat([torch.arange(0, 60, 2), torch.arange(1, 60, 2)])
    apart = PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["video"]])
    together = PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["video"]], order=by_user)
    assert together.groups[0].shared() == 60 < apart.groups[0].shared()
    assert together.to_kjt().equal(kjt)


@given(histories(), st.data())
def test_expansion_is_exact_and_kept(kjt, data):
    partial = PartialInverseKeyedJaggedTensor.from_kjt(kjt, [kjt.keys()])
    again = PartialInverseKeyedJaggedTensor(partial.groups)
    assert bits(again.to_kjt()) == bits(kjt)
    assert bits(again.select(kjt.keys()[:1]).to_kjt()) == bits(kjt.select(kjt.keys()[:1]))
    rows = data.draw(st.lists(st.integers(0, max(0, kjt.stride() - 1)), max_size=6 if kjt.stride() else 0))
    picked = again.index_select(torch.tensor(rows, dtype=torch.int64))
    PartialInverseKeyedJaggedTensor(picked.groups)
    assert bits(picked.to_kjt()) == bits(kjt.index_select(torch.tensor(rows, dtype=torch.int64)))
    leaves, structure = pytree.tree_flatten(again)
    for copy in (pickle.loads(pickle.dumps(again)), pytree.tree_unflatten(leaves, structure), again.to("cpu")):
        assert bits_of(copy.tensors()) == bits_of(again.tensors())


@given(histories(), st.booleans())
def test_the_compiled_scan_agrees_with_plain_python(kjt, backwards):
    kernel = load_kernel("dedup_cpu")
    if kernel is None:
        pytest.skip("no compiler")
    channels = kjt.values().long().view(len(kjt.keys()), -1)
    offsets = kjt.offsets()[: kjt.stride() + 1].long()
    order = torch.arange(kjt.stride())
    order = order.flip(0) if backwards else order
    ours, reference = kernel.find_windows(channels, offsets, order), find_windows_reference(channels, offsets, order)
    assert [t.tolist() for t in ours] == [t.tolist() for t in reference]


def test_exact_and_windowed_groups_stand_side_by_side():
    kjt = KeyedJaggedTensor.concat([sliding(6, 3), kjt_of(["age"], {"age": [[1]] * 6})])
    exact = InverseKeyedJaggedTensor.from_kjt(kjt.select(["age"])).groups
    windows = PartialInverseKeyedJaggedTensor.from_kjt(kjt.select(["video"]), [["video"]]).groups
    both = PartialInverseKeyedJaggedTensor([*exact, *windows], keys=["video", "age"])
    assert both.to_kjt().equal(kjt)
    assert both.split([1, 1])[1].groups[0].unique_rows() == 1
    assert both.factor() == pytest.approx((15 + 6) / (6 + 1))


def window_group(**fields):
    values = {"values": torch.tensor([[3, 4, 5, 6]]), "starts": torch.tensor([0, 1]), "lengths": torch.tensor([3, 3])}
    return WindowGroup(("a",), **(values | fields))


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"starts": torch.tensor([0, 2])}, r"row 1 is the window \(2, 3\) of 4"),
        ({"starts": torch.tensor([-1, 1])}, "row 0 is the window"),
        ({"lengths": torch.tensor([3, 1])}, "1 of the 4 shared values are in no row"),
        ({"lengths": torch.tensor([3])}, "2 starts beside 1 lengths"),
        ({"starts": torch.tensor([0.0, 1.0])}, "float32"),
        ({"values": torch.tensor([3, 4, 5, 6])}, "one row of values per key"),
        ({"weights": torch.ones(1, 3)}, "weights has shape"),
    ],
)
def test_windows_that_do_not_fit_are_named(fields, message):
    with pytest.raises(InputError, match=message):
        PartialInverseKeyedJaggedTensor([window_group(**fields)])


def test_features_of_unequal_lengths_cannot_share_windows():
    kjt = kjt_of(["a", "b"], {"a": [[1]], "b": [[1, 2]]})
    with pytest.raises(InputError, match=r"a\+b: the features' lists differ in length"):
        PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["a", "b"]])
