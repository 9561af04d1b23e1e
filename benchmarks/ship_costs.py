"""Build what `shardgym.costmodel.shipped` holds from folders of measurements: the set, the network and the data card.

    python -m benchmarks.ship_costs PATH [PATH ...]

Paths are what `benchmarks.measure_costs` wrote on one machine, in the order in which it did: folders of groups, and
files of all-to-alls.
"""

import sys
from collections import Counter
from dataclasses import replace
from pathlib import Path

import numpy as np

from shardgym.costmodel import shipped
from shardgym.costmodel.exchange_fit import fit_exchange
from shardgym.costmodel.fit import FitOptions, fit_network
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample, read_exchanges, write_exchanges
from shardgym.costmodel.measuring.drift import without_drift
from shardgym.costmodel.measuring.samples import GroupSample, SampleFolder, one_hardware, write_samples
from shardgym.costmodel.pricing.ranges import table_format
from shardgym.problem.files import write_text

NOISIEST = 0.25
"""Samples whose forward or backward still spread more after a second try are left out."""
OPTIONS = FitOptions(members=3)


def main(paths: list[Path]) -> None:
    """Read, fit and write."""
    read = [SampleFolder(path).read() for path in paths if path.is_dir()]
    steady = [sample for samples in read for sample in samples if sample.spread <= NOISIEST]
    samples = [replace(sample, index=k) for k, sample in enumerate(steady)]
    hardware = one_hardware(samples, paths[0])
    exchanges = [sample for path in paths if path.suffix == ".parquet" for sample in read_exchanges(path)]
    write_samples(shipped.GROUPS, samples)
    write_exchanges(shipped.EXCHANGES, exchanges)
    model = fit_network(without_drift(samples), OPTIONS)
    measured_on = f"{len(samples)} shipped groups and {len(exchanges)} all-to-alls of {hardware}"
    LearnedCost(model.networks, hardware, measured_on, model.ranges, fit_exchange(exchanges)).save(shipped.NETWORK)
    write_text(shipped.CARD, card(samples, sum(map(len, read)) - len(samples), exchanges))
    print(f"{len(samples)} groups, {shipped.GROUPS.stat().st_size:,} bytes; {len(exchanges)} all-to-alls")


def card(samples: list[GroupSample], left_out: int, exchanges: list[AllToAllSample]) -> str:
    """The data card."""
    hardware = samples[0].hardware
    formats = Counter(table_format(table) for sample in samples for table in sample.tables)
    lookups = [s.batch_size * sum(t.pooling for t in s.tables) for s in samples]
    ranges = {
        "tables per group": [len(s.tables) for s in samples],
        "batch size": [s.batch_size for s in samples],
        "rows": [t.rows for s in samples for t in s.tables],
        "dim": [t.dim for s in samples for t in s.tables],
        "pooling": [t.pooling for s in samples for t in s.tables],
        "look-ups per batch": lookups,
        "forward ms": [s.forward_ms for s in samples],
        "backward ms": [s.backward_ms for s in samples],
        "forward spread": [s.forward_spread for s in samples],
        "backward spread": [s.backward_spread for s in samples],
        "reference op ms": [s.reference_ms for s in samples],
        "all-to-all: devices": [len(x.dims) for x in exchanges],
        "all-to-all: samples per batch": [x.batch_size for x in exchanges],
        "all-to-all: dims of a device": [dims for x in exchanges for dims in x.dims],
        "all-to-all: forward ms": [ms for x in exchanges for ms in x.forward_ms],
        "all-to-all: backward ms": [ms for x in exchanges for ms in x.backward_ms],
        "all-to-all: forward spread": [spread for x in exchanges for spread in x.forward_spread],
    }
    lines = [f"| {name} | " + " | ".join(f"{q:.4g}" for q in _quantiles(v)) + " |" for name, v in ranges.items()]
    return CARD.format(
        count=len(samples),
        exchanges=len(exchanges),
        left_out=left_out,
        noisiest=NOISIEST,
        hardware=hardware,
        versions=hardware.versions,
        formats=", ".join(f"{name} {count:,}" for name, count in formats.most_common()),
        tables=len({t.name for s in samples for t in s.tables}),
        lines="\n".join(lines),
    )


CARD = """# Data card: groups of embedding tables, measured

`groups.parquet`: {count:,} groups of tables, each run as one device's look-up (forward) and row-wise Adagrad update
(backward), with every table of the group in one `EmbeddingShard`. {left_out} more were left out because their spread
stayed above {noisiest} at a second try.

- Machine: {hardware}; {versions}. A "device" is one core; nothing else was meant to run, but the machine is virtual and
  its neighbours are unknown.
- Tables: {tables:,}, drawn by `dlrm_like` in pools that share no table, so that whole pools can be held out. Tables by
  format, over all groups: {formats}.
- Groups: `WideDesign`, half random, half a device's share of a balanced plan; `FormatDesign` turns some tables into
  tensor trains with and without cached rows, int8, and deduplicated feature groups. int8 tables are frozen.
- Timing: one warm-up, then 3 to 25 timed repeats in turn over one or two batches, median and interquartile range. The
  allocator is kept from giving memory back. Ops are warm; a batch's rows are as warm as the batch before left them.
- Drift: `reference_ms` is a fixed op just before each sample. `without_drift` divides by its running median.

`exchanges.parquet`: {exchanges:,} all-to-alls by gloo between 2 to 4 processes of the same machine, which share its
cores, with uneven volumes (`ExchangeDesign`): pooled outputs forward, gradients backward, each after a barrier.

| | least | 10% | median | 90% | most |
|---|---|---|---|---|---|
{lines}
"""


def _quantiles(values: list[float]) -> list[float]:
    return np.quantile(values, [0, 0.1, 0.5, 0.9, 1]).tolist()


if __name__ == "__main__":
    main([Path(argument) for argument in sys.argv[1:]])
