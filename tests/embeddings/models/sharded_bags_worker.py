"""What one process of the exchange tests does: sharded look-ups of its batch, saved for the parent to judge."""

import torch
import torch.distributed as dist
from torch import nn

from shardgym.embeddings.models.inverse_bags import InverseBags
from shardgym.embeddings.models.sharded_bags import ShardedBags, Traffic
from shardgym.problem.errors import InputError

KEYS = ["a", "b", "c"]
ROWS, DIMS = 20, {"a": 4, "b": 2, "c": 4}


def weight_of(key):
    generator = torch.Generator().manual_seed(KEYS.index(key))
    return torch.randn(ROWS, DIMS[key], generator=generator)


def bags_of(keys):
    """Tables of the given keys, the same wherever they are held."""
    bags = [([key], nn.EmbeddingBag.from_pretrained(weight_of(key), freeze=False, mode="sum")) for key in keys]
    return InverseBags(bags) if bags else None


def output_gradient(B):
    return torch.randn(B, sum(DIMS.values()), generator=torch.Generator().manual_seed(B))


def run(rank, ranks, folder, cases, device_of):
    """Look up every case's batch of this rank; save outputs, gradients and traffic."""
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{folder}/store", rank=rank, world_size=ranks)
    results = []
    for batches in cases:
        model = ShardedBags(bags_of([key for key in KEYS if device_of[key] == rank]), device_of, DIMS)
        pooled = model(batches[rank])
        pooled.backward(output_gradient(batches[rank].stride()))
        grads = {} if model.local is None else dict(zip(model.local.keys, [p.grad for p in model.local.parameters()]))
        results.append({"pooled": pooled.detach(), "grads": grads, "traffic": vars(model.traffic)})
    results.append(refused(rank, device_of))
    torch.save(results, f"{folder}/rank{rank}.pt")
    dist.barrier()
    dist.destroy_process_group()


def refused(rank, device_of):
    """Messages of layouts that do not fit."""
    messages = []
    for local, owned in ((None, dict.fromkeys(KEYS, rank)), (None, {**device_of, "a": 9})):
        try:
            ShardedBags(local, owned, DIMS)
        except InputError as error:
            messages.append(str(error))
    return messages + [Traffic(1, 2, 3, 4).total()]
