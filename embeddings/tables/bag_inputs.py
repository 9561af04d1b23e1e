"""The (indices, offsets, weights) of a bag look-up: both offset conventions, checked before anything runs."""

import torch
from torch import Tensor

from shardgym.embeddings.kernels.bags import Bags
from shardgym.problem.errors import InputError


def read_bags(
    indices: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None, include_last_offset: bool
) -> Bags:
    """Bring what `nn.EmbeddingBag` accepts into one convention.

    Args:
        indices: (L,) int32 or int64 with offsets, or (bags, n) without.
        offsets: (bags,) starts, or (bags + 1,) starts and L when `include_last_offset`.
        per_sample_weights: like indices, floating.
        include_last_offset: which of the two conventions offsets follow.

    Raises:
        InputError: names what is malformed.
    """
    bags = arrange_bags(indices, offsets, per_sample_weights, include_last_offset)
    check_values(bags)
    return bags


def arrange_bags(
    indices: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None, include_last_offset: bool
) -> Bags:
    """As `read_bags`, from shapes and dtypes alone: values are left to `check_values`.

    Raises:
        InputError: for shapes and dtypes that do not fit.
    """
    _require_integers("indices", indices)
    if per_sample_weights is not None and (
        per_sample_weights.shape != indices.shape or not per_sample_weights.is_floating_point()
    ):
        raise InputError(
            f"per_sample_weights: shape {tuple(per_sample_weights.shape)} and dtype {per_sample_weights.dtype} do not "
            f"fit indices {tuple(indices.shape)}; give one floating number per index"
        )
    if indices.dim() == 2:
        if offsets is not None:
            raise InputError("offsets: given with 2-D indices, whose rows are the bags; leave offsets out")
        bags, length = indices.shape
        starts = torch.arange(bags + 1, device=indices.device) * length
    else:
        starts = _read_offsets(indices, offsets, include_last_offset)
    weights = None if per_sample_weights is None else per_sample_weights.reshape(-1)
    return Bags(indices.reshape(-1).long().contiguous(), starts, weights)


def check_values(bags: Bags) -> None:
    """Offsets must rise from 0 to the number of indices, weights be finite.

    Raises:
        InputError: names what is not.
    """
    starts, count = bags.offsets, bags.indices.numel()
    first, last = int(starts[0]), int(starts[-1])
    if (starts.numel() > 1 and first != 0) or bool((starts[1:] < starts[:-1]).any()):
        raise InputError("offsets: must start at 0, never fall, and stay within the indices")
    if last != count:
        raise InputError(f"offsets: the last one is {last} but there are {count} indices; they must be equal")
    if bags.weights is not None and not bool(torch.isfinite(bags.weights.detach()).all()):
        raise InputError("per_sample_weights: holds NaN or infinity; clean them before the look-up")


def _read_offsets(indices: Tensor, offsets: Tensor | None, include_last_offset: bool) -> Tensor:
    if indices.dim() != 1:
        raise InputError(f"indices: {indices.dim()}-D; give 1-D indices with offsets, or 2-D indices (bags, n)")
    if offsets is None:
        raise InputError("offsets: missing; 1-D indices need the start of each bag")
    _require_integers("offsets", offsets)
    if offsets.dim() != 1 or (include_last_offset and offsets.numel() == 0):
        raise InputError("offsets: give a 1-D tensor, with at least the last offset when include_last_offset is set")
    starts, count = offsets.long(), indices.numel()
    if include_last_offset:
        return starts.contiguous()
    if starts.numel() == 0 and count:
        raise InputError(f"offsets: empty, but there are {count} indices; give the start of each bag")
    return torch.cat([starts, starts.new_full((1,), count)])


def _require_integers(name: str, tensor: Tensor) -> None:
    if tensor.dtype not in (torch.int32, torch.int64):
        raise InputError(f"{name}: dtype is {tensor.dtype}; give int32 or int64")


def check_ids(indices: Tensor, rows: int, table: str = "table") -> None:
    """Every id must lie in [0, rows).

    Raises:
        InputError: names the table and the first id outside.
    """
    if indices.numel() == 0:
        return
    low, high = torch.aminmax(indices)
    if low < 0 or high >= rows:
        bad = int(low) if low < 0 else int(high)
        raise InputError(f"{table}: id {bad} is outside [0, {rows}); hash or clip the ids, or give the table more rows")


def drop_padding(bags: Bags, padding_idx: int) -> Bags:
    """Leave out every look-up of `padding_idx`, from sums and from the counts of means."""
    keep = bags.indices != padding_idx
    if bool(keep.all()):
        return bags
    kept_before = torch.cat([keep.new_zeros(1, dtype=torch.int64), keep.cumsum(0)])
    weights = None if bags.weights is None else bags.weights[keep]
    return Bags(bags.indices[keep], kept_before[bags.offsets], weights)


def mean_weights(bags: Bags, dtype: torch.dtype) -> Bags:
    """Bags whose weighted sum is the mean: each weight is one over its bag's length."""
    lengths = bags.lengths()
    shares = torch.repeat_interleave(lengths.clamp(min=1).to(dtype).reciprocal(), lengths)
    return Bags(bags.indices, bags.offsets, shares)
