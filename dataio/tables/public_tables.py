"""Table sets of public models."""

from shardgym.dataio.tables.reuse import even_reuse
from shardgym.problem.tables import REFERENCE_BATCH, TableSpec

CRITEO_KAGGLE_ROWS = (
    1460, 583, 10131227, 2202608, 305, 24, 12517, 633, 3, 93145, 5683, 8351593, 3194, 27, 14992, 5461306, 10, 5652,
    2173, 4, 7046547, 18, 15, 286181, 105, 142572,
)  # fmt: skip
"""Distinct values of the 26 categorical features of the Criteo Kaggle display-advertising set, as DLRM counts them."""


def criteo_kaggle(dim: int = 16) -> tuple[TableSpec, ...]:
    """DLRM's 26 tables for Criteo Kaggle: one-hot, fp32 (2.16 GB at dim 16).

    The data's own frequencies are not public in aggregate, so a batch's ids are spread evenly over the rows.
    """
    return _one_hot(CRITEO_KAGGLE_ROWS, dim)


CRITEO_TERABYTE_ROWS = (
    39884406, 39043, 17289, 7420, 20263, 3, 7120, 1543, 63, 38532951, 2953546, 403346, 10, 2208, 11938, 155, 4, 976,
    14, 39979771, 25641295, 39664984, 585935, 12972, 108, 36,
)  # fmt: skip
"""Distinct values of the 26 categorical features of the Criteo Terabyte click logs with indices capped at 40 million,
as in MLPerf's DLRM (facebookresearch/dlrm, bench/run_and_time.sh, --max-ind-range=40000000)."""


def criteo_terabyte(dim: int = 128) -> tuple[TableSpec, ...]:
    """MLPerf DLRM's 26 tables for Criteo Terabyte: one-hot, fp32 (96 GB at dim 128); ids spread evenly as above."""
    return _one_hot(CRITEO_TERABYTE_ROWS, dim)


def _one_hot(rows_of: tuple[int, ...], dim: int) -> tuple[TableSpec, ...]:
    return tuple(
        TableSpec(f"C{k}", rows=rows, dim=dim, pooling=1.0, reuse_bins=even_reuse(rows, REFERENCE_BATCH))
        for k, rows in enumerate(rows_of, start=1)
    )
