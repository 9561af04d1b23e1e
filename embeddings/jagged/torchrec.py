"""Batches to TorchRec's KeyedJaggedTensor and back; deduplicated ones in its variable-batch form with an inverse."""

from itertools import accumulate
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor
from shardgym.problem.errors import InputError

if TYPE_CHECKING:
    from torchrec.sparse.jagged_tensor import KeyedJaggedTensor as TorchRecKJT


def to_torchrec(batch: KeyedJaggedTensor | InverseKeyedJaggedTensor) -> "TorchRecKJT":
    """The batch as TorchRec's tensor, sharing memory where it can.

    A deduplicated batch becomes a variable-batch KJT: each key has as many rows as its group has unique rows, and
    `inverse_indices` is (keys, (F, B) int64), one inverse per feature, so the group's inverse is repeated.

    Raises:
        InputError: when torchrec is not installed, or only some keys have weights.
    """
    kind = _torchrec_kjt()
    keys = batch.keys()
    if isinstance(batch, KeyedJaggedTensor):
        lengths = batch.lengths()
        return kind(keys, batch.values(), batch.weights_or_none(), lengths, stride=batch.stride())
    if not keys:
        nothing = torch.empty(0, dtype=torch.int64, device=batch.device())
        return kind([], nothing, lengths=nothing, stride=batch.stride())
    B = batch.stride()
    groups = [batch.group_of(key) for key in keys]
    features = [group.unique[key] for group, key in zip(groups, keys)]
    inverse = [
        torch.arange(B, device=batch.device()) if group.inverse is None else group.inverse.long() for group in groups
    ]
    weights = [feature.weights() for feature in features if feature.weights_or_none() is not None]
    if weights and len(weights) < len(features):
        bare = next(key for key, feature in zip(keys, features) if feature.weights_or_none() is None)
        raise InputError(f"to_torchrec: key {bare!r} has no weights and others have; give all or none weights")
    return kind(
        keys,
        torch.cat([feature.values() for feature in features]),
        torch.cat(weights) if weights else None,
        torch.cat([feature.lengths() for feature in features]),
        stride_per_key_per_rank=[[feature.lengths().numel()] for feature in features],
        inverse_indices=(keys, torch.stack(inverse)),
    )


def from_torchrec(kjt: "TorchRecKJT") -> KeyedJaggedTensor | InverseKeyedJaggedTensor:
    """TorchRec's tensor as ours: a plain batch, or, where it has inverse indices, a deduplicated one.

    Features whose inverse is the same become one group.

    Raises:
        InputError: names what does not fit, such as rows that vary by key without inverse indices, or an inverse
            that TorchRec let pass but that is out of range.
    """
    keys, lengths, weights = list(kjt.keys()), kjt.lengths(), kjt.weights_or_none()
    indices = kjt.inverse_indices_or_none()
    if indices is None:
        if kjt.variable_stride_per_key() and len(set(kjt.stride_per_key())) > 1:
            raise InputError(
                f"TorchRec batch: keys {keys} have {kjt.stride_per_key()} rows but no inverse_indices; "
                "give the inverse, or the same rows for each key"
            )
        stride = kjt.stride_per_key()[0] if keys else kjt.stride()
        return KeyedJaggedTensor(keys, kjt.values(), weights, lengths, stride=stride)
    inverse_keys, inverses = indices
    if sorted(inverse_keys) != sorted(keys):
        raise InputError(f"TorchRec batch: inverse_indices are for {list(inverse_keys)} but the keys are {keys}")
    inverse = {key: inverses[at] for at, key in enumerate(inverse_keys)}
    bounds = [0, *accumulate(kjt.stride_per_key())]
    values, ends = kjt.values(), [0, *accumulate(kjt.length_per_key())]
    features = {
        key: KeyedJaggedTensor(
            [key],
            values[ends[at] : ends[at + 1]],
            None if weights is None else weights[ends[at] : ends[at + 1]],
            lengths[bounds[at] : bounds[at + 1]],
        )
        for at, key in enumerate(keys)
    }
    groups = [
        FeatureGroup(KeyedJaggedTensor.concat([features[key] for key in together]), inverse[together[0]])
        for together in _with_same_inverse(features, inverse)
    ]
    return InverseKeyedJaggedTensor(groups, keys)


def _with_same_inverse(features: dict[str, KeyedJaggedTensor], inverse: dict[str, Tensor]) -> list[list[str]]:
    """Keys by equal inverse and unique rows, in the order of the keys."""
    groups: list[list[str]] = []
    for key, feature in features.items():
        for group in groups:
            first = group[0]
            if features[first].stride() == feature.stride() and torch.equal(inverse[first], inverse[key]):
                group.append(key)
                break
        else:
            groups.append([key])
    return groups


def _torchrec_kjt() -> type:
    try:
        from torchrec.sparse.jagged_tensor import KeyedJaggedTensor as TorchRecKJT
    except ImportError as error:
        raise InputError("torchrec is not installed; install it with `pip install torchrec`") from error
    return TorchRecKJT
