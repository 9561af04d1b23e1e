"""Fitting the exchange: the physical form first, then what measurements say beyond it, both as linear programs.

The error is relative and absolute, summed over all-to-alls: |predicted - measured| / measured. Coefficients are not
negative, so that no cost falls when a volume grows.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, eye, hstack, vstack

from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample
from shardgym.costmodel.pricing.exchange import Correction, Direction, PhysicalExchange

KNOTS = 4
"""Pieces of the correction in each volume."""

FEWEST_FOR_CORRECTION = 20
"""All-to-alls of one number of devices below which it gets no correction of its own."""


@dataclass(frozen=True)
class AllToAlls:
    """Measured all-to-alls of one number of devices.

    Args:
        devices: D.
        total: (N,) bytes that all devices send.
        largest: (N,) bytes of the device that sends most.
        ms: (N, 2) forward and backward of the slowest device.
        other: (N, 2, K) further inputs of forward and backward that add to the ms by a coefficient each, such as the
            mean start skew; K = 0 where there are none.
    """

    devices: int
    total: NDArray[np.float64]
    largest: NDArray[np.float64]
    ms: NDArray[np.float64]
    other: NDArray[np.float64]

    @classmethod
    def of(cls, devices: int, samples: Sequence[AllToAllSample]) -> "AllToAlls":
        """From samples of `devices` devices each."""
        sent = np.array([sample.sent() for sample in samples], dtype=np.float64)  # (N, D)
        ms = np.array([(max(s.forward_ms), max(s.backward_ms)) for s in samples])
        return cls(devices, sent.sum(axis=1), sent.max(axis=1), ms, np.zeros((len(samples), 2, 0)))


def fit_exchange(samples: Sequence[AllToAllSample]) -> PhysicalExchange:
    """Fit all-to-alls of any numbers of devices on one host."""
    counts = sorted({len(sample.dims) for sample in samples})
    groups = [AllToAlls.of(count, [s for s in samples if len(s.dims) == count]) for count in counts]
    return fit_all_to_alls(groups)[0]


def fit_all_to_alls(groups: Sequence[AllToAlls]) -> tuple[PhysicalExchange, NDArray[np.float64]]:
    """Fit one exchange.

    Args:
        groups: measurements by number of devices.

    Returns:
        The exchange, and (2, K) coefficients of the further inputs, forward and backward.
    """
    directions, others = [], []
    for k in range(2):
        design = np.concatenate([_physical(group, k) for group in groups])
        solution = _least_relative(design, np.concatenate([group.ms[:, k] for group in groups]))
        peer, host, device = solution[:3].tolist()
        directions.append(Direction(0.0, peer, host / 1e6, device / 1e6))
        others.append(solution[3:])
    enough = [group for group in groups if len(group.ms) >= FEWEST_FOR_CORRECTION]
    corrections = tuple(_correction(group, directions, np.array(others)) for group in enough)
    return PhysicalExchange(directions[0], directions[1], corrections=corrections), np.array(others)


def _physical(group: AllToAlls, k: int) -> NDArray[np.float64]:
    """Inputs of the physical form: peers, megabytes of all devices (one host), megabytes of the largest, others."""
    peers = np.full(len(group.ms), group.devices - 1.0)
    return np.column_stack([peers, group.total / 1e6, group.largest / 1e6, group.other[:, k]])


def _correction(group: AllToAlls, directions: Sequence[Direction], others: NDArray[np.float64]) -> Correction:
    """Piecewise linear in both volumes, every slope of the whole being at least zero."""
    shares = np.linspace(0, 1, KNOTS + 1)
    totals, largests = np.quantile(group.total, shares), np.quantile(group.largest, shares)
    added: list[tuple[NDArray[np.float64], NDArray[np.float64]]] = []
    for k, one in enumerate(directions):
        # The whole within the knots: ms at the first knots, then a slope of at least zero in each piece.
        pieces = np.column_stack([_pieces(group.total, totals), _pieces(group.largest, largests)])
        known = group.other[:, k] @ others[k]
        design = np.column_stack([np.ones(len(group.ms)), pieces / 1e6])
        solution = _least_relative(design, group.ms[:, k], known)
        start = one.peer * (group.devices - 1) + one.host * totals[0] + one.device * largests[0]
        slopes = solution[1:] / 1e6
        by_total = np.concatenate([[0.0], np.cumsum((slopes[:KNOTS] - one.host) * np.diff(totals))])
        by_largest = np.concatenate([[0.0], np.cumsum((slopes[KNOTS:] - one.device) * np.diff(largests))])
        added.append((by_total + solution[0] - start, by_largest))
    return Correction(
        group.devices,
        tuple(totals.tolist()),
        tuple(tuple(by_total.tolist()) for by_total, _ in added),
        tuple(largests.tolist()),
        tuple(tuple(by_largest.tolist()) for _, by_largest in added),
    )


def _pieces(volume: NDArray[np.float64], knots: NDArray[np.float64]) -> NDArray[np.float64]:
    """(N, pieces) how much of each piece between knots a volume (N,) fills."""
    return np.clip(volume[:, None] - knots[:-1], 0, np.diff(knots))


def _least_relative(
    design: NDArray[np.float64], ms: NDArray[np.float64], known: NDArray[np.float64] | float = 0.0
) -> NDArray[np.float64]:
    """Coefficients of at least zero with the least sum of |known + design @ coefficients - ms| / ms."""
    count, width = design.shape
    relative = csr_matrix(design / ms[:, None])
    target = (ms - known) / ms
    slack = eye(count)
    result = linprog(
        np.concatenate([np.zeros(width), np.ones(count)]),
        A_ub=vstack([hstack([relative, -slack]), hstack([-relative, -slack])]).tocsr(),
        b_ub=np.concatenate([target, -target]),
        bounds=(0, None),
        method="highs",
    )
    if result.x is None:
        raise ValueError(f"the linear program of the exchange was not solved: {result.message}")
    return result.x[:width]
