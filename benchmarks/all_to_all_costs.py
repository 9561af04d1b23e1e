"""How well all-to-alls are predicted, in the measured range and beyond it. Errors are of the slowest device.

A predicted collective is over when its slowest device is. Each error is the median over all-to-alls of
|predicted - measured| / measured, the worse of forward and backward.
"""

from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
from numpy.typing import NDArray

from benchmarks.public_costs import BATCH_SIZE, ten_parts
from benchmarks.public_data import public_data
from shardgym.costmodel.exchange_fit import AllToAlls, fit_all_to_alls, fit_exchange
from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample, read_exchanges
from shardgym.costmodel.pricing.exchange import OUTPUT_BYTES, PhysicalExchange
from shardgym.costmodel.shipped import shipped_cost
from shardgym.problem.topology import Topology

FRESH_BUFFER = 32 * 2**20
"""Bytes received above which the public script's fresh buffer costs time of its own; the project reuses its buffers."""
EQUAL_BYTES = 16e6
SETTLED = 1.0
"""Interquartile range over the median, on every device, up to which an all-to-all counts as settled."""

Fitted = tuple[PhysicalExchange, NDArray[np.float64]]


def all_to_all(given: Path | None = None) -> dict[str, Any]:
    """Errors in range and beyond, and growth with the number of devices at equal bytes per device.

    Args:
        given: judge the exchange fitted on the public 4-process set on this file of its columns, and nothing else.
    """
    public = public_data("all_to_all_cpu_4proc.parquet")
    intel = public_data("exchanges_intel.parquet")
    found: dict[str, float] = {"growth_512_over_4": growth(shipped_cost().exchange)}
    if public is not None:
        measured, others = public_all_to_alls(public)
        *train_on, test_on = ten_parts(len(measured.ms))
        found["in_range"] = public_error(fit_on(measured, np.concatenate(train_on)), measured, others, test_on)
        if given is not None:
            fitted = fit_on(measured, np.arange(len(measured.ms)))
            other = public_all_to_alls(given)
            return {"all_to_all": {"given": public_error(fitted, *other, np.arange(len(other[0].ms)))}}
    if intel is not None:
        samples = read_exchanges(intel)
        found |= {f"intel_{key}": value for key, value in own_errors(samples).items()}
    return {"all_to_all": found}


def own_errors(samples: list[AllToAllSample]) -> dict[str, float]:
    """Of a set measured with 2 to 4 processes: a fifth held out, five times; and fitted on 2 and 3, judged on 4."""
    settled = np.array([max(*s.forward_spread, *s.backward_spread) <= SETTLED for s in samples])
    in_range = []
    for seed in range(5):
        order = np.random.default_rng(seed).permutation(len(samples))
        held = order[: len(samples) // 5]
        exchange = fit_exchange([samples[k] for k in order[len(samples) // 5 :]])
        of_all = errors(exchange, [samples[k] for k in held])
        in_range.append((worse_median(of_all), worse_median(of_all[settled[held]])))
    four = np.array([len(sample.dims) == 4 for sample in samples])
    beyond = errors(fit_exchange([s for s, is_four in zip(samples, four) if not is_four]), samples)
    every, calm = np.mean(in_range, axis=0)
    return {
        "in_range": float(every),
        "in_range_settled": float(calm),
        "extrapolated": worse_median(beyond[four]),
        "extrapolated_settled": worse_median(beyond[four & settled]),
    }


def errors(exchange: PhysicalExchange, samples: list[AllToAllSample]) -> NDArray[np.float64]:
    """(N, 2) relative errors of forward and backward."""
    found = []
    for sample in samples:
        measured = np.array([max(sample.forward_ms), max(sample.backward_ms)])
        predicted = exchange.ms(np.array(sample.sent(), dtype=np.float64)[:, None])
        found.append(np.abs(predicted - measured) / measured)
    return np.array(found)


def worse_median(found: NDArray[np.float64]) -> float:
    """The worse of forward's and backward's median error."""
    return float(np.median(found, axis=0).max())


def public_all_to_alls(path: Path) -> tuple[AllToAlls, NDArray[np.float64]]:
    """The public columns as all-to-alls, with what its script adds: bytes received beyond the fresh buffer's, in MB
    per device, and the mean start skew in ms (a late device shows in the forward of those that wait)."""
    rows = pq.read_table(path).to_pydict()
    sent = np.array(rows["device_dims"], dtype=np.float64) * BATCH_SIZE * OUTPUT_BYTES  # (N, D)
    ms = np.array([np.max(rows["forward_ms"], axis=1), np.max(rows["backward_ms"], axis=1)]).T
    received = sent.mean(axis=1)
    fresh = np.where(received > FRESH_BUFFER, received, 0.0) / 1e6
    skew = np.mean(rows["start_skew_ms"], axis=1)
    others = np.stack([np.column_stack([fresh, skew]), np.column_stack([fresh, np.zeros_like(skew)])], axis=1)
    return AllToAlls(sent.shape[1], sent.sum(axis=1), sent.max(axis=1), ms, others), sent


def fit_on(measured: AllToAlls, chosen: NDArray[np.int64]) -> Fitted:
    """The exchange fitted on some of the measurements."""
    fields = (measured.total, measured.largest, measured.ms, measured.other)
    return fit_all_to_alls([AllToAlls(measured.devices, *(field[chosen] for field in fields))])


def public_error(fitted: Fitted, measured: AllToAlls, sent: NDArray[np.float64], rows: NDArray[np.int64]) -> float:
    """Error on the chosen rows."""
    exchange, others = fitted
    added = (measured.other[rows] * others).sum(axis=-1)  # (n, 2)
    predicted = exchange.ms(sent[rows][..., None]) + added
    return worse_median(np.abs(predicted - measured.ms[rows]) / measured.ms[rows])


def growth(exchange: Any) -> float:
    """Forward at 512 devices over forward at 4, equal bytes per device, hosts of 8."""
    hosts = Topology(8)
    four, many = (exchange.ms(np.full((devices, 1), EQUAL_BYTES), hosts)[0] for devices in (4, 512))
    return float(many / four)
