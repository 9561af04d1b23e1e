"""A table as numbers that a cost model reads."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from shardgym.dataio.tables.reuse import reference_counts
from shardgym.problem.tables import ROW_BYTES, TableSpec

DTYPES = tuple(ROW_BYTES)
FEATURE_NAMES = (
    "log_rows", "log_dim", "log_pooling", "log_bytes", "log_batch", "log_dedup",
    "log_lookups", "log_traffic", "log_output", "log_unique", "log_touched", "log_reuse", "aligned_16", "aligned_8",
    *(f"dtype_{dtype}" for dtype in DTYPES),
    "is_tensor_train", "log_rank", "log_cached_rows", "log_core_work",
    *(f"bin_{k}" for k in range(17)),
)  # fmt: skip
"""Names of the features, in order. Logarithms are natural; counts are logged as log(1 + count).

Lookups are ids in a batch (after deduplication), traffic the numbers they read, output the numbers pooled into, unique
the distinct rows of a batch, touched their bytes, reuse the look-ups of a distinct row; aligned dims fill vector
registers; core work is the multiply-adds of a row's tensor-train product.
"""


def table_features(tables: Sequence[TableSpec], batch_size: int) -> NDArray[np.float32]:
    """Raw features of tables under a batch size, (T, F)."""
    return np.array([_features(table, batch_size) for table in tables], dtype=np.float32)


def unique_rows(table: TableSpec, lookups: float) -> float:
    """Distinct rows that so many look-ups are expected to touch, by the table's reuse bins."""
    unique, counts = _reference(table)
    part = min(1.0, lookups / float(unique @ counts))
    return float(unique @ (1 - (1 - part) ** counts))


@lru_cache(maxsize=65536)
def _reference(table: TableSpec) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    return reference_counts(table)


@lru_cache(maxsize=4096)
def _features(table: TableSpec, batch_size: int) -> list[float]:
    tt = table.tensor_train
    lookups = batch_size * table.pooling / table.dedup.factor()
    unique = unique_rows(table, lookups)
    return [
        np.log(table.rows),
        np.log(table.dim),
        np.log1p(table.pooling),
        np.log(table.bytes()),
        np.log(batch_size),
        np.log(table.dedup.factor()),
        np.log1p(lookups),
        np.log1p(lookups * table.dim),
        np.log(batch_size * table.dim),
        np.log1p(unique),
        np.log1p(unique * ROW_BYTES[table.dtype](table.dim)),
        np.log1p(lookups) - np.log1p(unique),
        float(table.dim % 16 == 0),
        float(table.dim % 8 == 0),
        *(float(table.dtype == dtype) for dtype in DTYPES),
        float(tt is not None),
        np.log(max(tt.ranks)) if tt else 0.0,
        np.log1p(tt.cached_rows) if tt else 0.0,
        np.log(product_work(tt.core_shapes())) if tt else 0.0,
        *table.reuse_bins,
    ]


def product_work(shapes: Sequence[tuple[int, int, int, int]]) -> float:
    """Multiply-adds of one row's product of cores, taken from the left."""
    width, work = shapes[0][2], 0.0
    for _, rank, q, next_rank in shapes[1:]:
        work += width * rank * q * next_rank
        width *= q
    return work
