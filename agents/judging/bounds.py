"""How good a placement can be at best: lower bounds of the step that can be checked without trusting who made them.

The exchange is bounded by itself (`Exchange.floor`: even volumes, but for the largest table's). The compute
phases start from floors: ms that a table adds to its device whatever is beside it (`SummedCostModel.table_floors`), and
ms that a device in use takes on top, all at the speed of the fastest device. Three arguments bound a phase; the largest
counts:

- sharing: peaks of the phases are at least any weighted mean over devices of their floors. The weights, with a price
  on each device's memory, are the multipliers of a linear program; ANY multipliers give a valid bound, so that a
  reader checks the bound by arithmetic and needs no solver. This is tighter than the mean where memory binds.
- the costliest table: its device costs at least what it costs alone (costs never fall when a table is added).
- two of the D + 1 costliest tables share a device.
"""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse import csr_matrix, hstack, vstack

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task

LARGEST_PROGRAM = 20_000
"""Tables times devices above which the multipliers are uniform: the program would take longer than it is worth."""


@dataclass(frozen=True)
class Multipliers:
    """What proves the sharing bound.

    Args:
        weights: (D, 2), of forward and backward, non-negative, each column summing to 1 at most.
        prices: (D,) ms per byte of each device's memory, non-negative.
    """

    weights: NDArray[np.float64]
    prices: NDArray[np.float64]

    @classmethod
    def even(cls, devices: int) -> "Multipliers":
        """The mean over devices, memory free."""
        return cls(np.full((devices, 2), 1 / devices), np.zeros(devices))


@public("shardgym.agents")
@dataclass(frozen=True)
class Bound:
    """A lower bound of a task's step.

    Args:
        ms: the bound, the exchange included.
        exchange: of the collectives, ms.
        sharing: the linear program's argument, ms.
        phases: the peaks of the compute phases, each bounded by sharing evenly, its costliest table and costliest pair.
        device: the costliest device, bounded by the costliest table and pair over all phases.
        multipliers: of the first.
    """

    ms: float
    exchange: float
    sharing: float
    phases: float
    device: float
    multipliers: Multipliers


def lower_bound(task: Task, cost_model: SummedCostModel) -> Bound:
    """Bound the step from below. Zero says nothing; models that know no floors still have the costliest table."""
    floors = _floors(task, cost_model)
    even = Multipliers.even(task.devices)
    best = even
    binding = task.table_bytes.sum() > 0.5 * sum(task.device_memory) or len(set(task.device_memory)) > 1
    if binding and len(task.tables) * task.devices <= LARGEST_PROGRAM:
        solved = _program_multipliers(task, floors)
        if solved is not None and sharing_bound(task, floors, solved) > sharing_bound(task, floors, even):
            best = solved
    return bound_with(task, cost_model, best)


def bound_with(task: Task, cost_model: SummedCostModel, multipliers: Multipliers) -> Bound:
    """The bound that given multipliers prove: what a certificate is checked with."""
    floors, fastest = _floors(task, cost_model), float(task.speeds.max())
    launch = cost_model.launch_floor(task).astype(np.float64) / fastest
    states = cost_model.table_states(task)
    alone = cost_model.compute_ms(states, task).astype(np.float64) / fastest  # (T, 2)
    exchange = float(cost_model.exchange.floor(cost_model.table_volumes(task), task.devices, task.topology).sum())
    sharing = float(launch.sum()) + sharing_bound(task, floors, multipliers)
    # Each phase's peak is bounded by itself, by the argument that is strongest there.
    even = cost_model.total_floor(task) / fastest / task.devices
    shared = launch + np.maximum(even, _pair(floors, task.devices))  # (2,)
    phases = float(np.maximum(alone.max(axis=0), shared).sum())
    # The step is no less than the slowest device's own sum of phases.
    total = floors.sum(axis=1, keepdims=True)  # (T, 1)
    device = max(float(alone.sum(axis=1).max()), float(launch.sum() + _pair(total, task.devices)[0]))
    safe = 1 - 1e-6  # prices are float32
    return Bound(safe * (exchange + max(sharing, phases, device)), exchange, sharing, phases, device, multipliers)


def _floors(task: Task, cost_model: SummedCostModel) -> NDArray[np.float64]:
    """(T, 2) ms that each table adds to the compute of whatever device it is on."""
    return cost_model.table_floors(task).astype(np.float64) / float(task.speeds.max())


def sharing_bound(task: Task, floors: NDArray[np.float64], multipliers: Multipliers) -> float:
    """What multipliers prove, ms: each table takes its cheapest device under them, and memory is paid for.

    Args:
        task: T tables, D devices.
        floors: (T, 2) ms that each table adds to forward and backward.
        multipliers: of D devices.

    For every placement, sum_p max_d F[d, p] >= sum_(d,p) w[d, p] F[d, p] >= this, since a legal one uses no more
    memory than there is.
    """
    weights = np.maximum(multipliers.weights, 0)
    weights = weights / np.maximum(weights.sum(axis=0, keepdims=True), 1.0)
    prices = np.maximum(multipliers.prices, 0)
    memory = np.array(task.device_memory, dtype=np.float64)
    priced = floors @ weights.T + task.table_bytes[:, None] * prices[None, :]  # (T, D)
    priced = np.where(task.table_bytes[:, None] <= memory[None, :], priced, np.inf)
    return float(priced.min(axis=1).sum() - prices @ memory)


def _pair(floors: NDArray[np.float64], devices: int) -> NDArray[np.float64]:
    """(P,) floor of two of the D + 1 costliest tables, in each column."""
    if len(floors) <= devices:
        return np.zeros(floors.shape[1])
    ranked = -np.sort(-floors, axis=0)
    return ranked[devices - 1] + ranked[devices]


def _program_multipliers(task: Task, floors: NDArray[np.float64]) -> Multipliers | None:
    """Duals of: place tables fractionally to lower the sum of the phases' peaks, within memory."""
    T, D, P = len(task.tables), task.devices, floors.shape[1]
    table, device = np.divmod(np.arange(T * D), D)
    columns = np.arange(T * D)
    unit = max(task.device_memory)
    on_device = csr_matrix((np.ones(T * D), (device, columns)), shape=(D, T * D))
    loads = vstack([on_device.multiply(floors[table, p][None, :]) for p in range(P)])
    peaks = csr_matrix((-np.ones(P * D), (np.arange(P * D), np.repeat(np.arange(P), D))), shape=(P * D, P))
    memory = hstack([on_device.multiply(task.table_bytes[table][None, :] / unit), csr_matrix((D, P))])
    once = csr_matrix((np.ones(T * D), (table, columns)), shape=(T, T * D + P))
    fits = task.table_bytes[table] <= np.array(task.device_memory)[device]
    upper = np.concatenate([fits.astype(float), np.full(P, np.inf)])
    result = linprog(
        np.concatenate([np.zeros(T * D), np.ones(P)]),
        A_ub=vstack([hstack([loads, peaks]), memory]).tocsr(),
        b_ub=np.concatenate([np.zeros(P * D), np.array(task.device_memory) / unit]),
        A_eq=once,
        b_eq=np.ones(T),
        bounds=np.stack([np.zeros(len(upper)), upper], axis=1),
        method="highs",
    )
    if result.status != 0:
        return None
    duals = -result.ineqlin.marginals
    return Multipliers(duals[: P * D].reshape(P, D).T, duals[P * D :] / unit)
