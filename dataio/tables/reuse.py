"""How often a batch looks up the same ids: reuse bins and the counts behind them."""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from shardgym.problem.tables import REFERENCE_BATCH, REUSE_BINS, TableSpec

BIN_COUNTS = np.array([1.0, 2.0, *(0.75 * 2.0**k for k in range(2, REUSE_BINS))])
"""A typical in-batch count for each reuse bin: the middle of (2^(k-1), 2^k]."""


def count_bins(counts: NDArray[np.integer]) -> tuple[float, ...]:
    """Reuse bins (17,) of observed in-batch counts (one number per unique id, each at least 1)."""
    bins = np.minimum(np.ceil(np.log2(counts)).astype(int), REUSE_BINS - 1)
    return tuple(np.bincount(bins, minlength=REUSE_BINS) / len(counts))


def even_reuse(rows: int, lookups: int) -> tuple[float, ...]:
    """Reuse bins of ids drawn evenly over the rows: each id is seen about lookups / rows times, once at least."""
    return count_bins(np.array([max(1, round(lookups / rows))]))


def normal_reuse(mean: float, spread: float, lookups: float, rows: int) -> tuple[float, ...]:
    """A discretised normal over the bins, moved up until the unique ids fit the rows.

    Args:
        mean: of the bin number, 0 to 16.
        spread: its standard deviation.
        lookups: ids in the reference batch; unique ids = lookups / mean count.
        rows: of the table, an upper limit on unique ids.
    """
    edges = np.arange(REUSE_BINS + 1) - 0.5
    edges[0], edges[-1] = -np.inf, np.inf
    # Clipping at bin 0 lifts the mean of a wide normal: begin lower by about as much.
    for centre in np.arange(mean - 0.35 * spread, REUSE_BINS, 0.25):
        bins = np.diff(ndtr((edges - centre) / spread))
        if lookups / (bins @ BIN_COUNTS) <= rows:
            break
    return tuple(round(float(share), 6) for share in bins / bins.sum())


def reference_counts(table: TableSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Unique ids in each bin of the table's reference batch, and how often each is looked up; two arrays (17,).

    Where the table has fewer rows than its bins ask for, every count is raised so that the look-ups fit.
    """
    shares = np.array(table.reuse_bins) / sum(table.reuse_bins)
    wanted = max(1.0, REFERENCE_BATCH * table.pooling) / (shares @ BIN_COUNTS)
    exact = shares * max(1, round(min(wanted, table.rows)))
    unique = np.floor(exact).astype(np.int64)
    left_over = round(exact.sum()) - unique.sum()
    unique[np.argsort(unique - exact, kind="stable")[:left_over]] += 1  # to the largest remainders
    counts = np.maximum(1, np.rint(BIN_COUNTS * max(1.0, wanted / table.rows))).astype(np.int64)
    return unique, counts
