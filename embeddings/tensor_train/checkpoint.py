"""What a state_dict must hold before a tensor-train table takes it over."""

from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.tensor_train.row_order import check_order
from shardgym.problem.errors import InputError


def adapt_to_table(state_dict: dict[str, Any], prefix: str, table: nn.Module) -> None:
    """Check what the kernels will trust, and fit the optimizer's state to the table, in place.

    A checkpoint may lack the optimizer's state (the table keeps its own), or hold one that a table without an optimizer
    leaves out.

    Args:
        state_dict: to be loaded into the table.
        prefix: of the table's names in it.
        table: a `TTEmbeddingBag`.

    Raises:
        InputError: for a row order that is no permutation, or cached ids that are repeated or outside the table.
    """
    order = state_dict.get(f"{prefix}row_order")
    if isinstance(order, Tensor) and getattr(table, "row_order", None) is not None:
        try:
            check_order(order, table.num_embeddings)  # type: ignore[arg-type]
        except InputError as error:
            raise InputError(f"state_dict: {prefix}{error}") from error
    ids = state_dict.get(f"{prefix}cache.ids")
    if isinstance(ids, Tensor):
        _check_cached_ids(ids, table.num_embeddings, f"{prefix}cache.ids")  # type: ignore[arg-type]
    for owner, names in ((table, [f"core_state_{k}" for k in range(4)]), (getattr(table, "cache", None), ["state"])):
        if owner is None:
            continue
        for name in names:
            key = prefix + name if owner is table else f"{prefix}cache.{name}"
            own = getattr(owner, name, None)
            if own is None:
                state_dict.pop(key, None)
            else:
                state_dict.setdefault(key, own)


def _check_cached_ids(ids: Tensor, rows: int, name: str) -> None:
    held = ids[ids >= 0]
    whole = not ids.is_floating_point() and bool((ids >= -1).all()) and bool((held < rows).all())
    if not whole or torch.unique(held).numel() != held.numel():
        raise InputError(f"state_dict: {name} holds ids twice or outside [0, {rows}); it is damaged")
