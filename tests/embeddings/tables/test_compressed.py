"""Low-dimension, quotient-remainder and quantised tables against the rows they stand for."""

import pytest
import torch
from hypothesis import given, settings, strategies as st

from shardgym.embeddings.tables.compressed import LowDimEmbeddingBag, QREmbeddingBag, QuantizedEmbeddingBag
from shardgym.problem.errors import InputError
from tests.embeddings.tensor_train.truth import pooled, random_bags


def low_dim(rows, dim, **options):
    table = LowDimEmbeddingBag(rows, dim, max(1, dim // 2), std=1.0, dtype=torch.float64, **options)
    return table, lambda: table.weight @ table.projection


def quotient_remainder(rows, dim, **options):
    table = QREmbeddingBag(rows, dim, std=1.0, dtype=torch.float64, **options)
    ids = torch.arange(rows)
    return table, lambda: table.quotient[ids // table.buckets] * table.remainder[ids % table.buckets]


def quantized(bits):
    def build(rows, dim, **options):
        table = QuantizedEmbeddingBag.from_dense(torch.randn(rows, dim), bits, **options)
        step, width = 2**bits - 1, dim if bits == 8 else dim // 2
        codes = table.packed[:, :width]
        if bits == 4:
            codes = torch.stack([codes & 15, codes >> 4], dim=2).flatten(1)
        kind = torch.float32 if bits == 8 else torch.float16
        scale, offset = table.packed[:, width:].flatten().clone().view(kind).float().view(rows, 2).T
        assert scale.min() >= 0
        assert codes.max() <= step
        return table, lambda: codes * scale[:, None] + offset[:, None]

    return build


KINDS = {"low_dim": low_dim, "qr": quotient_remainder, "int8": quantized(8), "int4": quantized(4)}


@pytest.mark.parametrize("kind", KINDS)
@settings(deadline=None, max_examples=25)
@given(rows=st.integers(1, 70), half=st.integers(1, 9), bags=st.integers(0, 8), seed=st.integers(0, 99),
       mode=st.sampled_from(["sum", "mean"]))  # fmt: skip
def test_look_ups_and_gradients_match_the_dense_rows(kind, rows, half, bags, seed, mode):
    table, dense = KINDS[kind](rows, 2 * half, mode=mode, include_last_offset=True, padding_idx=rows - 1)
    indices, offsets = random_bags(rows, bags, 5, seed)
    out = table(indices, offsets)
    truth = pooled(dense(), indices, offsets, mode, padding_idx=rows - 1)
    torch.testing.assert_close(out, truth, rtol=1e-5, atol=1e-5)
    parameters = list(table.parameters())
    if parameters and bags and out.requires_grad:
        ours = torch.autograd.grad(out.square().sum(), parameters)
        for grad, theirs in zip(ours, torch.autograd.grad(truth.square().sum(), parameters)):
            torch.testing.assert_close(grad, theirs)


@pytest.mark.parametrize(("bits", "levels"), [(8, 255), (4, 15)])
def test_quantising_errs_by_at_most_half_a_level(bits, levels):
    weight = torch.randn(100, 32)
    table = QuantizedEmbeddingBag.from_dense(weight, bits)
    level = (weight.max(1).values - weight.min(1).values) / levels
    # int4 keeps its scale and offset in half precision: a little more than half a level.
    assert ((table.to_dense() - weight).abs().max(1).values <= 0.51 * level + 4e-3 * (bits == 4)).all()


@pytest.mark.parametrize("kind", KINDS)
def test_ids_may_lie_strided_in_memory(kind):
    table, _ = KINDS[kind](20, 6)
    ids = torch.randint(0, 20, (5, 3))
    torch.testing.assert_close(table(ids[:, 1:2]), table(ids[:, 1:2].contiguous()))


def test_compression_ratios():
    assert LowDimEmbeddingBag(1000, 64, 4).compression_ratio == 64000 / (4000 + 256)
    assert QREmbeddingBag(1000, 64, 50).compression_ratio == 64000 / (64 * 70)
    assert QuantizedEmbeddingBag.from_dense(torch.zeros(10, 64)).compression_ratio == 256 / 72
    assert QuantizedEmbeddingBag.from_dense(torch.zeros(10, 64), 4).compression_ratio == 256 / 36


def test_arguments_that_do_not_fit_are_named():
    with pytest.raises(InputError, match="low_dim: 9"):
        LowDimEmbeddingBag(10, 8, 9)
    with pytest.raises(InputError, match="buckets: 11"):
        QREmbeddingBag(10, 8, 11)
    with pytest.raises(InputError, match="even dim"):
        QuantizedEmbeddingBag.from_dense(torch.zeros(3, 3), 4)
    with pytest.raises(InputError, match="id 10 is outside"):
        LowDimEmbeddingBag(10, 8, 2)(torch.tensor([[10]]))
