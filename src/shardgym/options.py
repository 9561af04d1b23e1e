"""What the commands' options mean: sizes, durations, table sources, cost models; each with one clear error."""

import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from shardgym.dataio.public_tables import criteo_kaggle
from shardgym.dataio.synthetic import DIMS, dlrm_like
from shardgym.dataio.table_files import read_tables
from shardgym.embeddings.errors import InputError
from shardgym.embeddings.tables import TableSpec

if TYPE_CHECKING:
    from shardgym.costmodel.learned import LearnedCost
    from shardgym.costmodel.roofline import RooflineCost

BYTE_UNITS = {"B": 1, "KB": 10**3, "MB": 10**6, "GB": 10**9, "TB": 10**12, "MIB": 2**20, "GIB": 2**30, "TIB": 2**40}
SECOND_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}

TABLES_HELP = (
    "Tables: a .json, .csv or .parquet file; 'criteo-kaggle'; or 'dlrm:COUNT', generated like a production DLRM's."
)

CostModelName = Annotated[
    str,
    typer.Option("--cost-model", help="'shipped', 'roofline' (analytic), or a model file written by `shardgym fit`."),
]
AgentFile = Annotated[Path | None, typer.Option(help="An agent file of `shardgym train`; default: the shipped agent.")]
AnyHardware = Annotated[bool, typer.Option("--any-hardware", help="Accept a model file fitted on other hardware.")]


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 4GB, 500MB or 1.5GiB.

    Raises:
        InputError: for anything else.
    """
    match = re.fullmatch(r"([\d.]+)\s*([A-Za-z]*)", text.strip())
    unit = BYTE_UNITS.get((match[2] or "B").upper()) if match else None
    if match is None or unit is None or not _is_number(match[1]) or float(match[1]) <= 0:
        raise InputError(f"size {text!r} is not understood; write it like 4GB, 500MB or 1.5GiB")
    return int(float(match[1]) * unit)


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as 90s, 10m or 1h.

    Raises:
        InputError: for anything else.
    """
    match = re.fullmatch(r"([\d.]+)\s*([smh]?)", text.strip())
    if match is None or not _is_number(match[1]):
        raise InputError(f"duration {text!r} is not understood; write it like 90s, 10m or 1h")
    return float(match[1]) * SECOND_UNITS[match[2]]


def parse_tables(source: str, seed: int, default_dim: int | None = None) -> tuple[TableSpec, ...]:
    """The tables that a source names.

    Args:
        source: a table file, "criteo-kaggle", or "dlrm:COUNT".
        seed: of generated tables.
        default_dim: dim of tables whose source has none, and of every generated or Criteo table.

    Raises:
        InputError: names the source and what may be given.
    """
    if source == "criteo-kaggle":
        return criteo_kaggle(default_dim or 16)
    kind, _, count = source.partition(":")
    if kind == "dlrm" and not Path(source).exists():
        if not count.isdigit() or int(count) < 1:
            raise InputError(f"tables {source!r}: give a count of at least 1, as in dlrm:50")
        return dlrm_like(int(count), seed, (default_dim,) if default_dim else DIMS)
    if Path(source).suffix == "":
        raise InputError(f"tables {source!r} is unknown; give a .json, .csv or .parquet file, criteo-kaggle or dlrm:50")
    return read_tables(Path(source), default_dim)


def parse_devices(devices: int, memory: str) -> tuple[int, ...]:
    """Memory of each device: one size for all, or as many as there are devices, separated by commas.

    Raises:
        InputError: for a count that does not fit.
    """
    sizes = [parse_bytes(part) for part in memory.split(",")]
    if devices < 1:
        raise InputError(f"devices is {devices}; give at least 1")
    if len(sizes) not in (1, devices):
        raise InputError(f"memory {memory!r} has {len(sizes)} sizes for {devices} devices; give one, or one a device")
    return tuple(sizes * devices if len(sizes) == 1 else sizes)


def named_cost_model(name: str, any_hardware: bool = False) -> "LearnedCost | RooflineCost":
    """A cost model by the name that the commands take.

    Args:
        name: "shipped", "roofline", or a model file.
        any_hardware: accept a file that was fitted on another machine than this.

    Raises:
        InputError: neither a known name nor a model file, or a file of other hardware.
    """
    from shardgym.costmodel.hardware import this_hardware
    from shardgym.costmodel.learned import LearnedCost
    from shardgym.costmodel.roofline import RooflineCost
    from shardgym.costmodel.shipped import shipped_cost

    if name == "shipped":
        return shipped_cost()
    if name == "roofline":
        return RooflineCost()
    if not Path(name).exists():
        raise InputError(f"--cost-model {name}: is no file; give 'shipped', 'roofline' or a file of `shardgym fit`")
    return LearnedCost.load(Path(name), here=None if any_hardware else this_hardware())


def _is_number(text: str) -> bool:
    return re.fullmatch(r"\d+(\.\d*)?|\.\d+", text) is not None
