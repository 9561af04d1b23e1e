"""Changes of a placement: move a table, swap two, or push one out and let it go elsewhere (ejection).

Every change starts at a critical device, since none other shortens the step, and leaves every device room.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.search_state import Changes, SearchState


def moves(state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int) -> Changes:
    """One table (N, 1) of a source to another device; N is at most `limit`, drawn where there are more."""
    tables = np.flatnonzero(np.isin(state.device_of, sources))
    fits = state.bytes[tables][:, None] <= state.memory_left[None, :]
    fits[np.arange(len(tables)), state.device_of[tables]] = False
    which, target = _some(np.argwhere(fits), rng, limit).T
    table, home = tables[which], state.device_of[tables[which]]
    touched = np.stack([home, target], axis=1)
    return _changes(state, table[:, None], target[:, None], touched, lambda each: [-each[table], each[table]])


def swaps(state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int) -> Changes:
    """A table of a source and a table of another device, (N, 2), change places; N is at most `limit`."""
    a, b = _pairs(state, sources, rng, limit)
    home, other = state.device_of[a], state.device_of[b]
    gain = state.bytes[a] - state.bytes[b]
    fits = (gain <= state.memory_left[other]) & (-gain <= state.memory_left[home])
    a, b, home, other = a[fits], b[fits], home[fits], other[fits]
    tables, targets = np.stack([a, b], axis=1), np.stack([other, home], axis=1)
    touched = np.stack([home, other], axis=1)
    return _changes(state, tables, targets, touched, lambda each: [each[b] - each[a], each[a] - each[b]])


def ejections(state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int) -> Changes:
    """A table of a source takes the place of another, (N, 2), which goes to a third device; N is at most `limit`."""
    a, b = _pairs(state, sources, rng, limit)
    third = rng.integers(state.devices, size=len(a))
    home, other = state.device_of[a], state.device_of[b]
    fits = (
        (third != home)
        & (third != other)
        & (state.bytes[a] - state.bytes[b] <= state.memory_left[other])
        & (state.bytes[b] <= state.memory_left[third])
    )
    a, b, home, other, third = a[fits], b[fits], home[fits], other[fits], third[fits]
    tables, targets = np.stack([a, b], axis=1), np.stack([other, third], axis=1)
    touched = np.stack([home, other, third], axis=1)
    return _changes(state, tables, targets, touched, lambda each: [-each[a], each[a] - each[b], each[b]])


def _changes(
    state: SearchState,
    tables: NDArray[np.int64],
    targets: NDArray[np.int64],
    touched: NDArray[np.int64],
    gained: Callable[[NDArray[np.float64]], list[NDArray[np.float64]]],
) -> Changes:
    """Changes with the sums of their touched devices; `gained` says of what each table adds what each device gains."""
    costed = state.costed
    states = state.sums[touched] + np.stack(gained(costed.states.astype(np.float64)), axis=1)
    return Changes(tables, targets, touched, states, state.volumes[touched] + np.stack(gained(costed.volumes), axis=1))


def _pairs(
    state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tables a of a source and b of another device, all pairs or a random part of them."""
    tables = np.flatnonzero(np.isin(state.device_of, sources))
    everyone = len(state.device_of)
    count = len(tables) * everyone
    if count > limit:
        which, b = rng.integers(len(tables), size=limit), rng.integers(everyone, size=limit)
    else:
        which, b = np.divmod(np.arange(count), everyone)
    a = tables[which]
    apart = state.device_of[a] != state.device_of[b]
    return a[apart], b[apart]


def _some(rows: NDArray[np.int64], rng: np.random.Generator, limit: int) -> NDArray[np.int64]:
    return rows if len(rows) <= limit else rows[rng.choice(len(rows), limit, replace=False)]
