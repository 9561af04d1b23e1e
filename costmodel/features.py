"""A table as numbers that a cost model reads."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from shardgym.embeddings.tables import ROW_BYTES, TableSpec

DTYPES = tuple(ROW_BYTES)
FEATURE_NAMES = (
    "log_rows", "log_dim", "log_pooling", "log_bytes", "log_traffic", "log_batch", "log_dedup",
    *(f"dtype_{dtype}" for dtype in DTYPES),
    "is_tensor_train", "log_rank", "log_cached_rows",
    *(f"bin_{k}" for k in range(17)),
)  # fmt: skip
"""Names of the features, in order. Logarithms are natural; counts are logged as log(1 + count)."""


def table_features(tables: Sequence[TableSpec], batch_size: int) -> NDArray[np.float32]:
    """Raw features of tables under a batch size, (T, F)."""
    return np.array([_features(table, batch_size) for table in tables], dtype=np.float32)


def _features(table: TableSpec, batch_size: int) -> list[float]:
    tt = table.tensor_train
    lookups = batch_size * table.pooling / table.dedup.factor()
    return [
        np.log(table.rows),
        np.log(table.dim),
        np.log1p(table.pooling),
        np.log(table.bytes()),
        np.log1p(lookups * table.dim),
        np.log(batch_size),
        np.log(table.dedup.factor()),
        *(float(table.dtype == dtype) for dtype in DTYPES),
        float(tt is not None),
        np.log(max(tt.ranks)) if tt else 0.0,
        np.log1p(tt.cached_rows) if tt else 0.0,
        *table.reuse_bins,
    ]
