"""To TorchRec and back: the same lists, and TorchRec's own unsharded look-up as the judge of the inverse."""

import pytest
import torch
from hypothesis import given

from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.torchrec import from_torchrec, to_torchrec
from shardgym.problem.errors import InputError
from tests.embeddings.jagged.strategies import batches, bits, kjt_of

jagged_tensor = pytest.importorskip("torchrec.sparse.jagged_tensor", reason="torchrec is not installed")

ROWS = {"clicks": [[1, 2], [1, 2], [3], [1, 2]], "tags": [[4], [4], [], [5]], "item": [[1], [2], [3], [4]]}


@given(batches())
def test_round_trips_are_exact(kjt):
    assert bits(from_torchrec(to_torchrec(kjt))) == bits(kjt)
    ikjt = InverseKeyedJaggedTensor.from_kjt(kjt, [kjt.keys()])
    back = from_torchrec(to_torchrec(ikjt))
    assert bits(back.to_kjt()) == bits(kjt)
    assert len(back.groups) == 1


def test_torchrec_reads_the_inverse_as_we_do():
    ikjt = InverseKeyedJaggedTensor.from_kjt(kjt_of(list(ROWS), ROWS), [["clicks", "tags"]])
    theirs = to_torchrec(ikjt)
    assert theirs.stride_per_key() == [3, 3, 4]
    for at, key in enumerate(theirs.keys()):
        unique = theirs[key].to_dense()
        rows = [unique[row].tolist() for row in theirs.inverse_indices()[1][at].tolist()]
        assert rows == ROWS[key]


def test_what_torchrec_lets_pass_is_refused():
    values, lengths = torch.tensor([1, 2]), torch.tensor([1, 1])
    out_of_range = jagged_tensor.KeyedJaggedTensor(
        ["a"],
        values,
        lengths=lengths,
        stride_per_key_per_rank=[[2]],
        inverse_indices=(["a"], torch.tensor([[0, 1, 5]])),
    )
    with pytest.raises(InputError, match=r"group a: the inverse has entries outside 0\.\.1"):
        from_torchrec(out_of_range)
    no_inverse = jagged_tensor.KeyedJaggedTensor(
        ["a", "b"], torch.tensor([1, 2, 3]), lengths=torch.tensor([1, 1, 1]), stride_per_key_per_rank=[[2], [1]]
    )
    with pytest.raises(InputError, match=r"have \[2, 1\] rows but no inverse_indices"):
        from_torchrec(no_inverse)


def test_a_batch_without_keys_keeps_its_rows():
    nothing = torch.empty(0, dtype=torch.int64)
    for batch in (KeyedJaggedTensor([], nothing, lengths=nothing, stride=7), InverseKeyedJaggedTensor([], stride=7)):
        assert from_torchrec(to_torchrec(batch)).stride() == 7


@pytest.mark.parametrize("weighted_first", [True, False])
def test_weights_go_to_no_other_key(weighted_first):
    weighted = kjt_of(["a"], {"a": [[1], [2, 3]]}, {"a": [[0.5], [1.5, 2.5]]})
    bare = kjt_of(["b"], {"b": [[4, 5], [6]]})
    parts = [weighted, bare] if weighted_first else [bare, weighted]
    with pytest.raises(InputError, match="key 'b' has no weights and others have"):
        to_torchrec(InverseKeyedJaggedTensor.concat(parts))
    both = InverseKeyedJaggedTensor.concat([weighted, kjt_of(["b"], {"b": [[4], [6]]}, {"b": [[3.0], [4.0]]})])
    assert bits(from_torchrec(to_torchrec(both)).to_kjt()) == bits(both.to_kjt())
