"""The ids that `gymnasium.make("shardgym:...")` knows."""

from typing import Any, NoReturn

import gymnasium as gym

ENTRY_POINTS = {
    "shardgym/TablePlacement-v1": "shardgym.envs:TablePlacement",
    "shardgym/TableSharding-v1": "shardgym.envs:TableSharding",
    "shardgym/FormatPlacement-v1": "shardgym.envs:FormatPlacement",
}
"""Class of each id; its vector twin is named the same with `Vector` behind."""

RETIRED = tuple(name.replace("-v1", "-v0") for name in ENTRY_POINTS)
"""Ids whose rewards left the exchange between devices out."""


def register_all() -> None:
    """Register every id once; importing the package twice, as `spawn` does, changes nothing."""
    for name, entry_point in ENTRY_POINTS.items():
        if name not in gym.registry:
            # Strings, so that a spec can be written to JSON. No step limit: an episode ends by itself.
            gym.register(name, entry_point=entry_point, vector_entry_point=f"{entry_point}Vector")
    for name in RETIRED:
        if name not in gym.registry:
            refuse = "shardgym.registration:refuse_retired"
            gym.register(name, entry_point=refuse, vector_entry_point=refuse, kwargs={"retired": name})


def refuse_retired(retired: str, **keywords: Any) -> NoReturn:
    """What a retired id makes.

    Raises:
        gymnasium.error.DeprecatedEnv: always; it names the fault and the id to use.
    """
    raise gym.error.DeprecatedEnv(
        f"{retired} left the exchange between devices out of its rewards, so that its steps were too short; use "
        f"{retired.replace('-v0', '-v1')}, whose rewards are the cost model's whole step"
    )
