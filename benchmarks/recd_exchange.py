"""RecD's communication (O5): bytes a training step sends between gloo processes, plain against deduplicated batches."""

import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch import nn

from benchmarks.recd_workload import DIM, ITEM_KEYS, ROWS, SESSION_KEYS, workload
from shardgym.embeddings.models.inverse_bags import Batch, InverseBags
from shardgym.embeddings.models.sharded_bags import ShardedBags

PROCESSES = 2
FACTORS = (5.0, 16.0)


def _bytes_sent(model: ShardedBags, batch: Batch) -> dict[str, int]:
    """What one step, forward and backward, sends to other processes."""
    before = dict(vars(model.traffic))
    model(batch).sum().backward()
    return {kind: sent - before[kind] for kind, sent in vars(model.traffic).items()}


def _process(rank: int, folder: str) -> None:
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=PROCESSES)
    sent = {}
    for keys in (SESSION_KEYS, SESSION_KEYS + ITEM_KEYS):
        device_of = {key: k % PROCESSES for k, key in enumerate(keys)}
        mine = [key for key in keys if device_of[key] == rank]
        local = InverseBags([([key], nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)) for key in mine])
        model = ShardedBags(local, device_of, dict.fromkeys(keys, DIM))
        for factor in FACTORS:
            batch = workload(factor, seed=rank).batch.select(keys)
            sent[len(keys), factor] = [_bytes_sent(model, batch.to_kjt()), _bytes_sent(model, batch)]
    torch.save(sent, f"{folder}/sent{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def all_to_all_bytes() -> dict[str, Any]:
    """Bytes per step of plain batches over those of deduplicated ones, of all kinds and processes.

    The session features repeat at the given factor; beside them, the same with item features that do not repeat.
    """
    with tempfile.TemporaryDirectory() as folder:
        mp.spawn(_process, (folder,), nprocs=PROCESSES)
        sent = [torch.load(Path(folder) / f"sent{rank}.pt") for rank in range(PROCESSES)]
    sessions, with_items = (
        {f"factor_{factor:.0f}": _ratio([one[keys, factor] for one in sent]) for factor in FACTORS}
        for keys in (len(SESSION_KEYS), len(SESSION_KEYS + ITEM_KEYS))
    )
    return {
        "all_to_all_bytes": sessions["factor_5"],
        "all_to_all_bytes_sessions": sessions,
        "all_to_all_bytes_with_items": with_items,
    }


def _ratio(sent: list[list[dict[str, int]]]) -> float:
    """Bytes of the plain form over those of the other, all processes and kinds together."""
    plain, deduplicated = (sum(sum(one[form].values()) for one in sent) for form in (0, 1))
    return plain / deduplicated


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {"exchange": all_to_all_bytes}
