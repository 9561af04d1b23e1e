"""Which features to deduplicate together, and in which form, from a sample of a log (RecD, arXiv 2211.05239)."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from shardgym.dataio.sessions.forms import FormStats, form_stats, stay_of
from shardgym.dataio.sessions.log import SessionLog
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.survey import SessionSurvey, sample_sessions
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

LEAST_SAVING = 0.1
"""A form must save this share of the cost of the simpler one: keeping all lists, then exact, then partial."""


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
        low, high: where the measured factor of as many other sessions lies in 95 of 100 cases, from how much the
            sessions looked at differ.
        bytes_saved: bytes of the plain lists over those of the group in a batch.
        step_saved: work of a pooled look-up of the plain lists, forward and backward, over that of the group.
    """

    group: GroupSpec
    stay: float
    predicted: float
    measured: float
    low: float
    high: float
    bytes_saved: float
    step_saved: float

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

    Forms are weighed by what they cost in a batch, bytes and work of a step alike (`FormStats.cost`), as counted on the
    sample: a mean length says little where long sessions have long lists.

    Args:
        log: the opened log; its schema's own groups are not looked at.
        samples: samples to look at, and to hold out, about.

    Raises:
        InputError: the log has too few sessions, or cannot be read.
    """
    seen, held_out = sample_sessions(log, samples, parts=2)
    features = log.schema.features
    groups = _merged([_best_form(seen, (feature,)) for feature in features], seen)
    stats = tuple(FeatureStats(name, float(seen.lengths(name).mean()), stay_of(seen, (name,))) for name in features)
    return Grouping(seen.samples_per_session, stats, tuple(_proposed(each, seen, held_out) for each in groups))


def _proposed(chosen: FormStats, seen: SessionSurvey, held_out: SessionSurvey) -> ProposedGroup:
    stats = _counted(seen, chosen)
    other = _counted(held_out, chosen)
    low, high = stats.interval(other.sessions)
    return ProposedGroup(
        GroupSpec(group_name(chosen.features), chosen.features, chosen.form),
        stay_of(seen, chosen.features),
        stats.factor,
        other.factor,
        low,
        high,
        stats.bytes_saved,
        stats.step_saved,
    )


def _counted(sample: SessionSurvey, chosen: FormStats) -> FormStats:
    stats = form_stats(sample, chosen.features, chosen.form)
    if stats is None:
        raise InputError(
            f"features {' and '.join(chosen.features)}: their lists have the same lengths in some sessions and not in "
            "others; look at more samples"
        )
    return stats


def group_name(features: Sequence[str]) -> str:
    """A short name for a group: its features, or the first and how many more."""
    joined = "+".join(features)
    return joined if len(joined) <= LONGEST_NAME else f"{features[0]}+{len(features) - 1}"


LONGEST_NAME = 60


def _best_form(sample: SessionSurvey, features: tuple[str, ...]) -> FormStats:
    """The form that costs least; a simpler one where it comes close."""
    best = form_stats(sample, features, "none")
    assert best is not None
    for form in ("exact", "partial"):
        stats = form_stats(sample, features, form)
        if stats is not None and stats.cost < (1 - LEAST_SAVING) * best.cost:
            best = stats
    return best


def _merged(candidates: Sequence[FormStats], sample: SessionSurvey) -> list[FormStats]:
    """Join each feature, the steadiest first, to the group with which it saves most; else it begins one.

    Features whose lists are all kept are one group per type: they share nothing but the overhead of a group.
    """
    types = {name: sample.table.schema.field(name).type for each in candidates for name in each.features}
    groups: list[FormStats] = []
    for candidate in sorted(candidates, key=lambda each: -sample.stays(each.features[0]).sum()):
        best, saved = -1, 0.0
        for at, group in enumerate(groups):
            if group.form != candidate.form or types[group.features[0]] != types[candidate.features[0]]:
                continue
            if group.form == "none":
                best = at
                break
            together = form_stats(sample, (*group.features, *candidate.features), group.form)
            if together is not None and group.cost + candidate.cost - together.cost > saved:
                best, saved = at, group.cost + candidate.cost - together.cost
        if best < 0:
            groups.append(candidate)
        elif candidate.form == "none":
            groups[best] = replace(groups[best], features=(*groups[best].features, *candidate.features))
        else:
            joined = form_stats(sample, (*groups[best].features, *candidate.features), candidate.form)
            assert joined is not None
            groups[best] = joined
    return groups
