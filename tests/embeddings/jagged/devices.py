"""A mode that refuses tensors made without a device: on an accelerator they would lie on the CPU."""

from contextlib import contextmanager

import pytest
import torch
from torch.overrides import TorchFunctionMode

NAMES = "arange empty eye full linspace ones rand randint randn randperm tensor tril_indices zeros"
FACTORIES = {getattr(torch, name) for name in NAMES.split()}
WITH_KERNELS = [
    "shardgym.embeddings.jagged.dedup",
    "shardgym.embeddings.jagged.ops",
    "shardgym.embeddings.jagged.window_sums",
    "shardgym.embeddings.jagged.windows",
    "shardgym.embeddings.models.dot_pairs",
    "shardgym.embeddings.models.expand_columns",
    "shardgym.embeddings.models.sequence_layers",
]


class DevicesSaid(TorchFunctionMode):
    """Raises where a factory is called without `device=`."""

    def __torch_function__(self, function, types, args=(), kwargs=None):
        if function in FACTORIES and (kwargs or {}).get("device") is None:
            raise AssertionError(f"torch.{function.__name__} was called without a device")
        return function(*args, **(kwargs or {}))


@contextmanager
def as_on_an_accelerator():
    """No compiled kernel, and no tensor made without a device."""
    with pytest.MonkeyPatch.context() as patch, DevicesSaid():
        for module in WITH_KERNELS:
            patch.setattr(f"{module}.load_kernel", lambda name: None)
        yield
