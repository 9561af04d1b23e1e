"""The public measurements (citz73/csharding) as a cost network's training data."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import torch
from numpy.typing import NDArray

from shardgym.costmodel.networks.training import Packed, packed
from shardgym.dataio.tables.table_files import read_tables
from shardgym.problem.tables import TableSpec

BATCH_SIZE = 65536


def fused_groups(costs: Path, tables: Path) -> tuple[list[list[TableSpec]], NDArray[np.float64]]:
    """Groups of the 856 public tables, and their fused forward and backward together, (N,) ms."""
    known = read_tables(tables, default_dim=4)
    rows = pq.read_table(costs).to_pylist()
    groups = [
        [replace(known[t], name=f"{t}/{k}", dim=dim) for k, (t, dim) in enumerate(zip(row["tables"], row["dims"]))]
        for row in rows
    ]
    return groups, np.array([row["cost_ms"] for row in rows])


def fused_data(costs: Path, tables: Path) -> Packed:
    """The same, packed for training."""
    groups, ms = fused_groups(costs, tables)
    return packed([(group, BATCH_SIZE) for group in groups], torch.from_numpy(ms)[:, None])


def ten_parts(count: int, seed: int = 0) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Shuffled indices: eight tenths for training, one for validation, one for testing."""
    order = np.random.default_rng(seed).permutation(count)
    return tuple(np.split(order, [int(0.8 * count), int(0.9 * count)]))
