"""The ids that `gymnasium.make("shardgym:...")` knows."""

import gymnasium as gym

ENTRY_POINTS = {
    "shardgym/TablePlacement-v0": "shardgym.envs:TablePlacement",
    "shardgym/TableSharding-v0": "shardgym.envs:TableSharding",
    "shardgym/FormatPlacement-v0": "shardgym.envs:FormatPlacement",
}
"""Class of each id; its vector twin is named the same with `Vector` behind."""


def register_all() -> None:
    """Register every id once; importing the package twice, as `spawn` does, changes nothing."""
    for name, entry_point in ENTRY_POINTS.items():
        if name not in gym.registry:
            # Strings, so that a spec can be written to JSON. No step limit: an episode ends by itself.
            gym.register(name, entry_point=entry_point, vector_entry_point=f"{entry_point}Vector")
