"""Which features to deduplicate together, and in which form, from a sample of a log (RecD, arXiv 2211.05239)."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace

import numpy as np

from shardgym.dataio.sessions.log import SessionLog
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.survey import SessionSurvey, sample_sessions
from shardgym.dataio.tables.reuse import count_bins
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import REFERENCE_BATCH, Dedup, TableSpec

ID_BYTES, INDEX_BYTES = 8, 4
LEAST_SAVING = 0.1
"""A form must save this share of the bytes of the simpler one: keeping all lists, then exact, then partial."""


@dataclass(frozen=True)
class FeatureStats:
    """What a sample says of one feature.

    Args:
        name: of the feature.
        length: mean ids per list l.
        stay: chance d that a list stays from one sample of a session to the next.
    """

    name: str
    length: float
    stay: float


@dataclass(frozen=True)
class ProposedGroup:
    """A group with its deduplication, predicted on one part of the sessions and measured on another.

    Args:
        group: the features and their form.
        stay: chance that all its lists stay.
        predicted: rows over unique rows (exact), values over shared values (partial), 1 for none.
        measured: the same, counted on held-out sessions.
    """

    group: GroupSpec
    stay: float
    predicted: float
    measured: float

    @property
    def error(self) -> float:
        """How far the prediction lies from the measurement, as a share of it."""
        return abs(self.predicted - self.measured) / self.measured


@public("shardgym.dataio")
@dataclass(frozen=True)
class Grouping:
    """A proposal for a log.

    Args:
        samples_per_session: mean samples S per session.
        features: what was measured of each.
        groups: the proposal.
    """

    samples_per_session: float
    features: tuple[FeatureStats, ...]
    groups: tuple[ProposedGroup, ...]

    @property
    def error(self) -> float:
        """The largest error of a group."""
        return max((group.error for group in self.groups), default=0.0)

    def schema(self, schema: SessionSchema) -> SessionSchema:
        """The schema with the proposed groups."""
        return replace(schema, groups=tuple(group.group for group in self.groups))


def propose_groups(log: SessionLog, samples: int = 100_000) -> Grouping:
    """Propose a form for every feature and which to group, on some sessions; measure it on others.

    Args:
        log: the opened log; its schema's own groups are not looked at.
        samples: samples to look at, and to hold out, about.

    Raises:
        InputError: the log has too few sessions, or cannot be read.
    """
    seen, held_out = sample_sessions(log, samples, parts=2)
    features = log.schema.features
    stays = {feature: seen.stays(feature) for feature in features}
    lengths = {feature: float(seen.lengths(feature).mean()) for feature in features}
    candidates = [_best_form(seen, (feature,), stays, lengths) for feature in features]
    groups = [_proposed(group, seen, held_out) for group in _merged(candidates, seen, stays, lengths)]
    stats = tuple(FeatureStats(name, lengths[name], _stay(seen, stays[name])) for name in features)
    return Grouping(seen.samples_per_session, stats, tuple(groups))


def predicted_factor(sample: SessionSurvey, group: GroupSpec) -> tuple[float, float]:
    """A group's stay probability and its predicted factor.

    Exact: RecD's DedupeFactor, S / (1 + (S - 1)(1 - d)). Partial, by the same reasoning with l values in a
    session's first list and s new values in each later one: S l / (l + (S - 1) s).
    """
    stays = np.logical_and.reduce([sample.stays(feature) for feature in group.features])
    stay, S = _stay(sample, stays), sample.samples_per_session
    if group.form == "exact":
        return stay, Dedup(S, stay).factor()
    if group.form == "none":
        return stay, 1.0
    lengths = sample.lengths(group.features[0])
    first = lengths[sample.rows.starts].mean()
    later = sample.pooled_values(group.features) / sample.rows.starts.size - first
    return stay, _over(S * lengths.mean(), first + (S - 1) * (later / max(S - 1, 1e-9)))


def measured_factor(sample: SessionSurvey, group: GroupSpec) -> float:
    """A group's factor counted on a sample's sessions, as clustering would store them."""
    if group.form == "none":
        return 1.0
    if group.form == "exact":
        return sample.rows.samples / sample.unique_lists(group.features)
    return _over(sample.lengths(group.features[0]).sum(), sample.pooled_values(group.features))


def _proposed(group: GroupSpec, seen: SessionSurvey, held_out: SessionSurvey) -> ProposedGroup:
    stay, predicted = predicted_factor(seen, group)
    return ProposedGroup(group, stay, predicted, measured_factor(held_out, group))


def _over(values: float, stored: float) -> float:
    return float(values / stored) if stored else 1.0


def _stay(sample: SessionSurvey, stays: np.ndarray) -> float:
    pairs = int(sample.follows.sum())
    return float(stays.sum() / pairs) if pairs else 0.0


@dataclass(frozen=True)
class _Candidate:
    features: tuple[str, ...]
    form: str
    bytes: float
    """Of a sample's lists, inverse and windows in a batch, on average."""


def _best_form(
    sample: SessionSurvey,
    features: tuple[str, ...],
    stays: Mapping[str, np.ndarray],
    lengths: Mapping[str, float],
) -> _Candidate:
    """The form of the fewest bytes; a simpler one where it comes close."""
    best = _Candidate(features, "none", sum(ID_BYTES * lengths[f] + INDEX_BYTES for f in features))
    for form in ("exact", "partial"):
        bytes_ = _bytes(sample, features, form, stays, lengths)
        if bytes_ is not None and bytes_ < (1 - LEAST_SAVING) * best.bytes:
            best = _Candidate(features, form, bytes_)
    return best


def _bytes(
    sample: SessionSurvey,
    features: tuple[str, ...],
    form: str,
    stays: Mapping[str, np.ndarray],
    lengths: Mapping[str, float],
) -> float | None:
    if form == "exact":
        stay = _stay(sample, np.logical_and.reduce([stays[feature] for feature in features]))
        factor = Dedup(sample.samples_per_session, stay).factor()
        return sum(ID_BYTES * lengths[f] + INDEX_BYTES for f in features) / factor + INDEX_BYTES
    first = sample.lengths(features[0])
    if any((sample.lengths(feature) != first).any() for feature in features[1:]):
        return None
    return len(features) * ID_BYTES * sample.pooled_values(features) / sample.rows.samples + 2 * INDEX_BYTES


def _merged(
    candidates: Sequence[_Candidate],
    sample: SessionSurvey,
    stays: Mapping[str, np.ndarray],
    lengths: Mapping[str, float],
) -> list[GroupSpec]:
    """Join each feature, the steadiest first, to the group with which it saves most; else it begins one."""
    types = {name: sample.table.schema.field(name).type for candidate in candidates for name in candidate.features}
    groups: list[_Candidate] = []
    for candidate in sorted(candidates, key=lambda each: -stays[each.features[0]].sum()):
        best, saved = -1, 0.0
        for at, group in enumerate(groups):
            if group.form != candidate.form or types[group.features[0]] != types[candidate.features[0]]:
                continue
            together = _joined_bytes(sample, group, candidate, stays, lengths)
            if together is not None and group.bytes + candidate.bytes - together > saved:
                best, saved = at, group.bytes + candidate.bytes - together
        if best < 0:
            groups.append(candidate)
        else:
            group = groups[best]
            features = (*group.features, *candidate.features)
            groups[best] = _Candidate(features, group.form, group.bytes + candidate.bytes - saved)
    return [GroupSpec("+".join(group.features), group.features, group.form) for group in groups]


def _joined_bytes(
    sample: SessionSurvey,
    group: _Candidate,
    candidate: _Candidate,
    stays: Mapping[str, np.ndarray],
    lengths: Mapping[str, float],
) -> float | None:
    if group.form == "none":
        return None
    return _bytes(sample, (*group.features, *candidate.features), group.form, stays, lengths)


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
        dedup=Dedup(sample.samples_per_session, _stay(sample, sample.stays(feature))),
        group=None if group.form == "none" else group.name,
    )
