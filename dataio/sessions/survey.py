"""A part of a log's sessions, whole and sorted, held in memory to be measured."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import torch
from torch import Tensor

from shardgym.dataio.sessions.log import SessionLog
from shardgym.dataio.sessions.nested import SessionRows, lists_with_owner, session_rows, window_pool
from shardgym.dataio.sessions.route import partition_of
from shardgym.embeddings.jagged.dedup import unique_rows
from shardgym.problem.errors import InputError


@dataclass(frozen=True, eq=False)
class SessionSurvey:
    """Some sessions' samples, by session and time.

    Args:
        table: the samples, list columns as large lists.
        rows: where the sessions lie.
    """

    table: pa.Table
    rows: SessionRows

    @property
    def samples_per_session(self) -> float:
        """Mean samples S per session."""
        return self.rows.samples / self.rows.starts.size

    @cached_property
    def follows(self) -> np.ndarray:
        """Whether each sample (n,) has another of its session before it."""
        first = np.zeros(self.rows.samples, dtype=bool)
        first[self.rows.starts] = True
        return ~first

    def lists(self, features: Sequence[str]) -> dict[str, pa.Array]:
        """The features' lists, one per sample."""
        return {feature: self.table.column(feature).combine_chunks() for feature in features}

    def lengths(self, feature: str) -> np.ndarray:
        """Length of each sample's list (n,)."""
        return np.diff(self.lists([feature])[feature].offsets.to_numpy())

    def stays(self, feature: str) -> np.ndarray:
        """Whether each sample's list (n,) is that of the sample before it in its session."""
        _, kind = unique_rows(lists_with_owner(self.lists([feature]), self.rows), rows_sorted=True)
        return np.r_[False, np.diff(kind.numpy()) == 0] & self.follows

    def first_rows(self, features: Sequence[str]) -> np.ndarray:
        """First sample (U,) of each unique list of a group, counted session by session, as clustering stores them."""
        first, _ = unique_rows(lists_with_owner(self.lists(features), self.rows))
        return first.numpy()

    def shared_values(self, features: Sequence[str]) -> np.ndarray:
        """Positions that a group's windows share in each session, as clustering stores them; lists must be aligned."""
        lengths = self.lengths(features[0])
        shared, _ = window_pool(self.lists(features), lengths, self.rows)
        return np.bincount(np.repeat(self.rows.of_sample, lengths)[shared], minlength=self.rows.starts.size)

    def ids(self, feature: str, samples: int) -> Tensor:
        """All ids of the first `samples` lists."""
        return torch.from_numpy(self.lists([feature])[feature].slice(0, samples).flatten().to_numpy().copy())


def sample_sessions(log: SessionLog, samples: int = 100_000, parts: int = 1) -> tuple[SessionSurvey, ...]:
    """Disjoint parts of a log's sessions, chosen by the hash of their id; the log is read once.

    Args:
        log: the opened log.
        samples: how many samples each part should have, about.
        parts: how many to take.

    Raises:
        InputError: the log has too few sessions, or samples that cannot be read.
    """
    shares = max(parts, log.rows // max(1, samples))
    chosen: list[list[pa.RecordBatch]] = [[] for _ in range(parts)]
    for piece in log.pieces(log.decoded_bytes + 1):
        for row, batch in log.batches(piece):
            share = partition_of(batch.column(log.schema.session), shares, np.arange(row, row + batch.num_rows))
            for number in range(parts):
                chosen[number].append(batch.filter(pa.array(share == number)))
    return tuple(_sorted_sample(log, batches) for batches in chosen)


def _sorted_sample(log: SessionLog, batches: list[pa.RecordBatch]) -> SessionSurvey:
    table = pa.Table.from_batches(batches, schema=log.arrow)
    if table.num_rows == 0:
        raise InputError("the log has too few sessions to measure; give a longer one")
    schema = log.schema
    keys = table.select([schema.session, schema.time]).append_column("__row", pa.array(np.arange(table.num_rows)))
    order = pc.sort_indices(keys, sort_keys=[(name, "ascending") for name in keys.column_names])
    table = table.take(order)
    sessions = table.column(schema.session).combine_chunks()
    return SessionSurvey(table, session_rows(sessions, table.num_rows))
