"""Placement as a mixed-integer program on a piecewise-linear cost, solved by HiGHS.

The cost of a device in a phase is taken as a convex piecewise-linear function of its load, the sum of its tables'
marginal costs. Both are read from the cost model near a plan at hand; what HiGHS finds is judged by the model itself.
"""

import time
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix, hstack, vstack

from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.heuristics import LargestFirstPlanner
from shardgym.agents.planners.planner import require_feasible
from shardgym.agents.planners.repair import memory_left_of, start_device_of
from shardgym.agents.planners.search_state import SearchState
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.costs import COMPUTE, EXCHANGE, PHASES
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

PIECES = 3
SAMPLES = 64
LARGEST = 40_000
"""Binaries (tables times devices) above which HiGHS is not asked: it would not finish its first relaxation."""


@dataclass(frozen=True)
class PiecewiseCost:
    """A device's phase p costs max over k of `slopes[p, k] * load + offsets[p, k]`.

    Args:
        loads: (T, 4) what each table adds to its device's load in each phase: ms of compute, shares of what is sent.
        slopes: (4, K), offsets: (4, K) ms: the pieces, slopes non-decreasing.
    """

    loads: NDArray[np.float64]
    slopes: NDArray[np.float64]
    offsets: NDArray[np.float64]

    @classmethod
    def near(cls, costed: CostedTask, device_of: NDArray[np.int64], rng: np.random.Generator) -> "PiecewiseCost":
        """Read it off the model: marginals at a plan (T,), pieces from devices of that plan and of random changes."""
        state = SearchState(costed, device_of)
        without = costed.device_ms(state.sums[device_of] - costed.states, device_of)
        alone = np.bincount(device_of, minlength=costed.task.devices)[device_of] == 1
        # What a device in use takes on top of its tables is no table's own.
        launch = costed.cost_model.launch_floor(costed.task) / costed.task.speeds[device_of[alone], None]
        without[alone] = launch
        loads = np.empty((len(device_of), len(PHASES)))
        loads[:, COMPUTE] = np.maximum(state.compute[device_of] - without, 0)  # (T, 2)
        # What a device sends, in the unit of what an even plan's devices send.
        sent = costed.volumes.sum(axis=1)
        loads[:, EXCHANGE] = (sent * costed.task.devices / max(float(sent.sum()), 1.0))[:, None]
        mixed = np.tile(device_of, (SAMPLES, 1))
        changed = rng.random(mixed.shape) < rng.uniform(0, 0.5, size=(SAMPLES, 1))
        mixed[changed] = rng.integers(costed.task.devices, size=int(changed.sum()))
        # Where the exchange waits for the device that sends most, its cost is a function of that device's load.
        prices = costed.cost_model.costs(costed.task, mixed).phases  # (SAMPLES, D, 4)
        on = (mixed[:, None, :] == np.arange(costed.task.devices)[None, :, None]).astype(np.float64)  # (SAMPLES, D, T)
        fits = []
        for phase in range(len(PHASES)):
            load, cost = on @ loads[:, phase], prices[..., phase]
            if phase in EXCHANGE:
                load, cost = load.max(axis=1), cost[:, 0]
            else:
                used = on.any(axis=2)  # an empty device costs nothing, not even a launch
                load, cost = load[used], cost[used]
            fits.append(_convex_pieces(load.ravel(), cost.ravel()))
        return cls(loads, np.array([slopes for slopes, _ in fits]), np.array([offsets for _, offsets in fits]))


@public("shardgym.agents")
class MilpPlanner:
    """HiGHS on the piecewise-linear cost near largest-first's placement.

    Args:
        cost_model: what the pieces are read from and what judges the result.
        seed: of the samples that the pieces are fitted to.
    """

    name = "milp"

    def __init__(self, cost_model: SummedCostModel, seed: int = 0) -> None:
        self.cost_model = cost_model
        self.seed = seed

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """The better of the start and of what HiGHS finds. Raises as `Planner.plan`."""
        deadline = time.monotonic() + budget_seconds
        require_feasible(task)
        device_of = start_device_of(LargestFirstPlanner(self.cost_model), task, budget_seconds)
        costed = CostedTask.of(task, self.cost_model)
        return improve(costed, device_of, deadline, np.random.default_rng(self.seed))


def improve(costed: CostedTask, device_of: NDArray[np.int64], deadline: float, rng: np.random.Generator) -> Placement:
    """Solve the program near a plan until the deadline (of time.monotonic); the better of both by the model."""
    found = None
    if costed.task.devices * len(device_of) <= LARGEST:
        cost = PiecewiseCost.near(costed, device_of, rng)
        # HiGHS looks at the clock between its own steps and may run over.
        found = solve(costed, cost, 0.8 * (deadline - time.monotonic()))
    state = SearchState(costed, device_of)
    if found is None or (memory_left_of(costed.task, found) < 0).any() or SearchState(costed, found).step >= state.step:
        return state.placement
    return SearchState(costed, found).placement


def solve(costed: CostedTask, cost: PiecewiseCost, seconds: float) -> NDArray[np.int64] | None:
    """Devices (T,) of the tables that HiGHS finds in time, or None."""
    task = costed.task
    T, D, P, K = len(task.tables), task.devices, *cost.slopes.shape
    if seconds <= 0.02:
        return None
    table, device = np.divmod(np.arange(T * D), D)
    columns = np.arange(T * D)
    once = csr_matrix((np.ones(T * D), (table, columns)), shape=(T, T * D + P))
    scale = max(task.device_memory)
    memory = csr_matrix((task.table_bytes[table] / scale, (device, columns)), shape=(D, T * D + P))
    # slope * load(device) + offset <= peak of the phase, for every phase, piece and device.
    phase, piece, _ = np.unravel_index(np.arange(P * K * D), (P, K, D))
    on_device = csr_matrix((np.ones(T * D), (device, columns)), shape=(D, T * D))
    blocks = [on_device.multiply(cost.slopes[p, k] * cost.loads[table, p][None, :]) for p in range(P) for k in range(K)]
    peaks = csr_matrix((-np.ones(P * K * D), (np.arange(P * K * D), phase)), shape=(P * K * D, P))
    loads = hstack([vstack(blocks), peaks]).tocsr()
    fits = task.table_bytes[table] <= np.array(task.device_memory)[device]
    result = milp(
        np.concatenate([np.zeros(T * D), np.ones(P)]),
        integrality=np.concatenate([np.ones(T * D), np.zeros(P)]),
        bounds=Bounds(0, np.concatenate([fits.astype(float), np.full(P, np.inf)])),
        constraints=[
            LinearConstraint(once, 1, 1),
            LinearConstraint(memory, -np.inf, np.array(task.device_memory) / scale),
            LinearConstraint(loads, -np.inf, -cost.offsets[phase, piece]),
        ],
        options={"time_limit": seconds, "mip_rel_gap": 1e-4},
    )
    return None if result.x is None else result.x[: T * D].reshape(T, D).argmax(axis=1)


def _convex_pieces(
    loads: NDArray[np.float64], costs: NDArray[np.floating]
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """Slopes and offsets (K,) of lines through thirds of the points; one line for all where slopes would fall."""
    if float(np.ptp(loads)) <= 1e-12:
        return np.zeros(PIECES), np.full(PIECES, float(costs.mean()))
    thirds = np.array_split(np.argsort(loads, kind="stable"), PIECES)
    lines = np.array([_line(loads[part], costs[part]) for part in thirds])
    if (np.diff(lines[:, 0]) < 0).any():
        lines = np.tile(_line(loads, costs), (PIECES, 1))
    return lines[:, 0], lines[:, 1]


def _line(loads: NDArray[np.float64], costs: NDArray[np.floating]) -> tuple[float, float]:
    if np.ptp(loads) <= 1e-12:
        return 0.0, float(costs.mean())
    slope, offset = np.polyfit(loads, costs, 1)
    return max(float(slope), 0.0), float(offset)
