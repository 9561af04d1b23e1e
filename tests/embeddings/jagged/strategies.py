"""Hypothesis strategies for jagged batches with repeats, and slow, plain references in lists."""

import torch
from hypothesis import strategies as st

from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor


def kjt_of(keys, rows, weights=None, values=torch.int64, lengths=torch.int64):
    """A batch from rows[key][row] lists, and weights of the same form."""
    flat = [value for key in keys for row in rows[key] for value in row]
    flat_weights = None if weights is None else [w for key in keys for row in weights[key] for w in row]
    B = len(rows[keys[0]]) if keys else 0
    return KeyedJaggedTensor(
        keys,
        torch.tensor(flat, dtype=values),
        None if flat_weights is None else torch.tensor(flat_weights, dtype=torch.float32),
        torch.tensor([len(row) for key in keys for row in rows[key]], dtype=lengths),
        stride=B,
    )


def lists_of(kjt):
    """rows[key][row] as lists of (value, weight)."""
    rows = {}
    for key in kjt.keys():  # noqa: SIM118
        jagged = kjt[key]
        values = [t.tolist() for t in jagged.to_dense()]
        weights = jagged.weights_or_none()
        ends = jagged.lengths().cumsum(0).tolist()
        starts = [0, *ends[:-1]]
        weights = [None] * sum(map(len, values)) if weights is None else weights.tolist()
        rows[key] = [list(zip(v, weights[a:b])) for v, a, b in zip(values, starts, ends)]
    return rows


def bits_of(tensors):
    """Everything exact, also NaN and -0.0."""
    return [(tensor.dtype, tuple(tensor.shape), tensor.contiguous().numpy().tobytes()) for tensor in tensors]


def bits(kjt):
    """A plain batch, bit for bit."""
    return kjt.keys(), kjt.stride(), bits_of(kjt.tensors())


@st.composite
def batches(draw, most_keys=4, most_rows=9):
    """A KJT whose rows repeat: each row copies one of a few session states, maybe with one key changed."""
    keys = draw(st.permutations(["a", "b", "c", "d"]))[: draw(st.integers(1, most_keys))]
    some_list = st.lists(st.integers(-2, 3) | st.integers(-(2**31), 2**31 - 1), max_size=4)
    states = draw(st.lists(st.fixed_dictionaries(dict.fromkeys(keys, some_list)), min_size=1, max_size=3))
    B = draw(st.integers(0, most_rows))
    rows = {key: [] for key in keys}
    for _ in range(B):
        state = dict(draw(st.sampled_from(states)))
        if draw(st.integers(0, 3)) == 0:
            state[draw(st.sampled_from(keys))] = draw(some_list)
        for key in keys:
            rows[key].append(state[key])
    weights = None
    if draw(st.booleans()):
        weight = st.sampled_from([0.0, -0.0, 1.5, float("nan")]) if draw(st.booleans()) else st.just(1.0)
        weights = {key: [[draw(weight) for _ in row] for row in rows[key]] for key in keys}
    dtypes = st.sampled_from([torch.int32, torch.int64])
    return kjt_of(keys, rows, weights, draw(dtypes), draw(dtypes))


@st.composite
def groupings(draw, keys):
    """Some of the keys, cut into groups at random."""
    keys = draw(st.permutations(keys))[: draw(st.integers(0, len(keys)))]
    cuts = sorted(draw(st.sets(st.integers(1, max(1, len(keys) - 1)))))
    bounds = [0, *[cut for cut in cuts if cut < len(keys)], len(keys)]
    return [keys[a:b] for a, b in zip(bounds, bounds[1:]) if b > a]  # noqa: RUF007
