"""The machine's drift: how fast it was while each sample was measured, from the reference op timed between samples."""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray
from scipy.ndimage import median_filter

from shardgym.costmodel.measuring.samples import GroupSample

WINDOW = 41
"""Samples over which the reference is smoothed. One reference is noisier than the drift it shows."""


def drift_factors(reference_ms: NDArray[np.float64], window: int = WINDOW) -> NDArray[np.float64]:
    """Slowness of the machine at each sample, (N,), 1 being the median: a running median of the reference."""
    smooth = median_filter(reference_ms, size=min(window, len(reference_ms)), mode="nearest")
    return smooth / np.median(smooth)


def without_drift(samples: Sequence[GroupSample], window: int = WINDOW) -> list[GroupSample]:
    """The samples, in the order they were measured in, with forward and backward divided by the smoothed drift."""
    factors = drift_factors(np.array([sample.reference_ms for sample in samples]), window)
    return [
        replace(sample, forward_ms=float(sample.forward_ms / factor), backward_ms=float(sample.backward_ms / factor))
        for sample, factor in zip(samples, factors)
    ]
