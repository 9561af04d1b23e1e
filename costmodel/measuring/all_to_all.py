"""Measuring all-to-alls: pooled outputs to the devices that own the samples, and their gradients back.

Each device holds some tables and pools the whole batch for them. Before the dense layers it sends every other device
the part of its outputs that belongs to that device's samples; in the backward the gradients come the same way back.
Devices are local processes that talk by gloo, so that volumes are uneven as placements make them.
"""

import os
import queue
import socket
import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from numpy.typing import NDArray
from scipy.stats import qmc

from shardgym.costmodel.pricing.exchange import OUTPUT_BYTES
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

WARM_UP = 2
REPEATS = 9
PATIENCE_SECONDS = 120


@dataclass(frozen=True)
class Volumes:
    """One all-to-all: the summed dims of each device's tables, and the global batch."""

    dims: tuple[int, ...]
    batch_size: int

    def sent(self) -> tuple[int, ...]:
        """Bytes that each device sends, (D,), the part for its own samples included."""
        return tuple(dims * self.batch_size * OUTPUT_BYTES for dims in self.dims)


@public("shardgym.costmodel")
@dataclass(frozen=True)
class ExchangeDesign:
    """All-to-alls along a Halton sequence over batch size, mean dims a device, and unevenness.

    Args:
        devices: number of processes, 2 to 4 on one machine.
        batch_sizes, dims: least and most; sampled log-uniformly.
        most_numbers: limit on batch size * summed dims of all devices; the batch is cut to it.
        seed: of the design.
    """

    devices: int
    batch_sizes: tuple[int, int] = (512, 65536)
    dims: tuple[int, int] = (8, 2048)
    most_numbers: int = 16_000_000
    seed: int = 0

    def volumes(self, index: int) -> Volumes:
        """The volumes of one all-to-all; they depend on the seed and the index alone."""
        sequence = qmc.Halton(3, rng=np.random.default_rng(self.seed))
        batch, dims, uneven = sequence.fast_forward(index).random(1)[0]
        rng = np.random.default_rng([self.seed, index])
        # A Dirichlet from nearly even (alpha 100) to very uneven (alpha 1).
        shares = rng.dirichlet(np.full(self.devices, 10 ** (2 - 2 * uneven)))
        total = self.devices * _log_uniform(dims, *self.dims)
        held = tuple(4 * max(1, round(float(share * total) / 4)) for share in shares)
        wanted = min(_log_uniform(batch, *self.batch_sizes), self.most_numbers / sum(held))
        return Volumes(held, self.devices * max(1, round(wanted / self.devices)))


def measure_exchanges(devices: int, sent: Iterable[Sequence[int]]) -> Iterator[NDArray[np.float64]]:
    """Run all-to-alls on `devices` processes of this machine, one after another.

    Args:
        devices: D.
        sent: for each all-to-all, bytes that each device sends, (D,), the part that stays included; a device sends
            equal parts to all, rounded down to whole fp32 numbers.

    Yields:
        (D, 2, 2): by device and by forward and backward, the median ms and the spread (interquartile range over it).

    Raises:
        InputError: when the processes cannot be started or do not answer.
    """
    context = mp.get_context("spawn")
    asked = [context.Queue() for _ in range(devices)]
    answered = context.Queue()
    port = _free_port()
    workers = [
        context.Process(target=_worker, args=(rank, devices, port, asked[rank], answered), daemon=True)
        for rank in range(devices)
    ]
    for worker in workers:
        worker.start()
    try:
        for one in sent:
            for line in asked:
                line.put(one)
            try:
                answers = dict(answered.get(timeout=PATIENCE_SECONDS) for _ in range(devices))
            except queue.Empty as error:
                raise InputError(
                    f"all-to-all: {devices} processes did not answer in {PATIENCE_SECONDS} s; see whether gloo can "
                    "open local sockets here"
                ) from error
            yield np.stack([answers[rank] for rank in range(devices)])
    finally:
        for line in asked:
            line.put(None)
        for worker in workers:
            worker.join(10)
            if worker.is_alive():
                worker.terminate()


def _worker(rank: int, devices: int, port: int, asked: "mp.Queue", answered: "mp.Queue") -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=devices)
    while (sent := asked.get()) is not None:
        answered.put((rank, _timed_exchange(rank, sent)))
    dist.destroy_process_group()


def _timed_exchange(rank: int, sent: Sequence[int]) -> NDArray[np.float64]:
    """(2, 2): forward and backward, the median ms and the spread of this rank."""
    devices = len(sent)
    others = [each // OUTPUT_BYTES // devices for each in sent]  # numbers from each device, of this one's samples
    own = [others[rank]] * devices  # numbers to each device, of this one's tables
    pooled, gathered = torch.ones(sum(own)), torch.ones(sum(others))
    times = []
    for _ in range(WARM_UP + REPEATS):
        dist.barrier()
        start = time.perf_counter()
        dist.all_to_all_single(gathered, pooled, others, own)
        forward = time.perf_counter() - start
        dist.barrier()
        start = time.perf_counter()
        dist.all_to_all_single(pooled, gathered, own, others)
        times.append((forward, time.perf_counter() - start))
    low, middle, high = np.quantile(np.array(times[WARM_UP:]) * 1e3, [0.25, 0.5, 0.75], axis=0)
    return np.stack([middle, (high - low) / middle], axis=1)


def _free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def _log_uniform(share: float, low: float, high: float) -> float:
    return float(np.exp(np.log(low) + share * np.log(high / low)))
