"""Table sets of public models."""

from shardgym.dataio.reuse import even_reuse
from shardgym.embeddings.tables import REFERENCE_BATCH, TableSpec

CRITEO_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical features of the Criteo Kaggle display-advertising set, as DLRM counts them."""


def criteo_kaggle(dim: int = 16) -> tuple[TableSpec, ...]:
    """DLRM's 26 tables for Criteo Kaggle: one-hot, fp32 (2.16 GB at dim 16).

    The data's own frequencies are not public in aggregate, so a batch's ids are spread evenly over the rows.
    """
    return tuple(
        TableSpec(f"C{k}", rows=rows, dim=dim, pooling=1.0, reuse_bins=even_reuse(rows, REFERENCE_BATCH))
        for k, rows in enumerate(CRITEO_KAGGLE_ROWS, start=1)
    )
