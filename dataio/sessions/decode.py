"""One row group of a clustered log as tensors: unique lists and inverse come as stored, nothing is hashed."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from shardgym.dataio.sessions.clustered_files import Manifest
from shardgym.dataio.sessions.order import ReadOrder, RowGroup
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.embeddings.jagged.grouped import Group, GroupedJaggedTensor
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor, WindowGroup
from shardgym.problem.errors import InputError

Rows = range | np.ndarray
"""Positions of samples (M,)."""


@dataclass(frozen=True, eq=False)
class SampleRun:
    """Some samples: their feature groups and columns.

    Args:
        features: groups of n rows.
        samples: columns (n,), by name.
        counts: (N,) samples of each session row, in order; None for a selection.
    """

    features: GroupedJaggedTensor
    samples: dict[str, Tensor]
    counts: Tensor | None = None

    def __len__(self) -> int:
        return self.features.stride()

    def index_select(self, rows: Rows) -> "SampleRun":
        """The samples at `rows` (M,), copied; lists that none of them has are dropped."""
        pick = _picker(rows)
        groups = [_narrowed(group, pick) for group in self.features.groups]
        columns = {name: pick(column) for name, column in self.samples.items()}
        return SampleRun(_batch(groups, self.features.keys(), len(rows)), columns)


def _picker(rows: Rows) -> Callable[[Tensor], Tensor]:
    """Copies entries of a tensor."""
    if isinstance(rows, range):
        return lambda tensor: tensor[rows.start : rows.stop].clone()
    index = torch.from_numpy(rows)
    return lambda tensor: tensor.index_select(0, index)


def _narrowed(group: Any, pick: Callable[[Tensor], Tensor]) -> Group:
    """A group's picked rows. A batch refers to a small stretch of a row group, so only that is looked through."""
    if isinstance(group, WindowGroup):
        starts, lengths = pick(group.starts), pick(group.lengths)
        filled = lengths > 0
        low = int(starts[filled].min()) if bool(filled.any()) else 0
        high = int((starts + lengths).max()) if len(starts) else 0
        starts = torch.where(filled, starts - low, 0)
        windows = WindowGroup(group.keys, group.values[:, low : max(low, high)], starts, lengths)
        if _without_gaps(starts, lengths):
            return replace(windows, values=windows.values.clone())
        return windows.index_select(torch.arange(len(starts)))
    if group.inverse is None:
        rows = pick(torch.arange(group.stride()))
        return FeatureGroup(group.unique.index_select(rows), None)
    inverse = pick(group.inverse)
    if not len(inverse):
        return FeatureGroup(_row_range(group.unique, 0, 0), inverse)
    low, high = (int(each) for each in inverse.aminmax())
    inverse -= low
    near = FeatureGroup(_row_range(group.unique, low, high + 1), inverse)
    all_used = bool(torch.bincount(inverse).all())
    return near if all_used else near.index_select(torch.arange(len(inverse)))


def _without_gaps(starts: Tensor, lengths: Tensor) -> bool:
    """Whether windows that follow each other leave no position out; False too where they don't stand in order."""
    if not len(starts):
        return True
    reached = (starts + lengths).cummax(0).values
    in_order = (starts[1:] >= starts[:-1]) & (starts[1:] <= reached[:-1])
    return bool(in_order.all()) and int(starts[0]) == 0


def _row_range(kjt: KeyedJaggedTensor, low: int, high: int) -> KeyedJaggedTensor:
    """Rows low to high - 1 of every key."""
    F, U = len(kjt.keys()), kjt.stride()
    offsets = kjt.offsets().numpy()
    values = [kjt.values()[offsets[f * U + low] : offsets[f * U + high]] for f in range(F)]
    lengths = kjt.lengths().view(F, U)[:, low:high].flatten()  # (F * U,) -> (F * rows,)
    return KeyedJaggedTensor(kjt.keys(), torch.cat(values), lengths=lengths, stride=high - low, validate=False)


def columns_of(schema: SessionSchema, samples: Sequence[str]) -> list[str]:
    """Columns of a nested file to read; the first has one entry per sample, so that it counts the sessions' samples.

    The time is read only where it is asked for or nothing else counts.
    """
    names = [f"{group.name}.{part}" for group in schema.groups for part in _PARTS[group.form]] + list(samples)
    if not names:
        names = [schema.time]
    return names + list(schema.features)


_PARTS = {"exact": ("inverse",), "partial": ("offset", "length"), "none": ()}


def decode_row_group(
    file: pq.ParquetFile, number: int, schema: SessionSchema, samples: Sequence[str], path: Path
) -> SampleRun:
    """Read a row group of a nested file.

    Args:
        file: the opened file.
        number: which row group.
        schema: its groups are read; they may hold a part of the features.
        samples: the sample columns that are read, the time among them or not.
        path: named in errors.

    Raises:
        InputError: a page of the file cannot be decoded.
    """
    try:
        table = file.read_row_group(number, columns=columns_of(schema, samples), use_threads=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: row group {number} is corrupt ({error}); cluster the log again") from None
    columns = {name: table.column(name).combine_chunks() for name in table.column_names}
    counts = _counts(columns[columns_of(schema, samples)[0]])
    groups = [_GROUPS[group.form](group, columns, counts) for group in schema.groups]
    sample_columns = {name: tensor_of(columns[name].values) for name in samples}
    return SampleRun(_batch(groups, schema.features, int(counts.sum())), sample_columns, torch.from_numpy(counts))


def tensor_of(array: pa.Array) -> Tensor:
    """A tensor on an Arrow array's own memory; not to be written to."""
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    return torch.from_dlpack(array)


def _batch(groups: Sequence[Any], keys: Sequence[str], stride: int) -> GroupedJaggedTensor:
    partial = any(isinstance(group, WindowGroup) for group in groups)
    kind = PartialInverseKeyedJaggedTensor if partial else InverseKeyedJaggedTensor
    return kind(groups, keys, stride=stride, validate=False)


def stored_factors(folder: Path, manifest: Manifest, row_groups: int = 8) -> dict[str, float]:
    """Values over stored values of each group, in the first row groups of a clustered log."""
    sizes: dict[str, list[tuple[int, int]]] = {group.name: [] for group in manifest.schema.groups}
    places = [(part, number) for part in manifest.parts for number in range(len(part.samples))]
    for part, number in places[:row_groups]:
        path = folder / part.name
        run = decode_row_group(_opened(path), number, manifest.schema, (), path)
        for group, each in zip(manifest.schema.groups, run.features.groups):
            stored = each.values.numel() if isinstance(each, WindowGroup) else each.unique.values().numel()
            values = (
                int(each.lengths.sum()) * len(each.keys) if isinstance(each, WindowGroup) else each.expanded_values()
            )
            sizes[group.name].append((values, stored))
    sums = {name: np.sum(counts, axis=0) for name, counts in sizes.items() if counts}
    return {name: float(values / stored) if stored else 1.0 for name, (values, stored) in sums.items()}


def concat_runs(runs: Sequence[SampleRun]) -> SampleRun:
    """The samples of all runs, which have the same groups and columns, one run after the other."""
    if len(runs) == 1:
        return runs[0]
    first = runs[0]
    groups = [_concat_groups(parts) for parts in zip(*(run.features.groups for run in runs))]
    samples = {name: torch.cat([run.samples[name] for run in runs]) for name in first.samples}
    return SampleRun(_batch(groups, first.features.keys(), sum(map(len, runs))), samples)


def _concat_groups(parts: Sequence[Group]) -> Group:
    if isinstance(parts[0], WindowGroup):
        windows = [part for part in parts if isinstance(part, WindowGroup)]
        return WindowGroup(
            windows[0].keys,
            torch.cat([part.values for part in windows], dim=1),
            _shifted([part.starts for part in windows], [part.shared() for part in windows]),
            torch.cat([part.lengths for part in windows]),
        )
    groups = [part for part in parts if isinstance(part, FeatureGroup)]
    inverses = [group.inverse for group in groups if group.inverse is not None]
    inverse = _shifted(inverses, [group.unique_rows() for group in groups]) if inverses else None
    return FeatureGroup(_concat_rows([group.unique for group in groups]), inverse)


def _shifted(positions: Sequence[Tensor], sizes: Sequence[int]) -> Tensor:
    before = np.cumsum([0, *sizes])
    return torch.cat([each + int(start) for each, start in zip(positions, before)])


def _concat_rows(parts: Sequence[KeyedJaggedTensor]) -> KeyedJaggedTensor:
    keys = parts[0].keys()
    lists = [part[key] for key in keys for part in parts]
    return KeyedJaggedTensor(
        keys,
        torch.cat([jagged.values() for jagged in lists]),
        lengths=torch.cat([jagged.lengths() for jagged in lists]),
        stride=sum(part.stride() for part in parts),
        validate=False,
    )


def _counts(array: pa.Array) -> np.ndarray:
    return np.diff(array.offsets.to_numpy())


def _globally(local: np.ndarray, of_session: np.ndarray, counts: np.ndarray) -> Tensor:
    """Positions inside each session's `of_session` entries (N,) -> positions in all of them."""
    before = np.cumsum(of_session) - of_session
    return torch.from_numpy(local + np.repeat(before, counts).astype(local.dtype))


def _lists(columns: dict[str, pa.Array], features: Sequence[str]) -> KeyedJaggedTensor:
    """The features' lists of all sessions, one after the other."""
    inner = [columns[feature].values for feature in features]
    return KeyedJaggedTensor(
        features,
        torch.cat([tensor_of(lists.values) for lists in inner]),
        lengths=torch.from_numpy(np.concatenate([_counts(lists) for lists in inner])),
        stride=len(inner[0]),
        validate=False,
    )


def _exact(group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray) -> Group:
    inverse = columns[f"{group.name}.inverse"].values.to_numpy()
    unique = _counts(columns[group.features[0]])
    return FeatureGroup(_lists(columns, group.features), _globally(inverse, unique, counts))


def _every_list(group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray) -> Group:
    return FeatureGroup(_lists(columns, group.features), None)


def _windows(group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray) -> Group:
    starts = columns[f"{group.name}.offset"].values.to_numpy()
    pools = _counts(columns[group.features[0]])
    return WindowGroup(
        group.features,
        torch.stack([tensor_of(columns[feature].values) for feature in group.features]),
        _globally(starts, pools, counts),
        tensor_of(columns[f"{group.name}.length"].values),
    )


_GROUPS = {"exact": _exact, "partial": _windows, "none": _every_list}


class SampleStream:
    """A shard's samples as one sequence; row groups are decoded when reached and dropped when passed.

    Args:
        parts: the clustered log's files.
        schema: its groups are read.
        samples: sample columns that are read.
        order: gives the samples' order inside a row group.
        epoch: which epoch's.
        shard: row groups, in order.
    """

    def __init__(
        self,
        parts: Sequence[Path],
        schema: SessionSchema,
        samples: Sequence[str],
        order: ReadOrder,
        epoch: int,
        shard: Sequence[RowGroup],
    ) -> None:
        self.parts, self.schema, self.columns, self.order, self.epoch = parts, schema, samples, order, epoch
        self.shard = shard
        self.ends = np.cumsum([0, *(group.samples for group in shard)])
        self._runs: dict[int, tuple[SampleRun, np.ndarray | None]] = {}
        self._files: dict[Path, pq.ParquetFile] = {}

    @property
    def samples(self) -> int:
        """Samples of the shard."""
        return int(self.ends[-1])

    def take(self, rows: Rows, oldest: int) -> SampleRun:
        """Samples at positions `rows` (B,); those before `oldest` will not be asked for again."""
        self._drop_before(int(np.searchsorted(self.ends, oldest, side="right")) - 1)
        if isinstance(rows, range):
            first, last = np.searchsorted(self.ends, [rows.start, rows.stop - 1], side="right") - 1
            taken = [self._pick(at, self._within(at, rows)) for at in range(first, last + 1)]
        else:
            run_of_row = np.searchsorted(self.ends, rows, side="right") - 1
            taken = [self._pick(at, rows[run_of_row == at] - self.ends[at]) for at in np.unique(run_of_row).tolist()]
        return concat_runs(taken)

    def _within(self, at: int, rows: range) -> range:
        start, stop = int(self.ends[at]), int(self.ends[at + 1])
        return range(max(rows.start, start) - start, min(rows.stop, stop) - start)

    def _pick(self, at: int, rows: Rows) -> SampleRun:
        run, order = self._run(at)
        if order is not None:
            rows = order[rows.start : rows.stop] if isinstance(rows, range) else order[rows]
        return run.index_select(rows)

    def _drop_before(self, first: int) -> None:
        for at in [at for at in self._runs if at < first]:
            del self._runs[at]

    def _run(self, at: int) -> tuple[SampleRun, np.ndarray | None]:
        if at not in self._runs:
            group = self.shard[at]
            path = self.parts[group.part]
            if path not in self._files:
                self._files = {path: _opened(path)}
            run = decode_row_group(self._files[path], group.number, self.schema, self.columns, path)
            assert run.counts is not None
            self._runs[at] = run, self.order.session_order(self.epoch, group, run.counts.numpy())
        return self._runs[at]


def _opened(path: Path) -> pq.ParquetFile:
    try:
        return pq.ParquetFile(path, pre_buffer=False)
    except (pa.ArrowException, OSError) as error:
        raise InputError(f"{path}: not a whole Parquet file ({error}); cluster the log again") from None
