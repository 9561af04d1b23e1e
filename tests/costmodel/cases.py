"""Small designs and made-up samples that the cost model's tests share."""

from dataclasses import replace

import numpy as np

from shardgym.costmodel.measuring.designs import GroupDesign
from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.costmodel.measuring.samples import GroupSample
from shardgym.dataio.tables.synthetic import dlrm_like

SMALL = tuple(replace(t, rows=min(t.rows, 2000), pooling=min(t.pooling, 5.0)) for t in dlrm_like(12, seed=1))


def design(seed=0):
    return GroupDesign((SMALL,), batch_size=64, max_tables=6, max_bytes=2**24, seed=seed)


def made_up_samples(count, seed=0):
    """Samples whose cost is a known function: fusion makes it less than additive."""
    rng = np.random.default_rng(seed)
    samples = []
    for index in range(count):
        tables = design(seed).group(index)
        traffic = sum(t.pooling * t.dim for t in tables)
        forward = 0.1 + 0.01 * traffic**0.8
        noise = rng.normal(1, 0.01, size=2)
        hardware = Hardware("cpu", "made up", 1, 1, "torch", "torch 0")
        samples.append(
            GroupSample(index, tables, 64, forward * noise[0], 2 * forward * noise[1], 0.01, 0.01, 2, 1.0, hardware)
        )
    return samples
