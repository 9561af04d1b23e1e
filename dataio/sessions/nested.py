"""From sorted samples to one row per session, with what repeats inside a session stored once (RecD's O2 and O3)."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
import pyarrow as pa
import torch

from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.embeddings.jagged.dedup import unique_rows
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.windows import find_windows
from shardgym.problem.errors import InputError

_OWNER = "__session"


@dataclass(frozen=True)
class SessionRows:
    """Where the rows of the nested table lie in the samples: one per session, long sessions cut.

    Args:
        starts: (N,) first sample of each row.
        samples: n, how many samples there are.
    """

    starts: np.ndarray
    samples: int

    @property
    def counts(self) -> np.ndarray:
        """Samples of each row (N,)."""
        return np.diff(self.starts, append=self.samples)

    @property
    def of_sample(self) -> np.ndarray:
        """Row of each sample (n,)."""
        return np.repeat(np.arange(self.starts.size), self.counts)


def session_rows(sessions: pa.Array, longest: int) -> SessionRows:
    """Rows of a sorted run of samples: a new one where the id changes, is null, or after `longest` samples."""
    n = len(sessions)
    valid = sessions.is_valid().to_numpy(zero_copy_only=False)
    filled = sessions.dictionary_encode().indices if pa.types.is_string(sessions.type) else sessions
    ids = filled.fill_null(0).to_numpy(zero_copy_only=False)
    new = np.r_[True, (ids[1:] != ids[:-1]) | ~valid[:-1]][:n] | ~valid
    starts = np.flatnonzero(new)
    place = np.arange(n) - np.repeat(starts, np.diff(starts, append=n))
    return SessionRows(np.flatnonzero(place % longest == 0), n)


def nest(table: pa.Table, schema: SessionSchema, longest: int) -> pa.Table:
    """One row per session: its samples' columns as lists, its feature groups deduplicated in their form.

    A group "exact" becomes `GROUP.inverse` (a list, one entry per sample) and each feature its unique lists;
    "partial" becomes `GROUP.offset` and `GROUP.length` and each feature one pool of values; "none" keeps
    every list.

    Args:
        table: samples sorted by session and time, list columns as large lists.
        schema: roles of the columns.
        longest: samples of a session after which a new row begins.
    """
    columns = {name: table.column(name).combine_chunks() for name in schema.columns}
    sessions = columns[schema.session]
    rows = session_rows(sessions, longest)
    nested: dict[str, pa.Array] = {schema.session: sessions.take(pa.array(rows.starts))}
    for name in (schema.time, *schema.samples):
        nested[name] = _as_list(rows.counts, columns[name])
    for group in schema.groups:
        make = {"exact": _exact, "partial": _partial, "none": _every_list}[group.form]
        nested.update(make(group, {feature: columns[feature] for feature in group.features}, rows))
    return pa.table(nested)


def nested_runs(
    batches: Iterable[pa.RecordBatch], schema: SessionSchema, samples: int, longest: int
) -> Iterator[pa.Table]:
    """Nest a sorted stream run by run, each of at most `samples` samples or one session's row."""
    waiting_batches: list[pa.RecordBatch] = []
    waiting_samples = 0
    for batch in batches:
        waiting_batches.append(batch)
        waiting_samples += batch.num_rows
        if waiting_samples < samples:
            continue
        table = pa.Table.from_batches(waiting_batches)
        begin = 0
        for end in _run_ends(session_rows(table.column(schema.session).combine_chunks(), longest), samples):
            yield nest(table.slice(begin, end - begin), schema, longest)
            begin = end
        waiting_batches, waiting_samples = table.slice(begin).to_batches(), table.num_rows - begin
    if waiting_samples:
        yield nest(pa.Table.from_batches(waiting_batches), schema, longest)


def _run_ends(rows: SessionRows, samples: int) -> Iterator[int]:
    """Where runs of at most `samples` end, each at the start of a row; a longer row is a run of its own."""
    begin = 0
    while rows.samples - begin >= samples:
        at = np.searchsorted(rows.starts, begin + samples, side="right") - 1
        if rows.starts[at] == begin:
            at += 1
        if at == rows.starts.size:
            return
        begin = int(rows.starts[at])
        yield begin


def _every_list(group: GroupSpec, lists: dict[str, pa.Array], rows: SessionRows) -> dict[str, pa.Array]:
    return {feature: _as_list(rows.counts, _small(array)) for feature, array in lists.items()}


def _exact(group: GroupSpec, lists: dict[str, pa.Array], rows: SessionRows) -> dict[str, pa.Array]:
    # The session is one more feature of the group, so that no list is shared across sessions.
    first, inverse = unique_rows(lists_with_owner(lists, rows))
    lists_of_row = np.bincount(rows.of_sample[first.numpy()], minlength=rows.starts.size)
    before = np.cumsum(lists_of_row) - lists_of_row
    local = (inverse.numpy() - before[rows.of_sample]).astype(np.int32)
    unique = pa.array(first.numpy())
    return {
        f"{group.name}.inverse": _as_list(rows.counts, pa.array(local)),
        **{feature: _as_list(lists_of_row, _small(array.take(unique))) for feature, array in lists.items()},
    }


def _partial(group: GroupSpec, lists: dict[str, pa.Array], rows: SessionRows) -> dict[str, pa.Array]:
    lengths = _common_lengths(group, lists)
    shared, starts = window_pool(lists, lengths, rows)
    # Newest-first histories are found from the last row to the first; the sessions' pools go back in order.
    pool_of_shared = np.repeat(rows.of_sample, lengths)[shared]
    pools = np.bincount(pool_of_shared, minlength=rows.starts.size)
    order = np.argsort(pool_of_shared, kind="stable")
    backward = pool_of_shared.size and pool_of_shared[0] > pool_of_shared[-1]
    before = np.cumsum(pools) - pools
    if backward:
        before = pool_of_shared.size - pools - before
    local = np.where(lengths > 0, starts - before[rows.of_sample], 0).astype(np.int32)
    positions = pa.array(shared[order])
    return {
        f"{group.name}.offset": _as_list(rows.counts, pa.array(local)),
        f"{group.name}.length": _as_list(rows.counts, pa.array(lengths.astype(np.int32))),
        **{feature: _as_list(pools, array.flatten().take(positions)) for feature, array in lists.items()},
    }


def window_pool(lists: dict[str, pa.Array], lengths: np.ndarray, rows: SessionRows) -> tuple[np.ndarray, np.ndarray]:
    """Positions of aligned lists that their windows share inside each session, and where each window starts there."""
    # The session is one more channel, so that no window reaches across sessions.
    owner = np.repeat(rows.of_sample, lengths)
    channels = np.stack([*(_bits(array.flatten().to_numpy()) for array in lists.values()), owner])
    shared, starts = find_windows(torch.from_numpy(channels), _offsets(lengths))
    return shared.numpy(), starts.numpy()


def _common_lengths(group: GroupSpec, lists: dict[str, pa.Array]) -> np.ndarray:
    first, *others = (np.diff(array.offsets.to_numpy()) for array in lists.values())
    for feature, lengths in zip(group.features[1:], others):
        if (lengths != first).any():
            raise InputError(
                f"group {group.name!r}: lists of {feature!r} and {group.features[0]!r} differ in length within a "
                "sample; give each a group of its own"
            )
    return first


def lists_with_owner(lists: dict[str, pa.Array], rows: SessionRows) -> KeyedJaggedTensor:
    """The lists' bits as whole numbers, and each sample's row as a list of one."""
    values = [_bits(array.flatten().to_numpy()) for array in lists.values()]
    lengths = [np.diff(array.offsets.to_numpy()) for array in lists.values()]
    return KeyedJaggedTensor(
        (*lists, _OWNER),
        torch.from_numpy(np.concatenate([*values, rows.of_sample])),
        lengths=torch.from_numpy(np.concatenate([*lengths, np.ones(rows.samples, dtype=np.int64)])),
        validate=False,
    )


def _bits(values: np.ndarray) -> np.ndarray:
    """The bits of numbers of any type as int64: numpy would join uint64 and int64 to float64, which is not exact."""
    return values.view(f"i{values.dtype.itemsize}").astype(np.int64, copy=False)


def _offsets(lengths: np.ndarray) -> torch.Tensor:
    return torch.from_numpy(np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64))


def _as_list(counts: np.ndarray, values: pa.Array) -> pa.Array:
    return pa.ListArray.from_arrays(pa.array(_offsets(counts).numpy().astype(np.int32)), values)


def _small(array: pa.Array) -> pa.Array:
    """Large lists as lists; a run is far below 2^31 values."""
    return _as_list(np.diff(array.offsets.to_numpy()), array.flatten())
