"""`shardgym/TableSharding-v1`: tables are split by columns before their shards are placed."""

from typing import Any

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.settings import Order, Reward, Settings
from shardgym.envs.single import PlacingEnv
from shardgym.envs.table_options import ColumnSplits
from shardgym.envs.vector import VectorPlacingEnv
from shardgym.problem.faces import public

DEFAULT_TASKS = "dlrm-50x4"


@public("shardgym.envs")
class TableSharding(PlacingEnv):
    """Split embedding tables by columns, and place the shards.

    ## Description
    As `shardgym/TablePlacement-v1`, with one more decision: each table is first cut into 1, 2, 4 or 8 column shards of
    equal dim, which are then placed one after another. A split evens out load and memory, and costs each shard a
    look-up of its own.

    ## Action Space
    `Discrete(max_devices + 4)`: actions below `max_devices` place the shard in hand, the four behind them choose 1, 2,
    4 or 8 shards. Both decisions are steps of their own; the observation's `deciding` flag says which one is due, and
    `legal` and `info["action_mask"]` are exact: a split is legal when the shards' dim is a multiple of 4, the table is
    dense, and the devices have room for all shards.

    ## Observation Space
    As `TablePlacement`, with `shardgym.envs.observation.OPTION_FIELDS`; `device_of` has 8 places per table, and the
    row of a table in `tables` shows one of its shards once it is split.

    ## Starting State
    As `TablePlacement`.

    ## Rewards
    As `TablePlacement`. Choosing a split changes no latency and pays 0.

    ## Episode End
    As `TablePlacement`; a dead end is a table that fits under no split.

    ## Information
    As `TablePlacement`. `decisions.task()` has the shards as tables named `table/0`, `table/1`, ...

    ## Arguments
    As `TablePlacement`.

    ## References
    Zha et al., NeuroShard: Pre-train and Search, MLSys 2023, arXiv 2305.01868 (column splits).

    ## Version History
    - v0: first release.
    """

    def __init__(
        self,
        tasks: Any = DEFAULT_TASKS,
        cost_model: SummedCostModel | str | None = None,
        max_tables: int | None = None,
        max_devices: int | None = None,
        reward: Reward = "dense",
        order: Order = "cost",
        strict: bool = False,
        render_mode: str | None = None,
    ) -> None:
        settings = Settings.of(ColumnSplits(), tasks, cost_model, max_tables, max_devices, reward, order, strict)
        super().__init__(settings, render_mode)


@public("shardgym.envs")
class TableShardingVector(VectorPlacingEnv):
    """N `TableSharding` environments stepped together; keyword arguments are the same."""

    def __init__(
        self, num_envs: int = 1, tasks: Any = DEFAULT_TASKS, render_mode: str | None = None, **keywords: Any
    ) -> None:
        super().__init__(num_envs, Settings.of(ColumnSplits(), tasks, **keywords), render_mode)
