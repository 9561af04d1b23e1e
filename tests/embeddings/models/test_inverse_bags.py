"""Pooled look-ups and DLRM: a deduplicated batch gives what the plain batch gives, forward, backward and updated."""

import copy
from contextlib import contextmanager

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.embeddings.models.dlrm import DLRM
from shardgym.embeddings.models.dot_pairs import dot_pairs, dot_pairs_reference
from shardgym.embeddings.models.inverse_bags import InverseBags, pays
from shardgym.embeddings.tables.table_batched import TableBatchedBags
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag
from shardgym.problem.errors import InputError
from shardgym.problem.tables import TableSpec
from tests.embeddings.jagged.strategies import groupings, kjt_of

ROWS, DIM = 7, 4
KEYS = ["a", "b", "c"]


@st.composite
def id_batches(draw, weighted=False):
    """Rows of three keys that repeat, ids inside the tables; one key slides."""
    states = draw(
        st.lists(st.fixed_dictionaries(dict.fromkeys(KEYS, st.lists(st.integers(0, ROWS - 1), max_size=6))), min_size=1)
    )
    rows = [draw(st.sampled_from(states)) for _ in range(draw(st.integers(0, 12)))]
    weight = st.sampled_from([0.5, 1.0, -2.0])
    weights = {key: [[draw(weight) for _ in row[key]] for row in rows] for key in KEYS} if weighted else None
    return kjt_of(KEYS, {key: [row[key] for row in rows] for key in KEYS}, weights)


def bags_of(mode="sum", seed=0):
    torch.manual_seed(seed)
    return InverseBags([([key], nn.EmbeddingBag(ROWS, DIM, mode=mode, sparse=mode != "max")) for key in KEYS])


def forms(kjt, groups):
    """The same batch deduplicated, windowed, and mixed."""
    yield InverseKeyedJaggedTensor.from_kjt(kjt, groups)
    yield PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["a"], ["c"]])
    windows = PartialInverseKeyedJaggedTensor.from_kjt(kjt.select(["b"]), [["b"]]).groups
    exact = InverseKeyedJaggedTensor.from_kjt(kjt.select(["a", "c"]), [["a", "c"]]).groups
    yield PartialInverseKeyedJaggedTensor([*windows, *exact], KEYS)


@contextmanager
def duplicates_held():
    """A model's fall-back must not hide the path under test: holding duplicates always pays here."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("shardgym.embeddings.models.inverse_bags.EXPANSION_COST", -1.0)
        patch.setattr("shardgym.embeddings.models.inverse_bags.LEAST_WINDOW_FACTOR", -1.0)
        yield


@settings(max_examples=50)
@given(st.data(), st.sampled_from(["sum", "mean", "max"]))
def test_every_form_pools_to_the_same(data, mode):
    kjt = data.draw(id_batches(weighted=mode == "sum" and data.draw(st.booleans())))
    bags = bags_of(mode)
    expected = bags(kjt)
    grad = torch.randn_like(expected)
    plain = torch.autograd.grad(bags(kjt), list(bags.parameters()), grad)
    for batch in forms(kjt, data.draw(groupings(KEYS))):
        with duplicates_held():
            pooled = bags(batch)
        torch.testing.assert_close(pooled, expected)
        if isinstance(batch, InverseKeyedJaggedTensor):
            assert torch.equal(pooled, expected)
        for ours, theirs in zip(torch.autograd.grad(pooled, list(bags.parameters()), grad), plain):
            torch.testing.assert_close(ours.to_dense(), theirs.to_dense())


def clustered(samples=6, sessions=8, seed=0, length=5):
    """A batch of sessions whose three features repeat, and its deduplicated form."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(1, length + 1, (len(KEYS) * sessions,), generator=generator)
    ids = torch.randint(0, ROWS, (int(lengths.sum()),), generator=generator)
    unique = KeyedJaggedTensor(KEYS, ids, lengths=lengths)
    return InverseKeyedJaggedTensor([FeatureGroup(unique, torch.arange(sessions).repeat_interleave(samples))])


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.Adagrad, torch.optim.SparseAdam])
def test_exact_optimizers_update_alike(optimizer):
    ikjt = clustered()
    weights = []
    for batch in (ikjt, ikjt.to_kjt()):
        bags = bags_of()
        stepper = optimizer(bags.parameters(), lr=0.1)
        for _ in range(3):
            stepper.zero_grad()
            (bags(batch) * torch.linspace(-1, 1, 3 * DIM)).square().sum().backward()
            stepper.step()
        weights.append([bag.weight.detach() for bag in bags.bags])
    for ours, theirs in zip(*weights):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_a_table_batched_op_looks_up_groups_of_unequal_rows_at_once():
    kjt = clustered().to_kjt()
    ikjt = InverseKeyedJaggedTensor.from_kjt(kjt, [["a", "c"]])
    results = []
    for batch in (kjt, ikjt):
        op = TableBatchedBags([TableSpec(key, rows=ROWS, dim=DIM) for key in KEYS], learning_rate=0.1)
        torch.manual_seed(0)
        for weight in op.weights():
            weight.copy_(torch.randn(ROWS, DIM))
        bags = InverseBags([(KEYS, op)])
        first = bags(batch)
        (first * torch.linspace(-1, 1, 3 * DIM)).sum().backward()
        results.append((first.detach(), *[weight.clone() for weight in op.weights()]))
    for ours, theirs in zip(*results):
        torch.testing.assert_close(ours, theirs)


def test_tensor_train_tables_take_deduplicated_batches():
    ikjt = clustered().select(["a"])
    torch.manual_seed(0)
    table = TTEmbeddingBag(ROWS, DIM, ranks=2)
    bags = InverseBags([(["a"], table)])
    pooled, expected = bags(ikjt), bags(ikjt.to_kjt())
    torch.testing.assert_close(pooled, expected)
    grad = torch.randn_like(pooled)
    ours = torch.autograd.grad(pooled, list(table.parameters()), grad)
    theirs = torch.autograd.grad(expected, list(table.parameters()), grad)
    for mine, other in zip(ours, theirs):
        torch.testing.assert_close(mine, other)


def test_groups_that_would_not_pay_are_looked_up_row_by_row():
    ikjt = clustered()
    assert pays(ikjt.groups[0])
    assert not pays(clustered(samples=1).groups[0])
    # One id per row: expanding a pooled row costs half of what the look-up of the id does.
    one_id = clustered(samples=2, length=1).groups[0]
    assert pays(FeatureGroup(one_id.unique, one_id.inverse)) is False
    bags = bags_of()
    torch.testing.assert_close(bags(clustered(samples=1)), bags(clustered(samples=1).to_kjt()))


@pytest.mark.parametrize("shape", [(0, 3, 4), (5, 1, 4), (5, 2, 1), (40, 7, 33)])
def test_dot_products_of_pairs_agree_with_a_batched_product(shape):
    vectors = torch.randn(shape, requires_grad=True)
    ours, reference = dot_pairs(vectors), dot_pairs_reference(vectors)
    torch.testing.assert_close(ours, reference)
    grad = torch.randn_like(ours)
    (mine,), (theirs,) = (torch.autograd.grad(dots, vectors, grad) for dots in (ours, reference))
    torch.testing.assert_close(mine, theirs)


@settings(max_examples=30)
@given(st.data())
def test_dlrm_gives_the_same_for_every_form(data):
    kjt = data.draw(id_batches())
    B = kjt.stride()
    torch.manual_seed(0)
    model = DLRM(bags_of(), dense_features=2, bottom=(5,), top=(6,))
    dense, grad = torch.randn(B, 2), torch.randn(B)
    expected = model(dense, kjt)
    plain = copy.deepcopy(model)
    plain(dense, kjt).backward(grad)
    for batch in forms(kjt, data.draw(groupings(KEYS))):
        mine = copy.deepcopy(model)
        with duplicates_held():
            logits = mine(dense, batch)
        torch.testing.assert_close(logits, expected)
        logits.backward(grad)
        for ours, theirs in zip(mine.parameters(), plain.parameters()):
            torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense(), rtol=1e-4, atol=1e-5)


def test_bad_bags_are_named():
    bag = nn.EmbeddingBag(ROWS, DIM)
    with pytest.raises(InputError, match="EmbeddingBag takes one key"):
        InverseBags([(["a", "b"], bag)])
    with pytest.raises(InputError, match=r"\['a'\] come more than once"):
        InverseBags([(["a"], bag), (["a"], bag)])
    with pytest.raises(InputError, match="no feature 'z'"):
        InverseBags([(["z"], bag)])(clustered())
    weighted = kjt_of(["a"], {"a": [[1]]}, {"a": [[2.0]]})
    with pytest.raises(InputError, match="only mode 'sum' takes them"):
        InverseBags([(["a"], nn.EmbeddingBag(ROWS, DIM, mode="mean"))])(weighted)
    with pytest.raises(InputError, match="dims are"):
        DLRM(InverseBags([(["a"], bag), (["b"], nn.EmbeddingBag(ROWS, 2))]), dense_features=1)
