"""The tables of a log's features, as measured: pooling, reuse, deduplication."""

from collections.abc import Mapping

import numpy as np

from shardgym.dataio.sessions.forms import stay_of
from shardgym.dataio.sessions.log import SessionLog
from shardgym.dataio.sessions.schema import GroupSpec
from shardgym.dataio.sessions.survey import SessionSurvey, sample_sessions
from shardgym.dataio.tables.reuse import count_bins
from shardgym.problem.errors import InputError
from shardgym.problem.tables import REFERENCE_BATCH, Dedup, TableSpec


def table_specs(
    log: SessionLog, dim: int, rows: Mapping[str, int] | None = None, samples: int = REFERENCE_BATCH
) -> tuple[TableSpec, ...]:
    """The tables of a log's features, with pooling, reuse and deduplication as measured.

    Reuse bins are counted over `samples` bags of a clustered log, the reference batch by default; a shorter
    log is counted whole.

    Args:
        log: the opened log; its schema's groups become the tables' groups.
        dim: of every table.
        rows: of each table; by default one more than the largest id in the sample.
        samples: sessions are taken until they have so many samples, about.

    Raises:
        InputError: a feature is not of whole numbers, has a negative id, or one beyond its `rows`.
    """
    (sample,) = sample_sessions(log, samples)
    grouped = {feature: group for group in log.schema.groups for feature in group.features}
    return tuple(_table(sample, feature, dim, rows, group) for feature, group in grouped.items())


def _table(
    sample: SessionSurvey, feature: str, dim: int, rows: Mapping[str, int] | None, group: GroupSpec
) -> TableSpec:
    ids = sample.ids(feature, REFERENCE_BATCH)
    if ids.is_floating_point() or (ids.numel() and int(ids.min()) < 0):
        raise InputError(f"feature {feature!r}: holds numbers that are no row of a table; bucketise or hash them first")
    largest = int(ids.max()) + 1 if ids.numel() else 1
    table_rows = (rows or {}).get(feature, largest)
    if table_rows < largest:
        raise InputError(
            f"feature {feature!r}: id {largest - 1} is beyond its {table_rows} rows; hash the ids, or give more"
        )
    counts = np.unique(ids.numpy(), return_counts=True)[1] if ids.numel() else np.ones(1, dtype=np.int64)
    return TableSpec(
        feature,
        table_rows,
        dim,
        pooling=float(sample.lengths(feature).mean()),
        reuse_bins=tuple(map(float, count_bins(counts))),
        dedup=Dedup(sample.samples_per_session, stay_of(sample, (feature,))),
        group=None if group.form == "none" else group.name,
    )
