"""Making a placement that fits: finish one that ran out of room, or pack by memory alone."""

import time

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.planner import InfeasibleTaskError, NoPlacementFoundError, Planner
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.tasks import Task

INFEASIBLE = 2
"""scipy.optimize.milp's status of a problem proven to have no solution."""


def finish(costed: CostedTask, device_of: NDArray[np.int64], budget_seconds: float) -> Placement:
    """Place the tables that are left, largest bytes first, making room where there is none.

    Args:
        costed: the task.
        device_of: (T,) devices, `UNPLACED` for the tables that are left; what is placed fits.
        budget_seconds: for the search for a packing when swaps do not make room.

    Raises:
        InfeasibleTaskError: proven that no placement fits.
        NoPlacementFoundError: none found in time.
    """
    task, device_of = costed.task, device_of.copy()
    left = np.flatnonzero(device_of == UNPLACED)
    if len(left):
        memory_left = memory_left_of(task, device_of)
        for table in left[np.argsort(-task.table_bytes[left], kind="stable")]:
            if not _make_room(task, device_of, memory_left, int(table)):
                device_of = pack(task, budget_seconds)
                break
    return Placement.of(device_of)


def memory_left_of(task: Task, device_of: NDArray[np.int64]) -> NDArray[np.int64]:
    """(D,) bytes left on each device."""
    memory_left = np.array(task.device_memory, dtype=np.int64)
    placed = device_of != UNPLACED
    np.subtract.at(memory_left, device_of[placed], task.table_bytes[placed])
    return memory_left


def pack(task: Task, budget_seconds: float) -> NDArray[np.int64]:
    """Find a placement (T,) that fits, whatever it costs: best fit, largest first, then HiGHS.

    Raises:
        InfeasibleTaskError: proven that none fits.
        NoPlacementFoundError: none found in time.
    """
    started = time.monotonic()
    device_of = np.full(len(task.tables), UNPLACED, dtype=np.int64)
    memory_left = np.array(task.device_memory, dtype=np.int64)
    for table in np.argsort(-task.table_bytes, kind="stable"):
        if not _make_room(task, device_of, memory_left, int(table)):
            return _pack_exactly(task, budget_seconds - (time.monotonic() - started))
    return device_of


def _make_room(task: Task, device_of: NDArray[np.int64], memory_left: NDArray[np.int64], table: int) -> bool:
    """Place a table with best fit, or after moving one table or swapping two; updates device_of and free."""
    need = task.table_bytes[table]
    fits = memory_left >= need
    if fits.any():
        _put(task, device_of, memory_left, table, int(np.where(fits, memory_left, np.iinfo(np.int64).max).argmin()))
        return True
    placed = np.flatnonzero(device_of != UNPLACED)
    sizes, homes = task.table_bytes[placed], device_of[placed]
    # Moving table a from its device to e must leave room there for the table in hand.
    opens = memory_left[homes] + sizes >= need
    goes = sizes[:, None] <= memory_left[None, :]
    goes[np.arange(len(placed)), homes] = False
    moves = np.argwhere(opens[:, None] & goes)
    if len(moves):
        a, target = moves[0]
        home = int(homes[a])
        _put(task, device_of, memory_left, int(placed[a]), int(target))
        _put(task, device_of, memory_left, table, home)
        return True
    # Swapping a with a smaller b of another device, the other device taking the difference.
    gain = sizes[:, None] - sizes[None, :]
    swaps = (
        (memory_left[homes][:, None] + gain >= need)
        & (gain <= memory_left[homes][None, :])
        & (homes[:, None] != homes[None, :])
    )
    pairs = np.argwhere(swaps)
    if not len(pairs):
        return False
    a, b = pairs[0]
    home, other = int(homes[a]), int(homes[b])
    memory_left[home] += gain[a, b]
    memory_left[other] -= gain[a, b]
    device_of[placed[a]], device_of[placed[b]] = other, home
    _put(task, device_of, memory_left, table, home)
    return True


def _put(task: Task, device_of: NDArray[np.int64], memory_left: NDArray[np.int64], table: int, device: int) -> None:
    if device_of[table] != UNPLACED:
        memory_left[device_of[table]] += task.table_bytes[table]
    device_of[table] = device
    memory_left[device] -= task.table_bytes[table]


def _pack_exactly(task: Task, seconds: float) -> NDArray[np.int64]:
    """Variable packing of tables into devices as an integer program without a goal."""
    T, D = len(task.tables), task.devices
    table, device = np.divmod(np.arange(T * D), D)
    scale = max(task.device_memory)
    once = csr_matrix((np.ones(T * D), (table, np.arange(T * D))), shape=(T, T * D))
    memory = csr_matrix((task.table_bytes[table] / scale, (device, np.arange(T * D))), shape=(D, T * D))
    result = milp(
        np.zeros(T * D),
        integrality=np.ones(T * D),
        bounds=Bounds(0, 1),
        constraints=[
            LinearConstraint(once, 1, 1),
            LinearConstraint(memory, -np.inf, np.array(task.device_memory) / scale),
        ],
        options={"time_limit": max(seconds, 0.05)},
    )
    if result.x is not None:
        device_of = result.x.reshape(T, D).argmax(axis=1)
        if (memory_left_of(task, device_of) >= 0).all():
            return device_of
    if result.status == INFEASIBLE:
        raise InfeasibleTaskError(
            f"task {task.name!r}: an integer program proves that the {T} tables ({task.table_bytes.sum():,} bytes) "
            f"cannot be packed into the {D} devices ({sum(task.device_memory):,} bytes), since tables cannot be "
            "cut; give more memory, or compress or split tables"
        )
    raise NoPlacementFoundError(
        f"task {task.name!r}: no placement that fits was found in time, its tables taking "
        f"{task.table_bytes.sum() / sum(task.device_memory):.1%} of the memory; give a longer budget, more memory, "
        "or compress or split tables"
    )


def start_device_of(start: Planner, task: Task, budget_seconds: float) -> NDArray[np.int64]:
    """(T,) device_of to begin a search at: the start's in half the budget, or any packing where it finds none.

    Raises:
        NoPlacementFoundError: no packing was found either.
    """
    try:
        return np.array(start.plan(task, budget_seconds / 2).device_of, dtype=np.int64)
    except NoPlacementFoundError:
        return pack(task, budget_seconds)
