"""Window sums against a loop, with and without the compiled kernel, forward and backward."""

import pytest
import torch
from hypothesis import given, strategies as st

from shardgym.embeddings.jagged.ops import window_values
from shardgym.embeddings.jagged.window_sums import window_sums, window_sums_reference


@st.composite
def windows(draw):
    """Windows anywhere in the values, in any order, empty ones among them."""
    N = draw(st.integers(0, 12))
    starts, lengths = [], []
    for _ in range(draw(st.integers(0, 9))):
        start = draw(st.integers(0, N))
        starts.append(start)
        lengths.append(draw(st.integers(0, N - start)))
    return N, torch.tensor(starts, dtype=torch.int64), torch.tensor(lengths, dtype=torch.int32)


@pytest.mark.parametrize("sums", [window_sums, window_sums_reference])
@given(windows(), st.integers(1, 20), st.sampled_from([torch.float32, torch.float64]))
def test_sums_and_gradients_are_those_of_a_loop(sums, drawn, D, dtype):
    N, starts, lengths = drawn
    values = torch.randn(N, D, dtype=dtype, requires_grad=True)
    rows = [values[s : s + n].sum(0) for s, n in zip(starts.tolist(), lengths.tolist())]
    expected = torch.stack(rows) if rows else values.new_zeros(0, D)
    ours = sums(values, starts, lengths)
    torch.testing.assert_close(ours, expected)
    grad = torch.randn_like(expected)
    if rows:
        (theirs,) = torch.autograd.grad(expected, values, grad, retain_graph=True)
        (mine,) = torch.autograd.grad(ours, values, grad)
        torch.testing.assert_close(mine, theirs)


def test_a_long_slide_stays_exact_to_rounding():
    values = 1e4 * torch.randn(20_000, 3)
    starts, lengths = torch.arange(19_900), torch.full((19_900,), 100)
    expected = values.double().unfold(0, 100, 1).sum(2)[:19_900]
    torch.testing.assert_close(window_sums(values, starts, lengths).double(), expected, rtol=1e-6, atol=1e-2)


@given(windows(), st.sampled_from([torch.int32, torch.int64, torch.uint64, torch.float32]))
def test_windows_are_laid_one_after_the_other(drawn, dtype):
    N, starts, lengths = drawn
    values = torch.arange(2 * N).view(2, N).to(dtype)
    expected = [v for row in values.tolist() for s, n in zip(starts.tolist(), lengths.tolist()) for v in row[s : s + n]]
    assert window_values(values, starts, lengths).tolist() == expected
    assert window_values(values, starts, lengths).dtype == dtype
