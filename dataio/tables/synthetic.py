"""A generator of multi-hot tables like those of a production DLRM.

The marginals are those of the 856 public tables (facebookresearch/dlrm_datasets, 2021): quantiles of rows, pooling
factor and id reuse, and their rank correlations. No table is copied.
"""

import numpy as np
from numpy.typing import NDArray
from scipy.special import ndtr

from shardgym.dataio.tables.reuse import normal_reuse
from shardgym.problem.tables import REFERENCE_BATCH, TableSpec

# Each marginal as (share of tables below, value).
ROWS_QUANTILES = (
    (0.0, 100), (0.15, 100), (0.20, 4e3), (0.30, 1.2e6), (0.40, 4.0e6), (0.50, 5.9e6), (0.75, 6.0e6), (0.90, 6.6e6),
    (1.0, 12.5e6),
)  # fmt: skip
POOLING_QUANTILES = (
    (0.0, 0.01), (0.05, 0.03), (0.25, 1.0), (0.50, 4.6), (0.75, 17.9), (0.95, 77.0), (0.99, 111.0), (1.0, 193.0),
)  # fmt: skip
# The reuse bins of a table have a mean bin and a spread over bins.
REUSE_MEAN_QUANTILES = (
    (0.0, 0.1), (0.05, 0.34), (0.25, 1.85), (0.50, 2.34), (0.75, 5.28), (0.90, 10.4), (0.95, 12.9), (1.0, 16.0),
)  # fmt: skip
REUSE_SPREAD_QUANTILES = ((0.0, 0.1), (0.05, 0.59), (0.25, 1.54), (0.50, 1.82), (0.75, 2.46), (0.95, 3.29), (1.0, 5.5))

# Spearman correlations of (rows, pooling, reuse mean, reuse spread): .45, -.59, -.44, -.25, -.10, .75 above the
# diagonal, row by row. A Gaussian copula has them under normal correlations 2 sin(pi r / 6); this is the lower Cholesky
# factor of these. It is written out, since factoring rounds differently from one linear algebra library to the next.
COPULA = (
    (1.000000, 0.000000, 0.000000, 0.000000),
    (0.466891, 0.884315, 0.000000, 0.000000),
    (-0.608066, 0.025837, 0.793466, 0.000000),
    (-0.456702, 0.122759, 0.610600, 0.635233),
)

DIMS = (4, 8, 16, 32, 64, 128)


def dlrm_like(count: int, seed: int, dims: tuple[int, ...] = DIMS, row_scale: float = 1.0) -> tuple[TableSpec, ...]:
    """Generate `count` tables; the same seed gives the same tables on every processor.

    Args:
        count: number of tables.
        seed: of the generator.
        dims: each table's dim is drawn evenly from these.
        row_scale: multiplies the rows, for models smaller or larger than the public one.
    """
    rng = np.random.default_rng(seed)
    independent = rng.standard_normal((4, count))
    # Rounded, so that a last digit which differs between processors is not carried on.
    shares = np.round([ndtr(sum(f * row for f, row in zip(factors, independent))) for factors in COPULA], 9)
    rows = np.maximum(1, row_scale * _quantile(ROWS_QUANTILES, shares[0], log=True)).round().astype(int)
    pooling = _quantile(POOLING_QUANTILES, shares[1], log=True)
    means = np.round(_quantile(REUSE_MEAN_QUANTILES, shares[2]), 6)
    spreads = np.round(_quantile(REUSE_SPREAD_QUANTILES, shares[3]), 6)
    dim = rng.choice(dims, size=count)
    return tuple(
        TableSpec(
            name=f"dlrm_{k:04d}",
            rows=int(rows[k]),
            dim=int(dim[k]),
            pooling=round(float(pooling[k]), 4),
            reuse_bins=normal_reuse(means[k], spreads[k], lookups=REFERENCE_BATCH * pooling[k], rows=int(rows[k])),
        )
        for k in range(count)
    )


def _quantile(
    points: tuple[tuple[float, float], ...], shares: NDArray[np.float64], log: bool = False
) -> NDArray[np.float64]:
    """Values of a marginal at the given shares, interpolated between its known quantiles."""
    known_shares, values = np.array(points).T
    if log:
        return np.exp(np.interp(shares, known_shares, np.log(values)))
    return np.interp(shares, known_shares, values)
