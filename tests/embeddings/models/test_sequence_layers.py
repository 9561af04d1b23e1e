"""Histories: pooling, DIN attention and a transformer layer against plain loops, and DIN on every form of a batch."""

import copy
from dataclasses import replace

import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.embeddings.models.din import DIN
from shardgym.embeddings.models.sequence_layers import DINAttention, SequenceTransformer, pool_sequences
from shardgym.embeddings.models.sequences import embed
from shardgym.problem.errors import InputError
from tests.embeddings.jagged.strategies import kjt_of

HISTORY, CANDIDATE = ["video_hist", "author_hist"], ["video", "author"]
DIM = 4


def tables():
    torch.manual_seed(0)
    return [nn.Embedding(20, DIM, sparse=True), nn.Embedding(10, DIM, sparse=True)]


@st.composite
def watch_batches(draw, own_candidates=True):
    """Users whose histories slide or stay; a candidate per row, or one per user."""
    rows = {key: [] for key in HISTORY + CANDIDATE}
    for user in range(draw(st.integers(1, 3))):
        watched = draw(st.lists(st.integers(0, 19), min_size=8, max_size=8))
        at = draw(st.integers(0, 4))
        for _ in range(draw(st.integers(1, 5))):
            at = min(8, at + draw(st.integers(0, 1)))
            history = watched[max(0, at - 4) : at]
            candidate = draw(st.integers(0, 19)) if own_candidates else user
            for key, ids in zip(HISTORY + CANDIDATE, (history, history, [candidate], [candidate])):
                rows[key].append([i // 2 for i in ids] if "author" in key else ids)
    return kjt_of(HISTORY + CANDIDATE, rows)


def forms(kjt):
    yield InverseKeyedJaggedTensor.from_kjt(kjt, [HISTORY])
    yield InverseKeyedJaggedTensor.from_kjt(kjt, [HISTORY + CANDIDATE])
    yield InverseKeyedJaggedTensor.from_kjt(kjt, [[key] for key in kjt.keys()])  # noqa: SIM118
    yield PartialInverseKeyedJaggedTensor.from_kjt(kjt, [HISTORY])


def dense_rows(sequences):
    return [sequences.values[s : s + n] for s, n in zip(sequences.starts.tolist(), sequences.lengths.tolist())]


@given(watch_batches())
def test_embedded_rows_are_those_of_the_plain_batch(kjt):
    both = tables()
    expected = dense_rows(embed(kjt, HISTORY, both))
    for batch in forms(kjt):
        sequences = embed(batch, HISTORY, both)
        for ours, theirs in zip(dense_rows(sequences.one_row_per_sample()), expected, strict=True):
            assert torch.equal(ours, theirs)


@given(watch_batches(), st.sampled_from(["sum", "mean", "max"]))
def test_pooling_agrees_with_a_loop(kjt, mode):
    sequences = embed(PartialInverseKeyedJaggedTensor.from_kjt(kjt, [HISTORY]), HISTORY, tables())
    reduce = {"sum": lambda row: row.sum(0), "mean": lambda row: row.mean(0), "max": lambda row: row.max(0).values}
    expected = [reduce[mode](row) if len(row) else torch.zeros(2 * DIM) for row in dense_rows(sequences)]
    torch.testing.assert_close(pool_sequences(sequences, mode), torch.stack(expected))


@given(watch_batches())
def test_din_attention_agrees_with_the_paper_s_form(kjt):
    torch.manual_seed(1)
    attention = DINAttention(2 * DIM, hidden=5)
    for batch in forms(kjt):
        sequences = embed(batch, HISTORY, tables()).one_row_per_sample()
        query = torch.randn(kjt.stride(), 2 * DIM)
        # One linear layer over the concatenated query, key and product, a row at a time.
        parts = [attention.from_query, attention.from_key, attention.from_product]
        weight = torch.cat([part.weight for part in parts], dim=1)
        expected = []
        for q, keys in zip(query, dense_rows(sequences)):
            q = q.expand_as(keys)
            hidden = torch.cat([q, keys, q * keys], dim=1) @ weight.T + attention.from_query.bias
            expected.append((attention.score(attention.activation(hidden)) * keys).sum(0))
        expected = torch.stack(expected)
        torch.testing.assert_close(attention(query, sequences), expected)
        torch.testing.assert_close(attention.reference(query, sequences), expected)
        torch.testing.assert_close(attention.per_sample(query, embed(batch, HISTORY, tables())), expected)


@settings(max_examples=40)
@given(watch_batches(), st.integers(1, 40), st.integers(1, 9))
def test_gradients_of_the_compiled_attention_are_those_of_torch(kjt, dim, hidden):
    torch.manual_seed(4)
    attention = DINAttention(dim, hidden)
    sequences = embed(PartialInverseKeyedJaggedTensor.from_kjt(kjt, [HISTORY]), HISTORY[:1], [nn.Embedding(20, dim)])
    exact = embed(InverseKeyedJaggedTensor.from_kjt(kjt, [HISTORY]), HISTORY[:1], [nn.Embedding(20, dim)])
    for each in (sequences, exact):
        values = each.values.detach().requires_grad_()
        query = torch.randn(kjt.stride(), dim, requires_grad=True)
        shared = replace(each, values=values)
        wanted = [query, values, *attention.parameters()]
        grad = torch.randn_like(query)
        ours = torch.autograd.grad(attention.per_sample(query, shared), wanted, grad)
        theirs = torch.autograd.grad(attention.reference(query, shared.one_row_per_sample()), wanted, grad)
        for mine, other in zip(ours, theirs):
            torch.testing.assert_close(mine, other, rtol=1e-3, atol=1e-4)


@settings(max_examples=30)
@given(watch_batches())
def test_the_transformer_sees_each_row_alone(kjt):
    torch.manual_seed(2)
    encoder = SequenceTransformer(2 * DIM, heads=2, feedforward=6)
    for batch in forms(kjt):
        sequences = embed(batch, HISTORY, tables())
        expected = [
            encoder.layer(row.unsqueeze(0)).mean(1).squeeze(0) if len(row) else torch.zeros(2 * DIM)
            for row in dense_rows(sequences)
        ]
        torch.testing.assert_close(encoder(sequences), torch.stack(expected), rtol=1e-4, atol=1e-5)


@settings(max_examples=40)
@given(st.data(), st.booleans())
def test_din_gives_the_same_for_every_form(data, own_candidates):
    kjt = data.draw(watch_batches(own_candidates))
    torch.manual_seed(3)
    model = DIN(tables(), HISTORY, CANDIDATE, attention=5, hidden=(6,))
    plain, grad = copy.deepcopy(model), torch.randn(kjt.stride())
    expected = plain(kjt)
    expected.backward(grad)
    for batch in forms(kjt):
        mine = copy.deepcopy(model)
        logits = mine(batch)
        torch.testing.assert_close(logits, expected)
        logits.backward(grad)
        for ours, theirs in zip(mine.parameters(), plain.parameters()):
            torch.testing.assert_close(ours.grad.to_dense(), theirs.grad.to_dense(), rtol=1e-4, atol=1e-5)


def test_attention_runs_on_unique_rows_when_the_candidate_repeats_with_the_history():
    rows = {"video_hist": [[1, 2, 3]] * 6, "author_hist": [[1, 1, 1]] * 6, "video": [[5]] * 6, "author": [[2]] * 6}
    batch = InverseKeyedJaggedTensor.from_kjt(kjt_of(HISTORY + CANDIDATE, rows), [HISTORY + CANDIDATE])
    model = DIN(tables(), HISTORY, CANDIDATE)
    seen = []
    model.attention.register_forward_hook(lambda module, inputs, output: seen.append(output.shape[0]))
    model(batch)
    model(batch.to_kjt())
    assert seen == [1, 6]


def test_histories_that_do_not_fit_are_named():
    model = DIN(tables(), HISTORY, CANDIDATE)
    uneven = {"video_hist": [[1, 2]], "author_hist": [[1]], "video": [[5]], "author": [[2]]}
    with pytest.raises(InputError, match=r"video_hist\+author_hist: the lists differ in length"):
        model(kjt_of(HISTORY + CANDIDATE, uneven))
    two = {"video_hist": [[1]], "author_hist": [[1]], "video": [[5, 6]], "author": [[2, 3]]}
    with pytest.raises(InputError, match=r"video\+author: a row has not exactly one id"):
        model(kjt_of(HISTORY + CANDIDATE, two))
    with pytest.raises(InputError, match="no feature 'video'"):
        model(kjt_of(HISTORY, {key: [[1]] for key in HISTORY}))
    with pytest.raises(InputError, match="2 tables, 1 history"):
        DIN(tables(), HISTORY[:1], CANDIDATE)
