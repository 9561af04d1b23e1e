"""An epoch's samples as one sequence of positions; row groups are decoded when reached and dropped when passed."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq

from shardgym.dataio.sessions.clustered_files import Part, open_part
from shardgym.dataio.sessions.decode import decode_row_group
from shardgym.dataio.sessions.order import ReadOrder
from shardgym.dataio.sessions.schema import SessionSchema
from shardgym.dataio.sessions.stored_groups import SampleRun, StoredRun, concat_runs


class SampleStream:
    """Samples by their position in an epoch.

    Args:
        folder: the clustered log.
        parts: its files.
        schema: its groups are read.
        samples: sample columns that are read.
        order: gives the order of row groups, of sessions inside them, and of samples inside a window.
        epoch: which epoch's.
    """

    def __init__(
        self,
        folder: Path,
        parts: Sequence[Part],
        schema: SessionSchema,
        samples: Sequence[str],
        order: ReadOrder,
        epoch: int,
    ) -> None:
        self.folder, self.parts, self.schema, self.columns = folder, parts, schema, samples
        self.order, self.epoch = order, epoch
        self.row_groups = order.row_group_order(epoch)
        self.ends = np.cumsum([0, *(group.samples for group in self.row_groups)])
        self._runs: dict[int, StoredRun] = {}
        self._files: dict[str, pq.ParquetFile] = {}
        self._windows: dict[int, np.ndarray] = {}

    def take(self, pieces: Sequence[range]) -> SampleRun:
        """The samples of one batch; samples before them will not be asked for again.

        Args:
            pieces: rising, disjoint ranges of positions.
        """
        if self.order.window > 1:
            return self._take_shuffled(pieces)
        self._drop_before(pieces[0].start)
        return concat_runs([run for piece in pieces for run in self._picked(piece)])

    def _picked(self, piece: range) -> list[SampleRun]:
        first, last = np.searchsorted(self.ends, [piece.start, piece.stop - 1], side="right") - 1
        picked = []
        for at in range(first, last + 1):
            start, stop = int(self.ends[at]), int(self.ends[at + 1])
            rows = range(max(piece.start, start) - start, min(piece.stop, stop) - start)
            picked.append(self._run(at).take(rows))
        return picked

    def _take_shuffled(self, pieces: Sequence[range]) -> SampleRun:
        span = self.order.batch_size * self.order.window
        first = pieces[0].start // span
        self._drop_before(first * span)
        self._windows = {number: order for number, order in self._windows.items() if number >= first}
        rows = np.concatenate([self._in_windows(piece, span) for piece in pieces])
        run_of_row = np.searchsorted(self.ends, rows, side="right") - 1
        taken = [self._run(at).take(rows[run_of_row == at] - self.ends[at]) for at in np.unique(run_of_row).tolist()]
        return concat_runs(taken)

    def _in_windows(self, piece: range, span: int) -> np.ndarray:
        """Positions of the samples that a range of positions has once windows are shuffled."""
        parts = []
        for number in range(piece.start // span, (piece.stop - 1) // span + 1):
            if number not in self._windows:
                self._windows[number] = self.order.window_order(self.epoch, number)
            begin = number * span
            parts.append(self._windows[number][max(0, piece.start - begin) : piece.stop - begin])
        return np.concatenate(parts)

    def _drop_before(self, position: int) -> None:
        first = int(np.searchsorted(self.ends, position, side="right")) - 1
        for at in [at for at in self._runs if at < first]:
            del self._runs[at]

    def _run(self, at: int) -> StoredRun:
        if at not in self._runs:
            group = self.row_groups[at]
            part = self.parts[group.part]
            if part.name not in self._files:
                self._files = {part.name: open_part(self.folder, part)}
            self._runs[at] = decode_row_group(
                self._files[part.name],
                group.number,
                self.schema,
                self.columns,
                self.folder / part.name,
                partial(self.order.session_order, self.epoch, group),
            )
        return self._runs[at]
