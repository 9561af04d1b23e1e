"""Named, seeded, versioned families of tasks, each with a training and a held-out test half.

A task is a function of the family's name and version, the half and a number: the same everywhere and always. The
halves share no table, except Criteo's, whose 26 tables are what they are: there the halves differ in dim.

- `dlrm-TxD`: T tables on D devices of 32 GiB, as DreamShard draws them (arXiv 2210.02023, section 4): the pool is
  shuffled with seed 0, one half of it trains, the other tests, a task is T tables without replacement.
- `tight-TxD`: the same with uneven memory that a hidden plan fills to 85-99%; a plan is known to exist.
- `overfull-TxD`: memory that fits every table in int8, by a hidden plan, and that the fp32 tables exceed.
- `mixed-TxD`: a third of the large tables are tensor trains, half of the tables repeat within sessions.
- `criteo-kaggle`, `criteo-terabyte`: the 26 tables at two dims a half, on 2, 4 or 8 devices.
- `large-1000x128`: the size of a production model. Families of more than 8 devices have hosts of 8.

The pool is generated like the 856 public tables (`dataio.dlrm_like`); `family(name, tables=...)` draws from yours.
"""

import re
import zlib
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache

import numpy as np

from shardgym.dataio.tables.public_tables import criteo_kaggle, criteo_terabyte
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.envs.table_options import tensor_train
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import Dedup, TableSpec
from shardgym.problem.tasks import Task
from shardgym.problem.topology import Topology

HALVES = ("train", "test")
GIB = 2**30
BATCH = 65536
POOL = 856
VERSION = 2
DEVICES_PER_HOST = 8
"""Devices that share a host in families of more devices than this."""
DEVICE_MEMORY = 32 * GIB

Tables = tuple[TableSpec, ...]
Draw = Callable[[Tables, int, np.random.Generator, str], Task]


@public("shardgym.envs")
@dataclass(frozen=True)
class Family:
    """Tasks of one kind.

    Args:
        name: as in `FAMILIES`.
        tables: most tables of a task.
        devices: most devices of a task.
        draw: from a half's tables, the devices, a generator and a name to a task.
        pools: tables of the training and of the test half.
        counts: tasks of the training and of the test half.
        version: raised whenever a task of the family changes.
    """

    name: str
    tables: int
    devices: int
    draw: Draw
    pools: tuple[Tables, Tables]
    counts: tuple[int, int] = (100, 50)
    version: int = VERSION

    def count(self, half: str = "train") -> int:
        """Tasks of a half."""
        return self.counts[HALVES.index(half)]

    def task(self, number: int, half: str = "train") -> Task:
        """Task `number` of a half.

        Raises:
            InputError: there is no such task.
        """
        if half not in HALVES:
            raise InputError(f"{self.name}: half is {half!r}; give 'train' or 'test'")
        if not 0 <= number < self.count(half):
            raise InputError(f"{self.name}: there is no {half} task {number}; give 0 to {self.count(half) - 1}")
        which = HALVES.index(half)
        rng = np.random.default_rng([zlib.crc32(self.name.encode()), self.version, which, number])
        task = self.draw(self.pools[which], self.devices, rng, f"{self.name}-v{self.version}/{half}/{number}")
        return task

    def all_tasks(self, half: str = "test") -> list[Task]:
        """Every task of a half, in order."""
        return [self.task(number, half) for number in range(self.count(half))]


def family(name: str, tables: Sequence[TableSpec] | None = None) -> Family:
    """A family by name.

    Args:
        name: one of `FAMILIES`, or the same kind at another size, such as "dlrm-30x6"; "-v2" may follow.
        tables: draw from these instead of the generated pool.

    Raises:
        InputError: no such family, or too few tables for it.
    """
    base, _, version = name.partition("-v")
    if version not in ("", str(VERSION)):
        raise InputError(f"tasks: family {base!r} has no version {version!r}; this release has version {VERSION}")
    if base in CRITEO:
        return _criteo(base)
    match = re.fullmatch(r"([a-z]+)-([1-9]\d*)x([1-9]\d*)", base)
    if not match or match[1] not in KINDS:
        raise InputError(f"tasks: no family {name!r}; give one of {', '.join(FAMILIES)}, or a task file (.json)")
    count, devices = int(match[2]), int(match[3])
    pools = _halves(tuple(tables)) if tables is not None else _generated(match[1], max(POOL, 4 * count))
    if count > min(map(len, pools)):
        raise InputError(f"tasks: {name!r} needs {2 * count} tables and there are {len(tables or ())}; give more")
    counts = (10, 10) if count >= 1000 else (100, 50)
    return Family(base, count, devices, _sample(count, KINDS[match[1]]), pools, counts)


@dataclass(frozen=True)
class _sample:  # noqa: N801  a function with its arguments bound, which a process can be sent
    """Draw `count` tables without replacement, then let `finish` give them memory."""

    count: int
    finish: Callable[[Tables, int, np.random.Generator, str], Task]

    def __call__(self, pool: Tables, devices: int, rng: np.random.Generator, name: str) -> Task:
        picked = rng.permutation(len(pool))[: self.count]
        return self.finish(tuple(pool[t] for t in picked), devices, rng, name)


def _roomy(tables: Tables, devices: int, rng: np.random.Generator, name: str) -> Task:
    """Memory that seldom binds."""
    return Task(tables, (DEVICE_MEMORY,) * devices, BATCH, name, _hosts(devices))


def _tight(tables: Tables, devices: int, rng: np.random.Generator, name: str) -> Task:
    """Memory of a hidden, roughly even plan, over its fill of 85% to 99% on each device."""
    used = _packed(np.array([table.bytes() for table in tables]), devices, rng)
    fill = rng.uniform(0.85, 0.99, size=devices)
    return Task(tables, tuple(int(np.ceil(u / f)) for u, f in zip(used, fill)), BATCH, name, _hosts(devices))


def _overfull(tables: Tables, devices: int, rng: np.random.Generator, name: str) -> Task:
    """Memory of the fullest device when all tables are held in int8, and 2% more."""
    used = _packed(np.array([replace(table, dtype="int8").bytes() for table in tables]), devices, rng)
    return Task(tables, (int(1.02 * used.max()),) * devices, BATCH, name, _hosts(devices))


def _hosts(devices: int) -> Topology | None:
    return Topology(DEVICES_PER_HOST) if devices > DEVICES_PER_HOST else None


def _packed(sizes: np.ndarray, devices: int, rng: np.random.Generator) -> np.ndarray:
    """Bytes on each device of a plan: tables of most noisy size first, each on the emptiest device; none is empty."""
    used = np.zeros(devices, dtype=np.int64)
    for t in np.argsort(-sizes * rng.uniform(0.8, 1.25, size=len(sizes))):
        used[used.argmin()] += sizes[t]
    return np.maximum(used, 1)


KINDS = {"dlrm": _roomy, "tight": _tight, "overfull": _overfull, "mixed": _roomy, "large": _roomy}


@lru_cache(maxsize=8)
def _generated(kind: str, size: int) -> tuple[Tables, Tables]:
    pool = dlrm_like(size, seed=0)
    return _halves(_mixed(pool) if kind == "mixed" else pool)


def _halves(pool: Tables) -> tuple[Tables, Tables]:
    shuffled = np.random.default_rng(0).permutation(len(pool))
    half = len(pool) // 2
    return tuple(pool[t] for t in shuffled[:half]), tuple(pool[t] for t in shuffled[half : 2 * half])


def _mixed(pool: Tables) -> Tables:
    """Some large tables as tensor trains, half of all tables with lists that repeat within a session."""
    rng = np.random.default_rng(1)
    tables = []
    for table in pool:
        compress, repeat, rank = rng.random() < 1 / 3, rng.random() < 1 / 2, int(rng.choice([16, 32]))
        session, stay = round(float(rng.uniform(2, 16)), 2), round(float(rng.uniform(0.3, 0.95)), 3)
        if compress and table.rows > 1_000_000:
            table = tensor_train(table, rank)
        if repeat:
            table = replace(table, dedup=Dedup(session, stay))
        tables.append(table)
    return tuple(tables)


CRITEO = {"criteo-kaggle": criteo_kaggle, "criteo-terabyte": criteo_terabyte}
CRITEO_DIMS = ((16, 64), (32, 128))
CRITEO_DEVICES = (2, 4, 8)


def _criteo(name: str) -> Family:
    pools = [tuple(table for dim in dims for table in CRITEO[name](dim)) for dims in CRITEO_DIMS]
    counts = len(CRITEO_DIMS[0]) * len(CRITEO_DEVICES)
    return Family(name, 26, max(CRITEO_DEVICES), _criteo_task, (pools[0], pools[1]), (counts, counts))


def _criteo_task(pool: Tables, devices: int, rng: np.random.Generator, name: str) -> Task:
    """Task k has dim k // 3 of the half's two and 2, 4 or 8 devices, each of at least twice its even share."""
    number = int(name.rpartition("/")[2])
    which, few = divmod(number, len(CRITEO_DEVICES))
    tables = pool[26 * which : 26 * (which + 1)]
    sizes = [table.bytes() for table in tables]
    memory = max(2 * sum(sizes) // CRITEO_DEVICES[few], max(sizes) + GIB)
    return Task(tables, (memory,) * CRITEO_DEVICES[few], BATCH, name)


FAMILIES = (
    "dlrm-20x4", "dlrm-40x4", "dlrm-50x4", "dlrm-60x4", "dlrm-80x4", "dlrm-100x4", "dlrm-80x8", "dlrm-200x8",
    "tight-20x4", "tight-50x4", "tight-100x8", "overfull-20x4", "overfull-50x4", "overfull-100x8",
    "mixed-20x4", "mixed-50x4", "mixed-100x8", "criteo-kaggle", "criteo-terabyte", "large-1000x128",
)  # fmt: skip
"""The families that results are reported on."""
