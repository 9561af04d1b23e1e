"""The additive baseline: a device costs a launch plus a learned cost of each table."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import nnls

from shardgym.costmodel.pricing.exchange import Exchange, NoExchange
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task


@public("shardgym.costmodel")
class AdditiveCost(SummedCostModel):
    """Non-negative least squares on the tables' count, look-ups, traffic and pooled output.

    Args:
        coefficients: (2, 4) ms per unit, forward and backward; the units are `work`'s columns.
        overhead: (2,) ms of a launch.
        exchange: of the collectives; none where it was not measured.
    """

    def __init__(
        self,
        coefficients: NDArray[np.float64],
        overhead: NDArray[np.float64],
        exchange: Exchange = NoExchange(),
    ) -> None:
        self.coefficients = coefficients
        self.overhead = overhead.astype(np.float32)
        self._exchange = exchange

    @property
    def exchange(self) -> Exchange:
        """As `SummedCostModel.exchange`."""
        return self._exchange

    def table_states(self, task: Task) -> NDArray[np.float32]:
        """(T, 3): forward ms, backward ms, and a count of one."""
        costs = work(task.tables, task.batch_size) @ self.coefficients.T  # (T, 2)
        return on_grid(np.concatenate([costs, np.ones((len(costs), 1))], axis=1))

    def compute_ms(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """(..., 3) to (..., 2) ms."""
        return states[..., :2] + self.overhead * (states[..., 2:] > 0)

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """What each table costs, (T, 2) ms: the launch left out, the floors are the costs."""
        return self.table_states(task)[:, :2]

    def launch_floor(self, task: Task) -> NDArray[np.float32]:
        """The launch, (2,) ms."""
        return self.overhead


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
