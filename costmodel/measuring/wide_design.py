"""The design of the shipped measurements: groups drawn evenly over what users place, and over what planners make."""

from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np
from scipy.stats import qmc

from shardgym.costmodel.measuring.designs import fitting
from shardgym.dataio.tables.synthetic import DIMS, dlrm_like
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

AXES = ("pool", "size", "batch", "kind", "dtype", "lookups")
POOL_DIMS = (DIMS, (4, 8, 16), (64,), tuple(range(4, 129, 4)), (16,), (16, 32, 64, 128), (32,), (8, 12, 24, 48, 96))
"""Dims of the pools in turn: models with one dim for all tables, and models with many."""


@public("shardgym.costmodel")
@dataclass(frozen=True)
class WideDesign:
    """Groups along a scrambled Halton sequence over `AXES`: any prefix covers the space.

    Half of the groups are random; the others are a device's share of a balanced plan, as planners make them. A group's
    tables come from one pool, and pools share no table, so that whole pools can be held out.

    Args:
        pools: number of table pools.
        pool_size: tables a pool.
        batch_sizes: least and most bags per table, sampled log-uniformly.
        max_tables: most tables in a group, sizes being sampled log-uniformly.
        max_bytes: memory that one device may hold.
        lookups: a group's limit on ids in a batch is sampled log-uniformly from here; one that would look up more gets
            a smaller batch. Without it, nearly all the time would go to the few largest groups.
        seed: of the design.
    """

    pools: int = 48
    pool_size: int = 80
    batch_sizes: tuple[int, int] = (512, 65536)
    max_tables: int = 60
    max_bytes: int = 3 * 2**30
    lookups: tuple[int, int] = (100_000, 8_000_000)
    seed: int = 0

    def group(self, index: int) -> tuple[TableSpec, ...]:
        """The tables of one group."""
        point = self._point(index)
        rng = np.random.default_rng([self.seed, index])
        pool = dtyped(pool_tables(self.seed, int(point["pool"] * self.pools), self.pool_size), point["dtype"], rng)
        size = int(log_uniform(point["size"], 1, self.max_tables + 1))
        order = rng.permutation(len(pool)).tolist() if point["kind"] < 0.5 else planned_share(pool, size, rng)
        return fitting(pool, order, size, self.max_bytes) or (min(pool, key=TableSpec.bytes),)

    def batch_size_of(self, index: int) -> int:
        """The batch size of one group."""
        point = self._point(index)
        wanted, limit = (
            log_uniform(point[axis], *ends) for axis, ends in (("batch", self.batch_sizes), ("lookups", self.lookups))
        )
        pooling = sum(table.pooling for table in self.group(index))
        return max(self.batch_sizes[0], int(min(wanted, limit / max(pooling, 1e-9))))

    def _point(self, index: int) -> dict[str, float]:
        """Place of the group in the unit cube, by axis."""
        sequence = qmc.Halton(len(AXES), rng=np.random.default_rng(self.seed))
        return dict(zip(AXES, sequence.fast_forward(index).random(1)[0].tolist()))


def log_uniform(share: float, low: float, high: float) -> float:
    """The quantile of a log-uniform distribution."""
    return float(np.exp(np.log(low) + share * np.log(high / low)))


@lru_cache(maxsize=256)
def pool_tables(seed: int, pool: int, size: int) -> tuple[TableSpec, ...]:
    """Tables of one pool. Pools differ in their dims, and in how many rows they have, 64-fold."""
    pool_seed = int(np.random.SeedSequence([seed, pool]).generate_state(1)[0])
    tables = dlrm_like(size, pool_seed, POOL_DIMS[pool % len(POOL_DIMS)], row_scale=4.0 ** -(pool % 4))
    return tuple(replace(table, name=f"pool{pool}_{k}") for k, table in enumerate(tables))


def dtyped(tables: tuple[TableSpec, ...], share: float, rng: np.random.Generator) -> tuple[TableSpec, ...]:
    """The tables in fp32 (share below 0.4), in fp16 (below 0.75), or in a mix of both."""
    if share < 0.4:
        return tables
    half = rng.random(len(tables)) < (1.0 if share < 0.75 else 0.5)
    return tuple(replace(t, dtype="fp16") if is_half else t for t, is_half in zip(tables, half))


def planned_share(tables: tuple[TableSpec, ...], size: int, rng: np.random.Generator) -> list[int]:
    """Indices of about `size` tables that one device gets when all are balanced over devices, largest first.

    Work is dim * pooling with a random exponent on each, so that many planners' ideas of balance are met.
    """
    devices = max(2, round(len(tables) / size)) if size else 2
    dim_power, pooling_power = rng.uniform(0.3, 1.2, size=2)
    work = np.array([t.dim**dim_power * (t.pooling + 0.1) ** pooling_power for t in tables])
    loads = np.zeros(devices)
    shares: list[list[int]] = [[] for _ in range(devices)]
    for t in np.argsort(-work):
        lightest = int(loads.argmin())
        loads[lightest] += work[t]
        shares[lightest].append(int(t))
    share = shares[int(rng.integers(devices))]
    return rng.permutation(share).tolist()
