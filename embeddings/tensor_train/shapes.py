"""Factors of a table's rows and columns for its tensor-train cores: little padding, few parameters, little work."""

import itertools
import math
from collections.abc import Iterator, Sequence
from dataclasses import replace

from shardgym.problem.errors import InputError
from shardgym.problem.tables import TensorTrainFormat

LARGEST_RATIO = 1.25
"""Row factors stay within this ratio of the balanced factor rows ** (1 / cores)."""

LEAST_PADDING = 0.005
"""Paddings below this share of the rows count as equal; parameters then decide."""


def choose_format(
    rows: int, dim: int, ranks: int | Sequence[int], cores: int = 3, cached_rows: int = 0
) -> TensorTrainFormat:
    """A tensor-train format for a table: near-balanced row factors of little padding, dim factors of few parameters and
    little work (see `choose_dim_shape_for`).

    Args:
        rows, dim: of the table, >= 1.
        ranks: inner ranks, cut to what the shapes can use; one number stands for all of them.
        cores: 2 to 4; taken from `ranks` where that is a sequence.
        cached_rows: rows kept uncompressed beside the cores.

    Raises:
        InputError: names the argument that does not fit.
    """
    if rows < 1 or dim < 1:
        raise InputError(f"tensor_train: rows {rows} and dim {dim} must both be at least 1")
    inner = (ranks,) * (cores - 1) if isinstance(ranks, int) else tuple(ranks)
    cores = len(inner) + 1
    if not 2 <= cores <= 4:
        raise InputError(f"tensor_train: {cores} cores; give 2 to 4, that is 1 to 3 ranks")
    dim_shape = choose_dim_shape_for(rows, dim, inner)
    return cap_ranks(TensorTrainFormat(inner, choose_row_shape(rows, dim_shape, inner), dim_shape, cached_rows))


def cap_ranks(form: TensorTrainFormat) -> TensorTrainFormat:
    """The same format with each rank cut to what its shapes can use.

    A rank beyond the product of the factors on either side of it (with the neighbouring rank for those further out)
    adds numbers and nothing that they could express (Oseledets, 2011, section 2).
    """
    sizes = [p * q for p, q in zip(form.row_shape, form.dim_shape)]
    ranks = [1, *form.ranks, 1]
    for k in range(1, len(ranks) - 1):
        ranks[k] = min(ranks[k], ranks[k - 1] * sizes[k - 1])
    for k in range(len(ranks) - 2, 0, -1):
        ranks[k] = min(ranks[k], ranks[k + 1] * sizes[k])
    return replace(form, ranks=tuple(ranks[1:-1]))


def choose_dim_shape_for(rows: int, dim: int, ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Ascending factors q of dim, of the product that `choose_dim_shape` pads it to, for given ranks.

    They have the least parameters * sqrt(work of a look-up in a training step): small shapes, of those the quick ones.
    """
    cores = len(ranks) + 1
    p = max(1, round(rows ** (1 / cores)))
    product = math.prod(choose_dim_shape(dim, cores))

    def cost(factors: tuple[int, ...]) -> float:
        form = cap_ranks(TensorTrainFormat(ranks, (p,) * cores, factors))
        return form.parameters() * math.sqrt(step_work(form))

    return min((f for f in _ascending(cores, product) if math.prod(f) == product), key=cost)


def step_work(form: TensorTrainFormat) -> int:
    """Work of one id in a training step, in multiply-adds, when it shares no prefix with others.

    The kernels multiply three cores (two are preceded by ones, the first two of four are merged): the product of the
    first two is formed twice and has two gradients, the row has one product and two gradients, and the third core's
    slice is fetched twice, its gradient fetched and stored, which takes about as long as 32 multiply-adds per number.
    """
    q, r = form.dim_shape, form.ranks
    if len(q) == 2:
        q, r = (1, *q), (1, *r)
    if len(q) == 4:
        q, r = (q[0] * q[1], *q[2:]), r[1:]
    return 4 * q[0] * r[0] * q[1] * r[1] + 3 * math.prod(q) * r[1] + 32 * r[1] * q[2]


def choose_dim_shape(dim: int, cores: int) -> tuple[int, ...]:
    """Ascending factors q of dim, as even as they come; dim is padded where it has no even factors."""
    highest = math.ceil(1.25 * dim) + 1

    def cost(factors: tuple[int, ...]) -> tuple[float, int]:
        product = math.prod(factors)
        return sum(factors) * product / dim, product

    return min((f for f in _ascending(cores, highest) if math.prod(f) >= dim), key=cost)


def _ascending(count: int, highest: int, least: int = 1) -> Iterator[tuple[int, ...]]:
    """Ascending tuples of `count` factors whose product stays within `highest`."""
    if count == 1:
        yield from ((last,) for last in range(least, highest + 1))
        return
    first = least
    while first**count <= highest:
        for rest in _ascending(count - 1, highest // first, first):
            yield (first, *rest)
        first += 1


def choose_row_shape(rows: int, dim_shape: tuple[int, ...], ranks: tuple[int, ...]) -> tuple[int, ...]:
    """Row factors p with prod(p) >= rows: padding under 0.5% where there is one, then fewest parameters."""
    cores = len(dim_shape)
    balanced = rows ** (1 / cores)
    low, high = max(1, math.floor(balanced / LARGEST_RATIO)), math.ceil(balanced * LARGEST_RATIO)
    best: tuple[tuple[float, int], tuple[int, ...]] | None = None
    for front in _fronts(low, high, cores, rows):
        shape = (*front, math.ceil(rows / math.prod(front)))
        if not low <= shape[-1] <= high:
            continue
        padding = math.prod(shape) / rows - 1
        cost = (max(padding, LEAST_PADDING), TensorTrainFormat(ranks, shape, dim_shape).parameters())
        if best is None or cost < best[0]:
            best = (cost, shape)
    return best[1] if best else (1,) * (cores - 1) + (rows,)


def _fronts(low: int, high: int, cores: int, rows: int) -> Iterator[tuple[int, ...]]:
    """All factors but the last; for 4 cores in coarse steps over the first, which is enough to find small padding."""
    steps = [max(1, (high - low) // 24) if cores == 4 and k == 0 else 1 for k in range(cores - 1)]
    yield from itertools.product(*(range(low, high + 1, step) for step in steps))
