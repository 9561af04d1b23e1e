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

    Args:
        phases: (..., D, 4) ms, the last axis in the order of `PHASES`.
    """

    phases: NDArray[np.floating]

    def phase(self, name: str) -> NDArray[np.floating]:
        """(..., D) ms of one phase."""
        return self.phases[..., PHASES.index(name)]

    @property
    def step(self) -> NDArray[np.floating]:
        """(...,) ms of the step. Collectives are barriers, so each phase lasts as long as its slowest device."""
        return self.phases.max(axis=-2).sum(axis=-1)

    @property
    def max_of_sums(self) -> NDArray[np.floating]:
        """(...,) ms by DreamShard's rule (arXiv 2210.02023): the slowest device's own sum of phases."""
        return self.phases.sum(axis=-1).max(axis=-1)


@public("shardgym")
class CostModel(Protocol):
    """What a placement costs."""

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Cost of one placement; phases (D, 4)."""
        ...

    def costs(self, task: Task, owners: NDArray[np.integer]) -> StepCost:
        """Costs of N placements, owners (N, T) with `UNPLACED` allowed; phases (N, D, 4)."""
        ...
