"""The independent truth for tensor-train tables: the dense table by plain einsum, looked up by nn.functional."""

import math
import string

import pytest
import torch
import torch.nn.functional as F
from hypothesis import strategies as st

from shardgym.embeddings.kernels.build import load_c_kernel
from shardgym.embeddings.tensor_train.bag import TTEmbeddingBag

KERNELS = [
    "torch",
    pytest.param("compiled", marks=pytest.mark.skipif(load_c_kernel("tt_cpu") is None, reason="no C++ compiler")),
]


def dense_table(cores, rows, dim):
    """(rows, dim) from cores (p, r, q, r'), differentiable, by one einsum over all cores at once."""
    letters = iter(string.ascii_letters)
    rank = next(letters)
    terms, p_letters, q_letters, ends = [], [], [], [rank]
    for _ in cores:
        p, q, right = next(letters), next(letters), next(letters)
        terms.append(p + rank + q + right)
        p_letters.append(p)
        q_letters.append(q)
        rank = right
    ends.append(rank)
    whole = torch.einsum(",".join(terms) + "->" + "".join(p_letters + q_letters), *cores)
    padded_rows = math.prod(core.shape[0] for core in cores)
    return whole.reshape(padded_rows, -1)[:rows, :dim]


def pooled(weight, indices, offsets, mode="sum", weights=None, padding_idx=None):
    """What nn.functional.embedding_bag gives on the dense table; offsets include the last one."""
    return F.embedding_bag(
        indices, weight, offsets, mode=mode, per_sample_weights=weights, include_last_offset=True,
        padding_idx=padding_idx,
    )  # fmt: skip


def random_bags(rows, bags, longest, seed, hot=None):
    """indices (L,) and offsets (bags + 1,), empty bags included; ids below `hot` only where given, for duplicates."""
    generator = torch.Generator().manual_seed(seed)
    lengths = torch.randint(0, longest + 1, (bags,), generator=generator)
    offsets = torch.cat([lengths.new_zeros(1), lengths.cumsum(0)])
    indices = torch.randint(0, hot or rows, (int(offsets[-1]),), generator=generator)
    return indices, offsets


@st.composite
def shapes(draw, highest_p=12):
    """(rows, dim, row_shape, dim_shape, ranks) of 2 to 4 cores, with padding in rows and columns."""
    cores = draw(st.integers(2, 4))
    p = tuple(draw(st.integers(1, highest_p)) for _ in range(cores))
    q = tuple(draw(st.integers(1, 4)) for _ in range(cores))
    ranks = tuple(draw(st.integers(1, 20)) for _ in range(cores - 1))
    rows = draw(st.integers(max(1, math.prod(p) // 2), math.prod(p)))
    dim = draw(st.integers(1, math.prod(q)))
    return rows, dim, p, q, ranks


def table_of(shape, seed=0, **options):
    """A float64 table whose entries are of size about one, so that tolerances mean something."""
    rows, dim, p, q, ranks = shape
    options = {"dtype": torch.float64, "init_std": 1.0} | options
    generator = torch.Generator().manual_seed(seed)
    return TTEmbeddingBag(rows, dim, ranks, p, q, generator=generator, **options)
