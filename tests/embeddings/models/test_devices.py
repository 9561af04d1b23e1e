"""Every tensor that deduplication, look-ups and models make lies on its input's device."""

import pytest
import torch
from torch import nn

from shardgym.dataio.sessions.batch import SessionBatch
from shardgym.dataio.sessions.transforms import Bucketize, Clamp, HashIds, Truncate, transformed
from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.embeddings.models.din import DIN
from shardgym.embeddings.models.dlrm import DLRM
from shardgym.embeddings.models.inverse_bags import InverseBags
from shardgym.embeddings.models.sequence_layers import SequenceTransformer
from shardgym.embeddings.models.sequences import embed
from tests.embeddings.jagged.devices import DevicesSaid, as_on_an_accelerator
from tests.embeddings.jagged.strategies import kjt_of

DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="no CUDA"))]
ROWS = {
    "history": [[1, 2, 3], [1, 2, 3], [2, 3, 4], [], [5, 6], [5, 6], [5, 6]],
    "video": [[7], [8], [7], [9], [7], [7], [3]],
    "tags": [[1], [1], [1], [2, 2], [], [], []],
}
TRANSFORMS = {"tags": [HashIds(40), Clamp(1, 30), Bucketize((0, 5, 9)), Truncate(1)]}


def inputs(device):
    """A batch, dense features and models."""
    kjt = kjt_of(list(ROWS), ROWS).to(device)
    torch.manual_seed(0)
    tables = [nn.Embedding(20, 4)]
    bags = InverseBags([([key], nn.EmbeddingBag(50, 4, mode="sum")) for key in ROWS])
    models = nn.ModuleList([DLRM(bags, 3), DIN(tables, ["history"], ["video"]), SequenceTransformer(4, 2)]).to(device)
    dense = torch.randn(7, 3).to(device)
    return kjt, dense, models


def all_of_it(kjt, dense, models):
    """Deduplicate, select, transform and train; everything that came out."""
    device, tables, out = kjt.device(), list(models[1].tables), []
    batches = [
        kjt,
        InverseKeyedJaggedTensor.from_kjt(kjt, [["history", "tags"], ["video"]]),
        InverseKeyedJaggedTensor.from_kjt(kjt, rows_sorted=True),
        InverseKeyedJaggedTensor.empty_like(InverseKeyedJaggedTensor.from_kjt(kjt)),
        PartialInverseKeyedJaggedTensor.from_kjt(kjt, [["history"]]),
    ]
    for batch in batches:
        batch = transformed(batch, TRANSFORMS)
        rows = torch.arange(batch.stride(), device=device)
        batch = SessionBatch(batch.index_select(rows), {}).to(device).features
        if not isinstance(batch, type(kjt)):
            type(batch)(batch.groups, batch.keys(), stride=batch.stride())
            batch.to_kjt()
        if batch.stride():
            logits = models[0](dense, batch) + models[1](batch) + models[2](embed(batch, ["history"], tables)).sum()
            logits.sum().backward()
            out.append(logits.detach())
    grads = [parameter.grad for parameter in models.parameters() if parameter.grad is not None]
    return [*out, *grads]


@pytest.mark.parametrize("device", DEVICES)
def test_everything_stays_on_the_inputs_device(device):
    expected = all_of_it(*inputs("cpu"))
    made = inputs(device)
    with as_on_an_accelerator():
        ours = all_of_it(*made)
    assert {tensor.device.type for tensor in ours} == {device}
    for mine, theirs in zip(ours, expected, strict=True):
        torch.testing.assert_close(mine.cpu(), theirs, rtol=1e-4, atol=1e-5)


def test_the_mode_sees_a_factory_without_a_device():
    with DevicesSaid(), pytest.raises(AssertionError, match=r"torch\.arange was called without a device"):
        torch.arange(3)
