"""The volumes that are priced are the bytes that really travel between processes."""

from dataclasses import replace

import numpy as np
import torch
import torch.multiprocessing as mp

from shardgym.costmodel.measuring.measured_cost import sent_by
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.problem.placements import Placement
from shardgym.problem.tables import Dedup, TableSpec
from shardgym.problem.tasks import Task
from tests.embeddings.models.sharded_bags_worker import DIMS, KEYS, ROWS, run

RANKS, SESSIONS, SAMPLES = 2, 6, 8


def batch(seed):
    """Sessions of eight samples: a and b stay the same within one, c does not."""
    generator = torch.Generator().manual_seed(seed)

    def lists(keys, rows):
        ids = torch.randint(0, ROWS, (len(keys) * rows * 3,), generator=generator)
        return KeyedJaggedTensor(keys, ids, None, torch.full((len(keys) * rows,), 3), stride=rows)

    inverse = torch.arange(SESSIONS).repeat_interleave(SAMPLES)
    groups = [FeatureGroup(lists(["a", "b"], SESSIONS), inverse), FeatureGroup(lists(["c"], SESSIONS * SAMPLES), None)]
    return InverseKeyedJaggedTensor(groups, KEYS)


def test_priced_volumes_are_the_bytes_that_sharded_bags_send(tmp_path):
    device_of = {"a": 0, "b": 1, "c": 0}
    batches = [batch(seed) for seed in range(RANKS)]
    cases = [batches, [each.to_kjt() for each in batches]]
    mp.spawn(run, (RANKS, str(tmp_path), cases, device_of), nprocs=RANKS)
    traffic = [[one["traffic"] for one in torch.load(tmp_path / f"rank{rank}.pt")[:-1]] for rank in range(RANKS)]
    plain = tuple(TableSpec(key, ROWS, DIMS[key], 3.0) for key in KEYS)
    repeated = tuple(replace(t, dedup=Dedup(SAMPLES, 1.0)) if t.name in "ab" else t for t in plain)
    placement = Placement(tuple(device_of[key] for key in KEYS))
    for case, tables in enumerate((repeated, plain)):
        task = Task(tables, (2**30,) * RANKS, RANKS * SESSIONS * SAMPLES)
        # Of what a device sends, the part for its own samples stays.
        away = np.array(sent_by(task, placement)) * (RANKS - 1) / RANKS
        assert [traffic[rank][case]["rows"] for rank in range(RANKS)] == away.tolist()
        assert sum(traffic[rank][case]["gradients"] for rank in range(RANKS)) == away.sum()
