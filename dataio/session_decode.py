"""One row group of a clustered log as tensors: unique lists and inverse come as stored, nothing is hashed."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import Tensor

from shardgym.dataio.session_order import ReadOrder, RowGroup
from shardgym.dataio.session_schema import GroupSpec, SessionSchema
from shardgym.embeddings.errors import InputError
from shardgym.embeddings.grouped import Group, GroupedJaggedTensor
from shardgym.embeddings.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged import KeyedJaggedTensor
from shardgym.embeddings.partial_inverse import PartialInverseKeyedJaggedTensor, WindowGroup


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

    def index_select(self, rows: Tensor) -> "SampleRun":
        """The samples at `rows` (M,); lists that none of them has are dropped."""
        columns = {name: column.index_select(0, rows) for name, column in self.samples.items()}
        return SampleRun(self.features.index_select(rows), columns)


def columns_of(schema: SessionSchema, samples: Sequence[str]) -> list[str]:
    """Columns of a nested file that some sample columns and a schema's features need, the time first."""
    names = list(dict.fromkeys((schema.time, *samples)))
    for group in schema.groups:
        names += [f"{group.name}.{part}" for part in _PARTS[group.form]] + list(group.features)
    return names


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
    counts = _counts(columns[schema.time])
    groups = [_GROUPS[group.form](group, columns, counts) for group in schema.groups]
    held = {name: tensor_of(columns[name].values) for name in samples}
    return SampleRun(_batch(groups, schema.features, int(counts.sum())), held, torch.from_numpy(counts))


def tensor_of(array: pa.Array) -> Tensor:
    """A tensor on an Arrow array's own memory; not to be written to."""
    if pa.types.is_timestamp(array.type):
        array = array.view(pa.int64())
    return torch.from_dlpack(array)


def _batch(groups: Sequence[Any], keys: Sequence[str], stride: int) -> GroupedJaggedTensor:
    partial = any(isinstance(group, WindowGroup) for group in groups)
    kind = PartialInverseKeyedJaggedTensor if partial else InverseKeyedJaggedTensor
    return kind(groups, keys, stride=stride, validate=False)


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


def _kept(group: GroupSpec, columns: dict[str, pa.Array], counts: np.ndarray) -> Group:
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


_GROUPS = {"exact": _exact, "partial": _windows, "none": _kept}


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
        self._runs: dict[int, tuple[SampleRun, np.ndarray]] = {}
        self._files: dict[Path, pq.ParquetFile] = {}

    @property
    def samples(self) -> int:
        """Samples of the shard."""
        return int(self.ends[-1])

    def take(self, rows: np.ndarray, oldest: int) -> SampleRun:
        """Samples at positions `rows` (B,); those before `oldest` will not be asked for again."""
        run_of_row = np.searchsorted(self.ends, rows, side="right") - 1
        self._drop_before(int(np.searchsorted(self.ends, oldest, side="right")) - 1)
        taken = []
        for at in np.unique(run_of_row).tolist():
            run, order = self._run(at)
            inside = order[rows[run_of_row == at] - self.ends[at]]
            taken.append(run.index_select(torch.from_numpy(inside)))
        return concat_runs(taken)

    def _drop_before(self, first: int) -> None:
        for at in [at for at in self._runs if at < first]:
            del self._runs[at]

    def _run(self, at: int) -> tuple[SampleRun, np.ndarray]:
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
