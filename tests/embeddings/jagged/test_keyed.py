"""Jagged tensors against plain lists, and the errors that construction raises."""

import pickle

import pytest
import torch
from hypothesis import given, strategies as st
from torch.utils import _pytree as pytree

from shardgym.embeddings.jagged.keyed import JaggedTensor, KeyedJaggedTensor
from shardgym.embeddings.jagged.ops import expand_rows, jagged_index_select
from shardgym.problem.errors import InputError
from tests.embeddings.jagged.strategies import batches, bits, kjt_of

ROWS = {"clicks": [[1, 2], [], [3]], "tags": [[4], [5, 6], []]}


def dense(jagged):
    return [row.tolist() for row in jagged.to_dense()]


def test_each_key_gives_its_rows():
    kjt = kjt_of(["clicks", "tags"], ROWS)
    assert {key: dense(jagged) for key, jagged in kjt.to_dict().items()} == ROWS
    assert kjt["tags"].offsets().tolist() == [0, 1, 3, 3]
    assert (kjt.stride(), kjt.length_per_key(), kjt.offset_per_key()) == (3, [3, 3], [0, 3, 6])


def test_torchrec_constructors_agree():
    kjt = kjt_of(["clicks", "tags"], ROWS)
    lengths = KeyedJaggedTensor.from_lengths_sync(["clicks", "tags"], kjt.values(), kjt.lengths())
    offsets = KeyedJaggedTensor.from_offsets_sync(["clicks", "tags"], kjt.values(), kjt.offsets())
    assert lengths.equal(kjt)
    assert offsets.equal(kjt)
    assert KeyedJaggedTensor.from_jt_dict(kjt.to_dict()).equal(kjt)


def test_padded_rows_are_cut_and_filled_at_their_ends():
    jagged = kjt_of(["clicks", "tags"], ROWS)["tags"]
    assert jagged.to_padded_dense().tolist() == [[4, 0], [5, 6], [0, 0]]
    assert jagged.to_padded_dense(1, padding_value=-1).tolist() == [[4], [5], [-1]]
    embedded = JaggedTensor(torch.ones(2, 3), lengths=torch.tensor([0, 2]))
    assert embedded.to_padded_dense().shape == (2, 2, 3)


@given(batches(), st.data())
def test_permute_split_concat_and_select_keep_every_list(kjt, data):
    rows = {key: dense(kjt[key]) for key in kjt.keys()}  # noqa: SIM118
    order = data.draw(st.permutations(range(len(rows))))
    permuted = kjt.permute(order)
    assert permuted.keys() == [kjt.keys()[at] for at in order]
    assert {key: dense(permuted[key]) for key in rows} == rows
    parts = permuted.split([1] * len(rows))
    assert [part.keys() for part in parts] == [[key] for key in permuted.keys()]  # noqa: SIM118
    back = KeyedJaggedTensor.concat(parts).select(kjt.keys())
    assert bits(back) == bits(kjt)


@given(batches(), st.lists(st.integers(0, 8), max_size=6))
def test_index_select_takes_whole_rows(kjt, wanted):
    wanted = [row for row in wanted if row < kjt.stride()]
    picked = kjt.index_select(torch.tensor(wanted, dtype=torch.int64))
    for key in kjt.keys():  # noqa: SIM118
        rows = dense(kjt[key])
        assert dense(picked[key]) == [rows[row] for row in wanted]
    assert picked.stride() == len(wanted)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@given(batches(), st.lists(st.integers(0, 8), max_size=9))
def test_gathers_agree_with_torch_forward_and_backward(dtype, kjt, wanted):
    index = torch.tensor([row for row in wanted if row < kjt.stride()], dtype=torch.int64)
    offsets = kjt.offsets()[: kjt.stride() + 1]
    values = torch.randn(int(offsets[-1]), 3, dtype=dtype, requires_grad=True)
    picked, _ = jagged_index_select(values, offsets, index)
    positions = [at for row in index.tolist() for at in range(offsets[row], offsets[row + 1])]
    expected = values[positions]
    assert torch.equal(picked, expected)
    grad = torch.randn_like(picked)
    (ours,) = torch.autograd.grad(picked, values, grad, retain_graph=True)
    (reference,) = torch.autograd.grad(expected, values, grad)
    torch.testing.assert_close(ours, reference)
    rows = torch.randn(kjt.stride(), 2, 3, dtype=dtype, requires_grad=True)
    (ours,) = torch.autograd.grad(expand_rows(rows, index).cos().sum(), rows)
    (reference,) = torch.autograd.grad(rows[index].cos().sum(), rows)
    torch.testing.assert_close(ours, reference)


def test_jagged_index_select_with_an_empty_index_and_its_gradient():
    values = torch.randn(4, 2, requires_grad=True)
    offsets = torch.tensor([0, 1, 1, 4])
    nothing, lengths = jagged_index_select(values, offsets, torch.tensor([], dtype=torch.int64))
    assert (nothing.shape, lengths.shape) == ((0, 2), (0,))
    picked, lengths = jagged_index_select(values, offsets, torch.tensor([2, 0, 2, 1]))
    assert lengths.tolist() == [3, 1, 3, 0]
    picked.sum().backward()
    assert values.grad.tolist() == [[1, 1], [2, 2], [2, 2], [2, 2]]


@given(batches())
def test_pickle_pytree_and_size(kjt):
    again = pickle.loads(pickle.dumps(kjt))
    leaves, structure = pytree.tree_flatten(kjt)
    rebuilt = pytree.tree_unflatten(leaves, structure)
    for copy in (again, rebuilt, kjt.to("cpu")):
        assert (copy.keys(), copy.stride()) == (kjt.keys(), kjt.stride())
        assert bits(copy) == bits(kjt)
    assert kjt.size_in_bytes() == sum(t.numel() * t.element_size() for t in kjt.tensors())


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"lengths": torch.tensor([1, 1, 1])}, "lengths sum to 3"),
        ({"lengths": torch.tensor([3, -1])}, "negative"),
        ({"lengths": torch.tensor([1.0, 1.0])}, r"lengths.*float32"),
        ({"lengths": torch.tensor([[1, 1]])}, r"lengths.*\(1, 2\)"),
        ({"offsets": torch.tensor([0, 2, 1, 2])}, "offsets fall"),
        ({"offsets": torch.tensor([])}, "offsets has shape"),
        ({"offsets": torch.tensor([1, 1, 3])}, "start at 0|lengths sum"),
        ({"offsets": torch.tensor([1, 2, 3]), "lengths": torch.tensor([1, 1])}, "start at 0"),
        ({}, "neither lengths nor offsets"),
        ({"lengths": torch.tensor([1, 1]), "weights": torch.ones(3)}, "weights"),
    ],
)
def test_inconsistent_fields_are_named(fields, message):
    with pytest.raises(InputError, match=message):
        KeyedJaggedTensor(["a"], torch.tensor([7, 8]), **fields)


def test_keys_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="2 lengths do not fit 3 keys"):
        KeyedJaggedTensor(["a", "b", "c"], torch.tensor([7, 8]), lengths=torch.tensor([1, 1]))
    with pytest.raises(InputError, match=r"\['a'\] come more than once"):
        KeyedJaggedTensor(["a", "a"], torch.tensor([7, 8]), lengths=torch.tensor([1, 1]))
    kjt = kjt_of(["clicks", "tags"], ROWS)
    with pytest.raises(InputError, match=r"no feature 'x'; there are \['clicks', 'tags'\]"):
        kjt["x"]
    with pytest.raises(InputError, match="do not add up to the 2 keys"):
        kjt.split([1])
    with pytest.raises(InputError, match="not positions among 2 keys"):
        kjt.permute([0, 0])
    with pytest.raises(InputError, match=r"\[1, 3\] rows"):
        KeyedJaggedTensor.concat([kjt, kjt_of(["z"], {"z": [[1]]})])
    with pytest.raises(InputError, match="some parts have weights"):
        KeyedJaggedTensor.concat([kjt, kjt_of(["z"], {"z": [[1]] * 3}, {"z": [[1]] * 3})])
    with pytest.raises(InputError, match="weights are asked for"):
        kjt.weights()


def test_no_keys_and_no_rows():
    assert KeyedJaggedTensor.empty(["a", "b"]).length_per_key() == [0, 0]
    assert KeyedJaggedTensor.concat([]).keys() == []
    assert kjt_of(["clicks", "tags"], ROWS).split([0, 2])[0].stride() == 3
