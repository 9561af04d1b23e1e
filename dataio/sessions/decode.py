"""One row group of a clustered log as tensors: unique lists and inverse come as stored, nothing is hashed."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from shardgym.dataio.sessions.clustered_files import Manifest, open_part
from shardgym.dataio.sessions.route import text_hashes
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.stored_groups import StoredGroup, StoredLists, StoredRun, StoredWindows
from shardgym.embeddings.jagged.ops import jagged_index_select
from shardgym.problem.errors import InputError

SessionOrder = Callable[[int], np.ndarray | None]
"""From the number of session rows to their order, None where they stay."""

_WIDER = {torch.uint16: torch.int32, torch.uint32: torch.int64}
"""Types that torch can store but not compute with, and the next that holds all their values; uint64 has none."""


def columns_of(schema: SessionSchema, samples: Sequence[str]) -> list[str]:
    """Columns of a nested file to read; the first has one entry per sample, so that it counts the sessions' samples.

    The time is read only where it is asked for or nothing else counts.
    """
    counting = [f"{group.name}.{part}" for group in schema.groups for part in _PARTS[group.form]]
    counting += [name for name in samples if name != schema.session]
    session = [schema.session] if schema.session in samples else []
    return (counting or [schema.time]) + session + list(schema.features)


_PARTS = {"exact": ("inverse",), "partial": ("offset", "length"), "none": ()}


def decode_row_group(
    file: pq.ParquetFile,
    number: int,
    schema: SessionSchema,
    samples: Sequence[str],
    path: Path,
    session_order: SessionOrder = lambda _: None,
) -> StoredRun:
    """Read a row group of a nested file.

    Args:
        file: the opened file.
        number: which row group.
        schema: its groups are read; they may hold a part of the features.
        samples: the sample columns that are read, the time among them or not.
        path: named in errors.
        session_order: the order in which the sessions are laid.

    Raises:
        InputError: a page of the file cannot be decoded, or has not the checksum it was written with.
    """
    try:
        table = file.read_row_group(number, columns=columns_of(schema, samples), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: row group {number} is corrupt ({error}); cluster the log again") from None
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    order = session_order(table.num_rows)
    counts = _ordered(_counts(columns[columns_of(schema, samples)[0]]), order)
    groups = tuple(_GROUPS[group.form](group, columns, counts, order) for group in schema.groups)
    sample_columns = {
        name: _session_ids(columns[name], order, counts, path)
        if name == schema.session
        else _session_lists(columns[name], order)[0]
        for name in samples
    }
    return StoredRun(groups, schema.features, sample_columns, int(counts.sum()))


def stored_factors(folder: Path, manifest: Manifest, row_groups: int = 8) -> dict[str, float]:
    """Values over stored values of each group, in the first row groups of a clustered log."""
    sizes: dict[str, list[tuple[int, int]]] = {group.name: [] for group in manifest.schema.groups}
    places = [(part, number) for part in manifest.parts for number in range(len(part.samples))]
    for part, number in places[:row_groups]:
        run = decode_row_group(open_part(folder, part), number, manifest.schema, (), folder / part.name)
        for group, each in zip(manifest.schema.groups, run.groups):
            sizes[group.name].append(each.sizes())
    sums = {name: np.sum(counts, axis=0) for name, counts in sizes.items() if counts}
    return {name: float(values / stored) if stored else 1.0 for name, (values, stored) in sums.items()}


def tensor_of(array: pa.Array) -> Tensor:
    """A tensor (N,) of an Arrow array's numbers, where it can on the array's own memory; not to be written to.

    Timestamps come as the integers they are stored as, uint16 as int32 and uint32 as int64.
    """
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    tensor = torch.from_dlpack(array)
    return tensor.to(_WIDER.get(tensor.dtype, tensor.dtype))


def _counts(array: pa.Array) -> np.ndarray:
    return np.diff(array.offsets.to_numpy())


def _ordered(per_session: np.ndarray, order: np.ndarray | None) -> np.ndarray:
    return per_session if order is None else per_session[order]


def _session_lists(array: pa.Array, order: np.ndarray | None) -> tuple[Tensor, np.ndarray]:
    """The entries of all sessions, one session after the other, and how many each has."""
    return _laid(tensor_of(array.values), array.offsets.to_numpy(), order), _ordered(_counts(array), order)


def _session_ids(array: pa.Array, order: np.ndarray | None, counts: np.ndarray, path: Path) -> Tensor:
    """The session id of each sample: whole numbers as they are, text as its 64-bit hash (`route.text_hashes`)."""
    if array.null_count:
        raise InputError(f"{path}: has samples without a session id; leave the session column out")
    ids = torch.from_numpy(text_hashes(array).view(np.int64)) if pa.types.is_string(array.type) else tensor_of(array)
    if order is not None:
        ids = ids[torch.from_numpy(order)]
    return ids[torch.from_numpy(np.repeat(np.arange(len(counts)), counts))]


def _laid(entries: Tensor, offsets: np.ndarray, order: np.ndarray | None) -> Tensor:
    """Sessions' runs of entries in another order."""
    if order is None:
        return entries
    return jagged_index_select(entries, torch.from_numpy(offsets.astype(np.int64)), torch.from_numpy(order))[0]


def _globally(local: np.ndarray, of_session: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Positions inside each session's `of_session` entries (N,) -> positions in all of them."""
    before = np.cumsum(of_session) - of_session
    return local + np.repeat(before, counts).astype(local.dtype)


def _lists(
    columns: dict[str, pa.Array], features: Sequence[str], order: np.ndarray | None
) -> tuple[tuple[Tensor, ...], tuple[np.ndarray, ...]]:
    """Each feature's values, and where its lists start."""
    values, starts = [], []
    for feature in features:
        sessions, lists = columns[feature], columns[feature].values
        offsets = lists.offsets.to_numpy()
        of_session = sessions.offsets.to_numpy()
        values.append(_laid(tensor_of(lists.values), offsets[of_session], order))
        if order is not None:
            lengths = _laid(torch.from_numpy(np.diff(offsets)), of_session, order).numpy()
            offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
        starts.append(offsets)
    return tuple(values), tuple(starts)


def _exact(group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray, order: np.ndarray | None) -> StoredGroup:
    local, _ = _session_lists(columns[f"{group.name}.inverse"], order)
    unique = _ordered(_counts(columns[group.features[0]]), order)
    return StoredLists(
        group.features, *_lists(columns, group.features, order), _globally(local.numpy(), unique, counts)
    )


def _every_list(
    group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray, order: np.ndarray | None
) -> StoredGroup:
    return StoredLists(group.features, *_lists(columns, group.features, order), None)


def _windows(
    group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray, order: np.ndarray | None
) -> StoredGroup:
    starts, _ = _session_lists(columns[f"{group.name}.offset"], order)
    lengths, _ = _session_lists(columns[f"{group.name}.length"], order)
    pools = _ordered(_counts(columns[group.features[0]]), order)
    return StoredWindows(
        group.features,
        tuple(_session_lists(columns[feature], order)[0] for feature in group.features),
        _globally(starts.numpy(), pools, counts),
        lengths.numpy(),
    )


_GROUPS = {"exact": _exact, "partial": _windows, "none": _every_list}
