"""Sizes and durations as people write them."""

import re
from collections.abc import Sequence

from shardgym.problem.errors import InputError

BYTE_UNITS = {
    "B": 1,
    **{unit: 1000**power for power, letter in enumerate("KMGT", start=1) for unit in (letter, f"{letter}B")},
    **{f"{letter}IB": 1024**power for power, letter in enumerate("KMGT", start=1)},
}
"""Bytes of a unit in capitals: K and KB are 1000 bytes, KiB 1024."""

SECOND_UNITS = {"": 1, "s": 1, "m": 60, "h": 3600}


def parse_bytes(text: str) -> int:
    """Bytes of a size such as 4GB, 4G (the same), 500MB, 1.5GiB or 4096.

    Raises:
        InputError: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([A-Za-z]*)", text.strip())
    unit = BYTE_UNITS.get((match[2] or "B").upper()) if match else None
    if match is None or unit is None or float(match[1]) <= 0:
        raise InputError(f"size {text!r} is not understood; write it like 4GB, 500MB or 1.5GiB")
    return int(float(match[1]) * unit)


def device_memory(devices: int, memory: str | int | Sequence[int]) -> tuple[int, ...]:
    """Bytes of each device.

    Args:
        devices: their number.
        memory: one size for all ("4GB", or bytes), or one per device ("4GB,4GB,8GB", or a sequence of bytes).

    Raises:
        InputError: a size that is not understood, or a count that does not fit.
    """
    if devices < 1:
        raise InputError(f"devices is {devices}; give at least 1")
    if isinstance(memory, str):
        sizes = [parse_bytes(part) for part in memory.split(",")]
    else:
        sizes = [memory] if isinstance(memory, int) else list(memory)
    if len(sizes) not in (1, devices):
        raise InputError(f"memory {memory!r} has {len(sizes)} sizes for {devices} devices; give one, or one per device")
    return tuple(sizes * devices if len(sizes) == 1 else sizes)


def parse_seconds(text: str) -> float:
    """Seconds of a duration such as 90s, 10m or 1h.

    Raises:
        InputError: for anything else.
    """
    match = re.fullmatch(r"(\d+(?:\.\d*)?|\.\d+)\s*([smh]?)", text.strip())
    if match is None:
        raise InputError(f"duration {text!r} is not understood; write it like 90s, 10m or 1h")
    return float(match[1]) * SECOND_UNITS[match[2]]


def human_bytes(count: float) -> str:
    """A size in decimal units, as `parse_bytes` reads it."""
    for unit in ("B", "KB", "MB", "GB"):
        if count < 1000:
            return f"{count:.3g} {unit}"
        count /= 1000
    return f"{count:.4g} TB"
