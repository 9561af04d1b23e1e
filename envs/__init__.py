"""The decision problem as Gymnasium environments, and the families of tasks they play.

Environments, registered under `shardgym/...-v1`; the page of each is its docstring
    `TablePlacement`: a device for each table. `TableSharding`: column shards first. `FormatPlacement`: a format and a
    device within an accuracy budget. `TablePlacementVector`, `TableShardingVector`, `FormatPlacementVector`: their
    vector twins, for `gymnasium.make_vec`.

Tasks
    `family("dlrm-50x4").task(0, "test")`: named families with training and test halves; `FAMILIES` lists them, each a
    `Family`. `TaskSource`: where an environment's tasks come from.

Observations and results
    `Layout.of(space).unflatten(batch)`: the fields with their axes; `FIELDS`, `OPTION_FIELDS`, `PADDING`.
    `info["decisions"]`: `Decisions`, the task and placement of a finished episode.
    `REWARD_PER_MS`, `IllegalActionError`, `DEFAULT_PRICES`.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
