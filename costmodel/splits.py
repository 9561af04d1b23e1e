"""Which samples to train on and which to hold out."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from scipy.sparse import coo_matrix
from scipy.sparse.csgraph import connected_components

from shardgym.costmodel.measuring.samples import GroupSample
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

FEWEST_SAMPLES = 20


@public("shardgym.costmodel")
@dataclass(frozen=True)
class Split:
    """Samples to train on and samples held out."""

    train: list[GroupSample]
    test: list[GroupSample]


def split_samples(samples: Sequence[GroupSample], held_out: float, seed: int) -> Split:
    """Shuffle by seed and hold a share out.

    Raises:
        InputError: for too few samples to fit anything.
    """
    _require_enough(samples)
    order = np.random.default_rng(seed).permutation(len(samples))
    test = max(1, round(held_out * len(samples)))
    return Split([samples[k] for k in order[test:]], [samples[k] for k in order[:test]])


def split_by_tables(samples: Sequence[GroupSample], held_out: float, seed: int) -> Split:
    """Hold out groups of tables that no training group has: whole pools, in seeded order, until the share is reached.

    A pool is a set of tables that are linked by having been measured together, under any dtype or format.

    Raises:
        InputError: for too few samples, or when all tables are linked, so that none can be held out.
    """
    _require_enough(samples)
    pools = _pools(samples)
    order = np.random.default_rng(seed).permutation(pools.max() + 1)
    if len(order) == 1:
        raise InputError(
            "fit: every table was measured with every other by some chain of groups, so that no table can be held out "
            "unseen; measure groups from several pools, or hold out groups"
        )
    sizes = np.bincount(pools)[order]
    enough = int(np.searchsorted(np.cumsum(sizes), held_out * len(samples))) + 1
    is_test = np.isin(pools, order[: min(enough, len(order) - 1)])
    return Split(
        [sample for sample, test in zip(samples, is_test) if not test],
        [sample for sample, test in zip(samples, is_test) if test],
    )


def _pools(samples: Sequence[GroupSample]) -> np.ndarray:
    """(N,) the pool of each sample, 0 onwards: connected components of the graph of samples and table names."""
    number: dict[str, int] = {}
    edges = [
        (k, len(samples) + number.setdefault(table.name.partition("/")[0], len(number)))
        for k, sample in enumerate(samples)
        for table in sample.tables
    ]
    rows, columns = np.array(edges).T
    size = len(samples) + len(number)
    graph = coo_matrix((np.ones(len(edges)), (rows, columns)), shape=(size, size))
    return connected_components(graph, directed=False)[1][: len(samples)]


def _require_enough(samples: Sequence[GroupSample]) -> None:
    if len(samples) < FEWEST_SAMPLES:
        raise InputError(f"fit: {len(samples)} samples are too few; measure at least {FEWEST_SAMPLES}")
