"""Whether measurements can be trusted: the same groups measured again, and how far the two disagree."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.measuring.drift import WINDOW, drift_factors
from shardgym.costmodel.measuring.meter import Meter
from shardgym.costmodel.measuring.samples import GroupSample
from shardgym.problem.errors import InputError


@dataclass(frozen=True)
class Disagreement:
    """Median over the groups of |second - first| over their mean, forward and backward.

    Args:
        raw: as measured.
        own_reference: each sample divided by the reference op timed just before it.
        smoothed: each divided by its series' smoothed drift, as `without_drift` does, the two series being brought to
            the same median of the reference.
    """

    raw: tuple[float, float]
    own_reference: tuple[float, float]
    smoothed: tuple[float, float]


def measure_again(
    samples: Sequence[GroupSample], meter: Meter, progress: Callable[[int], None] = lambda done: None
) -> NDArray[np.float64]:
    """Forward, backward and reference ms of the same groups, measured now, (N, 3).

    Raises:
        InputError: when the samples come from another machine.
    """
    if not samples[0].hardware.comparable(meter.hardware):
        raise InputError(f"samples: were measured on {samples[0].hardware}, and this is {meter.hardware}; measure here")
    again = []
    for sample in samples:
        reference = meter.reference_ms()
        latency = meter.measure(sample.tables, sample.batch_size)
        again.append((latency.forward_ms, latency.backward_ms, reference))
        progress(len(again))
    return np.array(again)


def disagreement(samples: Sequence[GroupSample], again: NDArray[np.float64]) -> Disagreement:
    """How far two measurements of the same N groups differ, and whether dividing by the reference helps.

    `again` is (N, 3): forward, backward and reference ms, as `measure_again` gives them.
    """
    first = np.array([(s.forward_ms, s.backward_ms, s.reference_ms) for s in samples])
    level = np.median(again[:, 2]) / np.median(first[:, 2])
    smooth = [drift_factors(series[:, 2], WINDOW)[:, None] for series in (first, again)]
    return Disagreement(
        raw=_apart(first[:, :2], again[:, :2]),
        own_reference=_apart(first[:, :2] / first[:, 2:], again[:, :2] / again[:, 2:]),
        smoothed=_apart(first[:, :2] / smooth[0], again[:, :2] / smooth[1] / level),
    )


def _apart(first: NDArray[np.float64], again: NDArray[np.float64]) -> tuple[float, float]:
    forward, backward = np.median(np.abs(again - first) / ((again + first) / 2), axis=0)
    return float(forward), float(backward)
