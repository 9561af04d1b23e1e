"""What an agent sees: one flat Dict of padded one-dimensional Boxes, and its parts with their axes back.

Every environment of the suite has the fields of `FIELDS`; those that choose an option for each table before they
place it (a column split, a format) have those of `OPTION_FIELDS` too. T = max_tables, D = max_devices, F = the
features of a table (`costmodel.pricing.features.FEATURE_NAMES`), P = most pieces of a table, C = options (0 without a
choice), A = D + C actions.

Tables stand in the order in which they are placed: row `cursor` is the table about to be placed, rows before it are
placed, rows from `table_count` on are padding. Memory is given as a share of the task's largest device.

Size: `tables` is most of an observation (4 T F bytes: about 6 KB at 50 tables, 25 KB at 200). A rollout buffer of
Stable-Baselines3 holds a copy of it for each of its n_steps * n_envs steps: 8,192 steps of 50 tables take 50 MB.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from gymnasium import spaces

from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.problem.costs import PHASES
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

LIMIT = 1e9
"""Bound of the spaces whose numbers have none of their own (features, milliseconds)."""

PADDING = -2
"""Device of a piece that does not exist; `shardgym.UNPLACED` (-1) is one that waits for its device."""

FIELDS = (
    "tables",  # float32 (T * F): features of each table, in the format chosen for it; zero where padding
    "device_of",  # int16 (T * P): device of each piece, UNPLACED or PADDING
    "cursor",  # int16 (1): row of the table about to be placed; the last row once all are placed
    "table_count",  # int16 (1): tables of the task
    "current",  # float32 (F): features of the table (or piece) about to be placed
    "current_memory",  # float32 (1): its memory, a share of the largest device's
    "current_cost",  # float32 (1): its predicted cost alone on a device, ms
    "memory_left",  # float32 (D): a share of the largest device's memory; zero where there is no device
    "device_costs",  # float32 (D * 4): predicted ms of each phase on each device
    "device_exists",  # int8 (D): the task has this device
    "legal",  # int8 (A): the action may be taken now
)
OPTION_FIELDS = (
    "deciding",  # int8 (1): an option is to be chosen now; else a device
    "chosen",  # int16 (T): option chosen for each table, -1 before
    "option_memory",  # float32 (C): memory of one piece of the current table under each option
    "option_cost",  # float32 (C): its predicted cost alone, ms
    "option_pieces",  # float32 (C): pieces to place
    "option_price",  # float32 (C): accuracy price, a share of the budget; zero where nothing is priced
    "budget_left",  # float32 (1): accuracy budget left, a share of the whole; one where nothing is priced
)


@public("shardgym.envs")
@dataclass(frozen=True)
class Layout:
    """Sizes of an observation.

    Args:
        max_tables: T.
        max_devices: D.
        options: C, 0 where nothing but devices is chosen.
        max_pieces: P.
        features: F.
    """

    max_tables: int
    max_devices: int
    options: int = 0
    max_pieces: int = 1
    features: int = len(FEATURE_NAMES)

    def __post_init__(self) -> None:
        for name in ("max_tables", "max_devices"):
            value = getattr(self, name)
            if not isinstance(value, int | np.integer) or not 1 <= value <= np.iinfo(np.int16).max:
                raise InputError(f"{name} is {value!r}; give a whole number from 1 to {np.iinfo(np.int16).max}")

    def require_fit(self, tables: int, devices: int, name: str) -> None:
        """Refuse a task that is larger than the observation.

        Raises:
            InputError: it has too many tables or devices.
        """
        for what, has, most in (("tables", tables, self.max_tables), ("devices", devices, self.max_devices)):
            if has > most:
                raise InputError(f"task {name!r} has {has} {what} and max_{what} is {most}; raise max_{what}")

    @property
    def actions(self) -> int:
        """A: actions 0 to D - 1 are devices, actions D to D + C - 1 are options."""
        return self.max_devices + self.options

    def space(self) -> spaces.Dict:
        """The observation space."""
        T, D, C = self.max_tables, self.max_devices, self.options
        boxes: dict[str, spaces.Space] = {
            "tables": _floats(T * self.features, low=-LIMIT),
            "device_of": _shorts(T * self.max_pieces, PADDING, D - 1),
            "cursor": _shorts(1, 0, T),
            "table_count": _shorts(1, 0, T),
            "current": _floats(self.features, low=-LIMIT),
            "current_memory": _floats(1),
            "current_cost": _floats(1),
            "memory_left": _floats(D, high=1.0),
            "device_costs": _floats(D * len(PHASES)),
            "device_exists": _flags(D),
            "legal": _flags(self.actions),
        }
        if C:
            boxes |= {
                "deciding": _flags(1),
                "chosen": _shorts(T, -1, C - 1),
                "option_memory": _floats(C),
                "option_cost": _floats(C),
                "option_pieces": _floats(C, high=float(self.max_pieces)),
                "option_price": _floats(C),
                "budget_left": _floats(1, high=1.0),
            }
        return spaces.Dict(boxes)

    @classmethod
    def of(cls, space: spaces.Dict) -> "Layout":
        """The layout of an observation space that `space` made; a policy needs no more than that."""
        size = {name: box.shape[0] for name, box in space.spaces.items() if box.shape}
        features, devices = size["current"], size["device_exists"]
        tables = size["tables"] // features
        return cls(tables, devices, size["legal"] - devices, size["device_of"] // tables, features)

    def unflatten(self, observations: Mapping[str, Any]) -> dict[str, Any]:
        """Fields of a batch of observations (B, flat), NumPy arrays or tensors, with their axes back.

        Returns:
            tables (B, T, F), device_of (B, T, P), device_costs (B, D, 4), the others as they are (B, n), and those of
            one number as (B,).
        """
        axes = {
            "tables": (self.max_tables, self.features),
            "device_of": (self.max_tables, self.max_pieces),
            "device_costs": (self.max_devices, len(PHASES)),
        }
        alone = ("cursor", "table_count", "current_memory", "current_cost", "deciding", "budget_left")
        shaped = {}
        for name, flat in observations.items():
            shape = () if name in alone else axes.get(name, flat.shape[1:])
            shaped[name] = flat.reshape((flat.shape[0], *shape))
        return shaped


def _floats(size: int, low: float = 0.0, high: float = LIMIT) -> spaces.Box:
    return spaces.Box(low, high, (size,), np.float32)


def _shorts(size: int, low: int, high: int) -> spaces.Box:
    return spaces.Box(low, high, (size,), np.int16)


def _flags(size: int) -> spaces.Box:
    return spaces.Box(0, 1, (size,), np.int8)
