"""The networks' heads in numpy: they are tiny and called once a decision, and so are spared torch's cost per call."""

import math
from collections.abc import Sequence

import numpy as np
import torch
from numpy.typing import NDArray

from shardgym.costmodel.networks.all_to_all_network import OUTPUT_BYTES, VOLUMES, ExchangeNetwork
from shardgym.costmodel.networks.cost_network import CostNetwork, PositiveLinear

Layer = tuple[NDArray[np.float32], NDArray[np.float32]]


class CostHeads:
    """`CostNetwork.device_costs` of M networks at once, in numpy."""

    def __init__(self, networks: Sequence[CostNetwork]) -> None:
        self.members, self.phases = len(networks), networks[0].phases
        with torch.no_grad():
            self._in, self._in_bias = _stacked([network.head_in for network in networks])
            self._out, self._out_bias = _stacked([network.head_out for network in networks])

    def __call__(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """Costs of devices by each network, (..., M * S) to (M, ..., phases) ms."""
        stretched, extra = self.stretched(states)
        used = states.sum(axis=-1, keepdims=True) > 0
        # (M, n, phases) -> (M, ..., phases)
        return (stretched + extra).reshape(self.members, *states.shape[:-1], self.phases) * used

    def stretched(self, states: NDArray[np.float32]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
        """The stretched sums of the tables' ms, and the ms that come on top; (M, n, phases) each."""
        # (..., M * S) -> (n, M, S) -> (M, n, S)
        count = math.prod(states.shape[:-1])
        parts = states.reshape(count, self.members, states.shape[-1] // self.members).transpose(1, 0, 2)
        logs = np.log1p(parts)
        hidden = logs @ self._in  # (M, n, hidden), then in place: it is the largest array here
        hidden += self._in_bias
        np.tanh(hidden, out=hidden)
        width = hidden.shape[-1]
        out = hidden @ self._out[:, :width] + logs @ self._out[:, width:] + self._out_bias
        ratios = np.exp(np.minimum(out, 12.0))
        return parts[..., : self.phases] * ratios[..., : self.phases], ratios[..., self.phases :]


class ExchangeHead:
    """`ExchangeNetwork` with the number of devices as its one other input."""

    def __init__(self, network: ExchangeNetwork) -> None:
        self.network = network.eval()
        count = len(VOLUMES)
        self._mean, self._scale = network.mean[:count].numpy().copy(), network.scale[:count].numpy().copy()
        self._in, self._middle, self._out = map(_layer, (network.volumes_in, network.middle, network.out))
        self._by_devices: dict[int, NDArray[np.float32]] = {}

    def __call__(self, dims: NDArray[np.float32], batch_size: int) -> NDArray[np.float32]:
        """Summed dims (..., D) to forward and backward (..., D, 2) ms; zero for one device, and on empty devices."""
        devices = dims.shape[-1]
        if devices == 1:
            return np.zeros((*dims.shape, 2), dtype=np.float32)
        bytes_sent = 1 + dims * np.float32(batch_size * OUTPUT_BYTES)
        volumes = np.empty((*dims.shape, len(VOLUMES)), dtype=np.float32)
        volumes[..., 0] = np.log(bytes_sent)
        volumes[..., 1] = volumes[..., 0].max(axis=-1, keepdims=True)
        volumes[..., 2] = np.log(bytes_sent.sum(axis=-1, keepdims=True))
        seen = (volumes - self._mean) / self._scale
        hidden = _bent(seen @ self._in[0] + self._in[1] + self._devices(devices))
        hidden = _bent(hidden @ self._middle[0] + self._middle[1])
        costs = np.exp(np.minimum(hidden @ self._out[0] + self._out[1], 15.0))
        return costs * (dims > 0)[..., None]

    def _devices(self, devices: int) -> NDArray[np.float32]:
        """What the number of devices adds to the first hidden layer, (hidden,)."""
        if devices not in self._by_devices:
            with torch.no_grad():
                self._by_devices[devices] = self.network.from_others(torch.tensor([float(np.log(devices))])).numpy()
        return self._by_devices[devices]


def _bent(x: NDArray[np.float32]) -> NDArray[np.float32]:
    return np.concatenate([np.tanh(x), np.maximum(x, 0)], axis=-1)


def _layer(linear: PositiveLinear) -> Layer:
    with torch.no_grad():
        return linear.positive_weight().numpy().T.copy(), linear.bias.numpy().copy()


def _stacked(layers: Sequence[PositiveLinear]) -> tuple[NDArray[np.float32], NDArray[np.float32]]:
    """Weights (M, in, out) and biases (M, 1, out) of one layer of M networks."""
    weights = torch.stack([layer.positive_weight().T for layer in layers]).contiguous()
    return weights.numpy(), torch.stack([layer.bias for layer in layers])[:, None].numpy()
