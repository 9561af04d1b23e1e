"""What a placement costs: the phases of a step, and what answers for their latencies."""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

PHASES = ("forward", "forward_comm", "backward_comm", "backward")
"""The parts of a training step, each ended by a barrier across devices."""

FORWARD, FORWARD_COMM, BACKWARD_COMM, BACKWARD = range(len(PHASES))
"""Positions of the phases in arrays (..., 4)."""

COMPUTE = (FORWARD, BACKWARD)
EXCHANGE = (FORWARD_COMM, BACKWARD_COMM)


@public("shardgym")
@dataclass(frozen=True)
class StepCost:
    """Milliseconds of each phase on each device, for one placement or for many at once.

    The two exchange phases are collectives: predicted, every device leaves them with the slowest, so that they are
    the same on all, an empty one included; measured, they are what each device saw.

    Args:
        phases: (..., D, 4) ms, the last axis in the order of `PHASES`.
    """

    phases: NDArray[np.floating]

    @classmethod
    def of(cls, compute: NDArray[np.floating], exchange: NDArray[np.floating]) -> "StepCost":
        """From what each device computes, (..., D, 2) forward and backward, and the collectives, (..., 2), in ms."""
        phases = np.empty((*compute.shape[:-1], len(PHASES)), dtype=compute.dtype)
        phases[..., FORWARD], phases[..., BACKWARD] = compute[..., 0], compute[..., 1]
        phases[..., FORWARD_COMM], phases[..., BACKWARD_COMM] = exchange[..., None, 0], exchange[..., None, 1]
        return cls(phases)

    def phase(self, name: str) -> NDArray[np.floating]:
        """(..., D) ms of one phase."""
        return self.phases[..., PHASES.index(name)]

    @property
    def step(self) -> NDArray[np.float64]:
        """(...,) ms of the step. Collectives are barriers, so each phase lasts as long as its slowest device."""
        slowest = self.phases.max(axis=-2)
        return step_ms(slowest[..., COMPUTE], slowest[..., EXCHANGE])

    @property
    def max_of_sums(self) -> NDArray[np.float64]:
        """(...,) ms by DreamShard's rule (arXiv 2210.02023): the slowest device's own sum of phases."""
        return self.phases.sum(axis=-1, dtype=np.float64).max(axis=-1)


def step_ms(slowest: NDArray[np.floating], exchange: NDArray[np.floating]) -> NDArray[np.float64]:
    """The step from its barriers: (...,) ms, added in one order so that every caller gets the same to the last digit.

    Args:
        slowest: (..., 2) ms of the slowest device, forward and backward.
        exchange: (..., 2) ms of the all-to-alls, forward and backward.
    """
    slowest, exchange = slowest.astype(np.float64), exchange.astype(np.float64)
    return (slowest[..., 0] + slowest[..., 1]) + (exchange[..., 0] + exchange[..., 1])


@public("shardgym")
class CostModel(Protocol):
    """What a placement costs."""

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Cost of one placement; phases (D, 4)."""
        ...

    def costs(self, task: Task, device_of: NDArray[np.integer]) -> StepCost:
        """Costs of N placements, device_of (N, T) with `UNPLACED` allowed; phases (N, D, 4)."""
        ...
