"""One optimizer step of a tensor-train table, inside its backward."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from shardgym.embeddings.tables.fused_optimizers import FusedOptimizer, row_decay
from shardgym.embeddings.tensor_train.cached_table import CachedTable


@torch.no_grad()
def fused_step(
    table: CachedTable, core_gradients: Sequence[Tensor], hot_slots: Tensor | None, hot_grad: Tensor | None
) -> None:
    """One fused optimizer step on the cores and hot rows that are not frozen, in place.

    Args:
        core_gradients: like the cores.
        hot_slots, hot_grad: (n,) slots and (n, D) their gradients; None without hot rows.
    """
    optimizer = table.optimizer
    assert optimizer is not None
    cache = table.cache if table.cache is not None and table.cache.rows.requires_grad else None
    hot = None if cache is None or hot_slots is None or hot_grad is None else (hot_slots, hot_grad)
    if table.replicas is not None:
        core_gradients = table.replicas.average(core_gradients)
        hot = None if cache is None or hot is None else table.replicas.average_rows(*hot, cache.capacity)
    learning = [(k, core, core_gradients[k]) for k, core in enumerate(table.cores) if core.requires_grad]
    scale = _clip_scale(optimizer, [grad for *_, grad in learning] + ([] if hot is None else [hot[1]]))
    decay = row_decay(optimizer)
    for k, core, grad in learning:
        if decay != 1:
            core.mul_(decay ** (1 / len(learning)))  # so that the rows, products of the cores, decay by `decay`
        optimizer.update(core, getattr(table, f"core_state_{k}"), grad * scale if scale < 1 else grad)
    if cache is not None and decay != 1:
        cache.rows.mul_(decay)
    if cache is not None and hot is not None:
        optimizer.update_rows(cache.rows, cache.state, hot[0], hot[1] * scale if scale < 1 else hot[1])


def _clip_scale(optimizer: FusedOptimizer, gradients: Sequence[Tensor]) -> float:
    """What brings the norm of all gradients together within the optimizer's bound, at most 1."""
    if optimizer.max_norm is None or not gradients:
        return 1.0
    norm = math.sqrt(sum(float(grad.double().square().sum()) for grad in gradients))
    return min(1.0, optimizer.max_norm / max(norm, 1e-30))
