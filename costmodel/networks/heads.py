"""The heads of cost networks, in arithmetic that comes out the same everywhere.

A price must not depend on what is priced beside it, nor on the processor: environments, their twins, search and
reports then agree to the last digit. A matrix product rounds a row by its neighbours and by the instruction set; so
the heads are float32 operations in one fixed order per device, compiled (heads_cpu.cpp) or in numpy, bit for bit alike.
"""

import ctypes
import functools
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.networks.cost_network import CostNetwork, PositiveLinear
from shardgym.embeddings.kernels.build import load_c_kernel

KERNEL = Path(__file__).with_name("heads_cpu.cpp")
Array = NDArray[np.float32]

ONE = np.float32(1)
ROUND = np.float32(12582912.0)
"""1.5 * 2^23: adding it to a float32 rounds to a whole number."""


class CostHeads:
    """Mean over M networks of what their heads say of summed states.

    Args:
        networks: fitted, of one shape.
    """

    def __init__(self, networks: Sequence[CostNetwork]) -> None:
        self.members, self.phases = len(networks), networks[0].phases
        with torch.no_grad():
            self.in_weight, self.in_bias = _stacked([network.head_in for network in networks])  # (M, S, H), (M, H)
            self.out_weight, self.out_bias = _stacked([network.head_out for network in networks])
        self.width, self.hidden = self.in_weight.shape[1:]
        self._bound: Callable[[int, int, int], None] | None = None

    def __call__(self, states: Array) -> Array:
        """Ms of devices, (..., M * S) to (..., phases); zero on an empty device."""
        kernel = self._bound or self._bind()
        if kernel is None:
            return self.reference(states)
        states = np.ascontiguousarray(states, dtype=np.float32)
        ms = np.empty((*states.shape[:-1], self.phases), dtype=np.float32)
        kernel(states.ctypes.data, ms.size // self.phases, ms.ctypes.data)
        return ms

    def _bind(self) -> Callable[[int, int, int], None] | None:
        """The compiled heads with these weights, or None."""
        function = compiled_heads()
        if function is not None:
            sizes = (self.members, self.width, self.hidden, self.phases)
            weights = (self.in_weight, self.in_bias, self.out_weight, self.out_bias)
            pointers = [array.ctypes.data for array in weights]
            self._bound = lambda states, count, ms: function(states, count, *sizes, *pointers, ms)
        return self._bound

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_bound": None}  # a copy's weights lie elsewhere

    def reference(self, states: Array) -> Array:
        """The same in numpy."""
        used = (states > 0).any(axis=-1, keepdims=True)
        total = np.zeros((*states.shape[:-1], self.phases), dtype=np.float32)
        for member in self.by_member(states):
            total = total + member
        return np.where(used, total / np.float32(self.members), np.float32(0))

    def by_member(self, states: Array) -> Array:
        """What each network says, (..., M * S) to (M, ..., phases) ms; their differences are a warning."""
        added, extra = self.stretched(states)
        return added + extra

    def stretched(self, states: Array) -> tuple[Array, Array]:
        """The stretched sums of the tables' ms, and the ms that come on top; (M, ..., phases) each."""
        parts = states.reshape(*states.shape[:-1], self.members, self.width)
        both = [self._one(m, parts[..., m, :]) for m in range(self.members)]
        return np.stack([added for added, _ in both]), np.stack([extra for _, extra in both])

    def _one(self, m: int, x: Array) -> tuple[Array, Array]:
        logs = log_plus_one(x)
        hidden = np.broadcast_to(self.in_bias[m], (*x.shape[:-1], self.hidden))
        for s in range(self.width):
            hidden = hidden + logs[..., s, None] * self.in_weight[m, s]
        seen = np.concatenate([hyperbolic_tangent(hidden), logs], axis=-1)
        out = np.broadcast_to(self.out_bias[m], (*x.shape[:-1], 2 * self.phases))
        for s in range(self.hidden + self.width):
            out = out + seen[..., s, None] * self.out_weight[m, s]
        ratios = exponential(np.minimum(out, np.float32(12)))
        return x[..., : self.phases] * ratios[..., : self.phases], ratios[..., self.phases :]


@functools.cache
def compiled_heads() -> Callable[..., None] | None:
    """The compiled heads, or None where there is no compiler."""
    library = load_c_kernel(KERNEL)
    if library is None:
        return None
    function = library.cost_heads
    function.restype = None
    pointer, number = ctypes.c_void_p, ctypes.c_int
    function.argtypes = [pointer, ctypes.c_int64, *[number] * 4, *[pointer] * 5]
    return function


def exponential(x: Array) -> Array:
    """e^x, x held within [-87, 88]: 2^k times Taylor's series of what is left."""
    x = np.minimum(np.maximum(x, np.float32(-87)), np.float32(88))
    shifted = x * np.float32(1.44269504) + ROUND
    k = shifted - ROUND
    r = x - k * np.float32(0.693145752)
    r = r - k * np.float32(1.42860677e-6)
    total = r * np.float32(1 / 5040) + np.float32(1 / 720)
    for term in (1 / 120, 1 / 24, 1 / 6, 0.5, 1.0, 1.0):
        total = total * r + np.float32(term)
    power = (shifted.view(np.int32) - ROUND.view(np.int32) + np.int32(127)) << np.int32(23)
    return total * power.view(np.float32)


def log_plus_one(x: Array) -> Array:
    """log(1 + x) for x >= 0: the logarithm of the rounded sum, times x over what was really added."""
    u = x + ONE
    added = u - ONE
    exponent = (u.view(np.int32) >> np.int32(23)) - np.int32(127)
    m = ((u.view(np.int32) & np.int32(0x7FFFFF)) | np.int32(0x3F800000)).view(np.float32)
    high = m > np.float32(1.41421356)
    m = np.where(high, m * np.float32(0.5), m)
    e = (exponent + high).astype(np.float32)
    t = (m - ONE) / (m + ONE)
    square = t * t
    total = square * np.float32(1 / 11) + np.float32(1 / 9)
    for term in (1 / 7, 1 / 5, 1 / 3, 1.0):
        total = total * square + np.float32(term)
    log = e * np.float32(0.693147182) + (t + t) * total
    return np.where(added > 0, log * (x / np.where(added > 0, added, ONE)), x)


def hyperbolic_tangent(x: Array) -> Array:
    """1 - 2 / (e^(2x) + 1)."""
    return ONE - np.float32(2) / (exponential(x + x) + ONE)


def _stacked(layers: Sequence[PositiveLinear]) -> tuple[Array, Array]:
    """Weights (M, in, out) and biases (M, out) of one layer of M networks."""
    weights = torch.stack([layer.positive_weight().T for layer in layers]).contiguous()
    return weights.numpy().copy(), torch.stack([layer.bias for layer in layers]).numpy().copy()
