"""Making a placement that fits: finish one that ran out of room, or pack by memory alone."""

import time

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csr_matrix

from shardgym.agents.construction import CostedTask
from shardgym.agents.planner import InfeasibleTaskError, NoPlacementFoundError, Planner
from shardgym.costmodel.placement import UNPLACED, Placement, Task

INFEASIBLE = 2
"""scipy.optimize.milp's status of a problem proven to have no solution."""


def finish(costed: CostedTask, owners: NDArray[np.int64], budget_seconds: float) -> Placement:
    """Place the tables that are left, largest bytes first, making room where there is none.

    Args:
        costed: the task.
        owners: (T,) devices, `UNPLACED` for the tables that are left; what is placed fits.
        budget_seconds: for the search for a packing when swaps do not make room.

    Raises:
        InfeasibleTaskError: proven that no placement fits.
        NoPlacementFoundError: none found in time.
    """
    task, owners = costed.task, owners.copy()
    left = np.flatnonzero(owners == UNPLACED)
    if len(left):
        free = free_bytes(task, owners)
        for table in left[np.argsort(-task.table_bytes[left], kind="stable")]:
            if not _make_room(task, owners, free, int(table)):
                owners = pack(task, budget_seconds)
                break
    return Placement(tuple(int(device) for device in owners))


def free_bytes(task: Task, owners: NDArray[np.int64]) -> NDArray[np.int64]:
    """(D,) bytes left on each device."""
    free = np.array(task.device_memory, dtype=np.int64)
    placed = owners != UNPLACED
    np.subtract.at(free, owners[placed], task.table_bytes[placed])
    return free


def pack(task: Task, budget_seconds: float) -> NDArray[np.int64]:
    """Find a placement that fits, whatever it costs: best fit, largest first, then HiGHS.

    Raises:
        InfeasibleTaskError: proven that none fits.
        NoPlacementFoundError: none found in time.
    """
    started = time.monotonic()
    owners = np.full(len(task.tables), UNPLACED, dtype=np.int64)
    free = np.array(task.device_memory, dtype=np.int64)
    for table in np.argsort(-task.table_bytes, kind="stable"):
        if not _make_room(task, owners, free, int(table)):
            return _pack_exactly(task, budget_seconds - (time.monotonic() - started))
    return owners


def _make_room(task: Task, owners: NDArray[np.int64], free: NDArray[np.int64], table: int) -> bool:
    """Place a table with best fit, or after moving one table or swapping two; updates owners and free."""
    need = task.table_bytes[table]
    fits = free >= need
    if fits.any():
        _put(task, owners, free, table, int(np.where(fits, free, np.iinfo(np.int64).max).argmin()))
        return True
    placed = np.flatnonzero(owners != UNPLACED)
    sizes, homes = task.table_bytes[placed], owners[placed]
    # Moving table a from its device to e must leave room there for the table in hand.
    opens = free[homes] + sizes >= need
    goes = sizes[:, None] <= free[None, :]
    goes[np.arange(len(placed)), homes] = False
    moves = np.argwhere(opens[:, None] & goes)
    if len(moves):
        a, target = moves[0]
        home = int(homes[a])
        _put(task, owners, free, int(placed[a]), int(target))
        _put(task, owners, free, table, home)
        return True
    # Swapping a with a smaller b of another device, the other device taking the difference.
    gain = sizes[:, None] - sizes[None, :]
    swaps = (free[homes][:, None] + gain >= need) & (gain <= free[homes][None, :]) & (homes[:, None] != homes[None, :])
    pairs = np.argwhere(swaps)
    if not len(pairs):
        return False
    a, b = pairs[0]
    home, other = int(homes[a]), int(homes[b])
    free[home] += gain[a, b]
    free[other] -= gain[a, b]
    owners[placed[a]], owners[placed[b]] = other, home
    _put(task, owners, free, table, home)
    return True


def _put(task: Task, owners: NDArray[np.int64], free: NDArray[np.int64], table: int, device: int) -> None:
    if owners[table] != UNPLACED:
        free[owners[table]] += task.table_bytes[table]
    owners[table] = device
    free[device] -= task.table_bytes[table]


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
        owners = result.x.reshape(T, D).argmax(axis=1)
        if (free_bytes(task, owners) >= 0).all():
            return owners
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


def start_owners(start: Planner, task: Task, budget_seconds: float) -> NDArray[np.int64]:
    """(T,) owners to begin a search at: the start's in half the budget, or any packing where it finds none.

    Raises:
        NoPlacementFoundError: no packing was found either.
    """
    try:
        return np.array(start.plan(task, budget_seconds / 2).devices, dtype=np.int64)
    except NoPlacementFoundError:
        return pack(task, budget_seconds)
