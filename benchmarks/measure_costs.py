"""Measure what the package ships, in pieces; a piece goes on where the last one of its kind stopped.

    python -m benchmarks.measure_costs OUT dense=300 small_dense=100 formats=300 exchange=60

Each number is seconds. Kinds in `DESIGNS` measure groups of tables, each into a folder of its own; `exchange` measures
all-to-alls of 2, 3 and 4 local processes, that long each. Pin the process to one thread (OMP_NUM_THREADS=1): a device
is one core.
"""

import sys
import time
from collections.abc import Iterator
from pathlib import Path

import torch

from shardgym.costmodel.measuring.all_to_all import ExchangeDesign, Volumes, measure_exchanges
from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample, read_exchanges, write_exchanges
from shardgym.costmodel.measuring.format_design import FormatDesign
from shardgym.costmodel.measuring.hardware import this_hardware
from shardgym.costmodel.measuring.meter import Meter, measure_design
from shardgym.costmodel.measuring.samples import SampleFolder
from shardgym.costmodel.measuring.wide_design import WideDesign

DESIGNS = {
    "dense": WideDesign(),
    "more_dense": WideDesign(seed=2),
    "small_dense": WideDesign(lookups=(20_000, 1_000_000), seed=3),
    "formats": FormatDesign(),
}
DEVICES = (2, 3, 4)


def main(out: Path, pieces: list[str]) -> None:
    """Measure the pieces in turn."""
    torch.set_num_threads(1)
    meter = None
    for piece in pieces:
        kind, _, seconds = piece.partition("=")
        if kind == "exchange":
            for devices in DEVICES:
                print(f"exchange of {devices}: {measure_volumes(out, devices, float(seconds))} held")
            continue
        meter = meter or roomy_meter()
        count = sum(1 for _ in measure_design(DESIGNS[kind], SampleFolder(out / kind), meter, float(seconds)))
        print(f"{kind}: {count} groups measured")


def roomy_meter() -> Meter:
    """A meter whose memory is paged in before the first group, not by it."""
    meter = Meter()
    for dtype, size in ((torch.float32, 2**30), (torch.float16, 3 * 2**29), (torch.uint8, 2**30)):
        meter.memory.take("weights", dtype, size)
    meter.memory.take("states", torch.float32, 2**28)
    return meter


def measure_volumes(out: Path, devices: int, seconds: float) -> int:
    """More all-to-alls of so many processes, for so long, into one file; returns how many it holds."""
    file = out / f"exchanges-{devices}.parquet"
    held = read_exchanges(file) if file.exists() else []
    design = ExchangeDesign(devices)
    asked: list[Volumes] = []

    def until_late() -> Iterator[Volumes]:
        start = None
        while start is None or time.monotonic() - start < seconds:
            asked.append(design.volumes(len(held) + len(asked)))
            yield asked[-1]
            start = start or time.monotonic()  # the processes take a while to come up

    measured = [*measure_exchanges(devices, (volumes.sent() for volumes in until_late()))]
    hardware = this_hardware()
    new = [AllToAllSample.of(volumes, times, hardware) for volumes, times in zip(asked, measured)]
    write_exchanges(file, [*held, *new])
    return len(held) + len(new)


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2:])
