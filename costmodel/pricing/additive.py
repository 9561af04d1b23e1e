"""The additive baseline: a device costs a launch plus a learned cost of each table."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.costs import BACKWARD, FORWARD, PHASES
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task


@public("shardgym.costmodel")
class AdditiveCost(SummedCostModel):
    """Non-negative least squares on the tables' count, look-ups, traffic and pooled output.

    Args:
        coefficients: (2, 4) ms a unit, forward and backward; the units are `work`'s columns.
        overhead: (2,) ms of a launch.
    """

    def __init__(self, coefficients: NDArray[np.float64], overhead: NDArray[np.float64]) -> None:
        self.coefficients = coefficients
        self.overhead = overhead

    def table_states(self, task: Task) -> NDArray[np.float32]:
        """(T, 3): forward ms, backward ms, and a count of one."""
        costs = work(task.tables, task.batch_size) @ self.coefficients.T  # (T, 2)
        return np.concatenate([costs, np.ones((len(costs), 1))], axis=1).astype(np.float32)

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """What each table costs, (T, 4) ms: the launch left out, the floors are the costs."""
        floors = np.zeros((len(task.tables), len(PHASES)), dtype=np.float32)
        floors[:, [FORWARD, BACKWARD]] = self.table_states(task)[:, :2]
        return floors

    def launch_floor(self, task: Task) -> NDArray[np.float32]:
        """The launch, (4,) ms."""
        floor = np.zeros(len(PHASES), dtype=np.float32)
        floor[[FORWARD, BACKWARD]] = self.overhead
        return floor

    def device_costs(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """Phases of devices, (..., D, 3) to (..., D, 4) ms."""
        compute = states[..., :2] + self.overhead * (states[..., 2:] > 0)
        costs = np.zeros((*compute.shape[:-1], len(PHASES)), dtype=np.float32)
        costs[..., FORWARD] = compute[..., 0]
        costs[..., BACKWARD] = compute[..., 1]
        return costs


def fit_coefficients(
    sums: NDArray[np.float64], targets: NDArray[np.float64]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Non-negative coefficients (phases, units) and overheads (phases,) that explain targets (N, phases) by (N, units).

    Each group is weighted by its inverse cost, so that relative errors count.
    """
    design = np.concatenate([np.ones((len(sums), 1)), sums], axis=1)
    solutions = np.array([nnls(design / phase[:, None], np.ones(len(phase)))[0] for phase in targets.T])
    return solutions[:, 1:], solutions[:, 0]


def work(tables: Sequence[TableSpec], batch_size: int) -> NDArray[np.float64]:
    """What a table asks of a device, (T, 4): one table, ids looked up, numbers read, numbers pooled."""
    return np.array(
        [
            (1.0, batch_size * t.pooling, batch_size * t.pooling * t.dim, batch_size * t.dim)
            for t in tables
        ]
    )  # fmt: skip
