"""Changes of a placement: move a table, swap two, or push one out and let it go elsewhere (ejection).

Every change starts at a critical device, since none other shortens the step, and leaves every device room.
"""

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from shardgym.agents.planners.search_state import Changes, SearchState

Neighbourhood = Callable[[SearchState, NDArray[np.int64], np.random.Generator, int], Changes]
"""From a state, the devices to start at, a generator and a limit to at most so many changes."""


def moves(state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int) -> Changes:
    """One table of a source to another device."""
    tables = np.flatnonzero(np.isin(state.device_of, sources))
    fits = state.bytes[tables][:, None] <= state.memory_left[None, :]
    fits[np.arange(len(tables)), state.device_of[tables]] = False
    which, target = _some(np.argwhere(fits), rng, limit).T
    table, home = tables[which], state.device_of[tables[which]]
    moved = state.costed.states[table]
    return Changes(
        table[:, None],
        target[:, None],
        np.stack([home, target], axis=1),
        np.stack([_less(state.sums[home], moved), state.sums[target] + moved], axis=1),
    )


def swaps(state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int) -> Changes:
    """A table of a source and a table of another device change places."""
    a, b = _pairs(state, sources, rng, limit)
    home, other = state.device_of[a], state.device_of[b]
    gain = state.bytes[a] - state.bytes[b]
    fits = (gain <= state.memory_left[other]) & (-gain <= state.memory_left[home])
    a, b, home, other = a[fits], b[fits], home[fits], other[fits]
    difference = state.costed.states[b] - state.costed.states[a]
    return Changes(
        np.stack([a, b], axis=1),
        np.stack([other, home], axis=1),
        np.stack([home, other], axis=1),
        np.stack([_less(state.sums[home], -difference), _less(state.sums[other], difference)], axis=1),
    )


def ejections(state: SearchState, sources: NDArray[np.int64], rng: np.random.Generator, limit: int) -> Changes:
    """A table of a source takes the place of another, which goes to a third device."""
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
    from_a, from_b = state.costed.states[a], state.costed.states[b]
    middle = _less(state.sums[other], from_b - from_a)
    return Changes(
        np.stack([a, b], axis=1),
        np.stack([other, third], axis=1),
        np.stack([home, other, third], axis=1),
        np.stack([_less(state.sums[home], from_a), middle, state.sums[third] + from_b], axis=1),
    )


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


def _less(sums: NDArray[np.float32], states: NDArray[np.float32]) -> NDArray[np.float32]:
    """Sums without some states. States are never negative, so what rounding takes below zero is zero."""
    return np.maximum(sums - states, 0)
