"""What a feature group costs in each form, counted on a sample of sessions."""

import math
from dataclasses import dataclass

import numpy as np

from shardgym.dataio.sessions.survey import SessionSurvey

ID_BYTES, INDEX_BYTES = 8, 4
EXPANSION_WORK = 0.5
"""Work of expanding one pooled row, in look-ups of one id."""
WINDOW_WORK = 0.7
"""Work beside the look-up of each shared value of a window group: sums that slide, forward and backward."""


@dataclass(frozen=True)
class FormStats:
    """A group of features in one form.

    Args:
        features: names.
        form: "none", "exact" or "partial".
        rows: (n sessions,) what the factor counts: each session's samples, or values of its windows.
        stored: (n sessions,) the same as stored: unique rows, or shared values.
        bytes: per sample in a batch, inverse or windows included.
        work: per sample, in look-ups of one id, forward and backward.
        plain_bytes, plain_work: of the same lists as they are.
    """

    features: tuple[str, ...]
    form: str
    rows: np.ndarray
    stored: np.ndarray
    bytes: float
    work: float
    plain_bytes: float
    plain_work: float

    @property
    def factor(self) -> float:
        """Rows over unique rows (exact), values over shared values (partial), 1 for none."""
        return _over(float(self.rows.sum()), float(self.stored.sum()))

    @property
    def sessions(self) -> int:
        """Sessions counted."""
        return self.rows.size

    @property
    def cost(self) -> float:
        """Geometric mean of bytes and work: a form that saves a tenth of both saves a tenth."""
        return math.sqrt(self.bytes * self.work)

    @property
    def bytes_saved(self) -> float:
        """Bytes of the lists as they are over bytes in this form."""
        return _over(self.plain_bytes, self.bytes)

    @property
    def step_saved(self) -> float:
        """Work on the lists as they are over work in this form."""
        return _over(self.plain_work, self.work)

    def interval(self, sessions: int) -> tuple[float, float]:
        """Where the factor of so many other sessions lies in 95 of 100 cases.

        The factor is a ratio of sums over sessions; its spread is the ratio estimator's (Cochran, Sampling
        Techniques, 1977, section 6.4), of the sessions counted and of the others together.
        """
        n = self.sessions
        if n < 2 or not sessions:
            return 0.0, math.inf
        residual = self.rows - self.factor * self.stored
        per_session = float(np.sqrt((residual**2).sum() / (n - 1))) / max(float(self.stored.mean()), 1e-12)
        width = 1.96 * per_session * math.sqrt(1 / n + 1 / sessions)
        return max(0.0, self.factor - width), self.factor + width


def form_stats(sample: SessionSurvey, features: tuple[str, ...], form: str) -> FormStats | None:
    """Count a group in one form; None where the features' lists differ in length and the form is partial."""
    n = sample.rows.samples
    lengths = [sample.lengths(feature) for feature in features]
    F, ids = len(features), float(sum(each.sum() for each in lengths)) / n
    plain = ID_BYTES * ids + INDEX_BYTES * F
    counts = sample.rows.counts.astype(np.float64)
    if form == "none":
        return FormStats(features, form, counts, counts, plain, _work(ids), plain, _work(ids))
    if form == "exact":
        first = sample.first_rows(features)
        unique = np.bincount(sample.rows.of_sample[first], minlength=counts.size).astype(np.float64)
        stored = float(sum(each[first].sum() for each in lengths)) / n
        bytes_ = ID_BYTES * stored + INDEX_BYTES * F * first.size / n + INDEX_BYTES
        return FormStats(features, form, counts, unique, bytes_, _work(stored) + F * EXPANSION_WORK, plain, _work(ids))
    if any((each != lengths[0]).any() for each in lengths[1:]):
        return None
    shared = sample.shared_values(features).astype(np.float64)
    values = np.bincount(sample.rows.of_sample, weights=lengths[0], minlength=counts.size)
    stored = F * float(shared.sum()) / n
    work = _work(stored) * (1 + WINDOW_WORK) + F * EXPANSION_WORK
    return FormStats(features, form, values, shared, ID_BYTES * stored + 2 * INDEX_BYTES, work, plain, _work(ids))


def stay_of(sample: SessionSurvey, features: tuple[str, ...]) -> float:
    """Chance d that all lists of the features stay from one sample of a session to the next."""
    stays = np.logical_and.reduce([sample.stays(feature) for feature in features])
    pairs = int(sample.follows.sum())
    return float(stays.sum() / pairs) if pairs else 0.0


def _work(ids: float) -> float:
    return max(ids, 1e-9)


def _over(values: float, stored: float) -> float:
    return float(values / stored) if stored else 1.0
