"""`shardgym/FormatPlacement-v1`: tables get a format, within an accuracy budget, and then a device."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.prices import DEFAULT_BUDGET, read_prices
from shardgym.envs.settings import Order, Reward, Settings
from shardgym.envs.single import PlacingEnv
from shardgym.envs.table_options import Formats
from shardgym.envs.vector import VectorPlacingEnv
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

DEFAULT_TASKS = "overfull-50x4"
Prices = Mapping[str, float] | str | Path | None


@public("shardgym.envs")
class FormatPlacement(PlacingEnv):
    """Choose a format for each embedding table, and place it, where the dense tables do not fit.

    ## Description
    As `shardgym/TablePlacement-v1`, under memory that the fp32 tables exceed. Each table is first given a format:
    dense fp32, dense fp16, int8, or an fp32 tensor train of rank 32 or 16. A format has its memory, its predicted
    latency and a price in accuracy; the prices of all tables must stay within a budget.

    ## Action Space
    `Discrete(max_devices + 5)`: actions below `max_devices` place the table in hand, the five behind them choose fp32,
    fp16, int8, tt32 or tt16. Both decisions are steps of their own; the observation's `deciding` flag says which one is
    due, and `legal` and `info["action_mask"]` are exact: a format is legal when some device has room for the table in
    it and the budget affords it.

    ## Observation Space
    As `TablePlacement`, with `shardgym.envs.observation.OPTION_FIELDS`; the row of a table in `tables` shows it in
    fp32 until its format is chosen.

    ## Starting State
    As `TablePlacement`, and the accuracy budget is whole. The format that a task gives a table is not looked at.

    ## Rewards
    As `TablePlacement`. Choosing a format changes no latency and pays 0; accuracy is a limit, not a reward.

    ## Episode End
    As `TablePlacement`; a dead end is a table that fits in no format that can still be afforded.

    ## Information
    As `TablePlacement`. `decisions.task()` has the tables in their formats.

    ## Arguments
    As `TablePlacement`, with `tasks="overfull-50x4"`, and
    - `prices`: points of accuracy by format, as a mapping or a JSON file; see `shardgym.envs.prices` for the default
      and what it rests on.
    - `accuracy_budget=0.6`: points that a task may spend, an average over its tables.

    ## References
    Yin et al., TT-Rec: Tensor Train Compression for Deep Learning Recommendation Models, MLSys 2021, arXiv 2101.11714.

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
        prices: Prices = None,
        accuracy_budget: float = DEFAULT_BUDGET,
    ) -> None:
        rules = _formats(prices, accuracy_budget)
        settings = Settings.of(rules, tasks, cost_model, max_tables, max_devices, reward, order, strict)
        super().__init__(settings, render_mode)


@public("shardgym.envs")
class FormatPlacementVector(VectorPlacingEnv):
    """N `FormatPlacement` environments stepped together; keyword arguments are the same."""

    def __init__(
        self,
        num_envs: int = 1,
        tasks: Any = DEFAULT_TASKS,
        render_mode: str | None = None,
        prices: Prices = None,
        accuracy_budget: float = DEFAULT_BUDGET,
        **keywords: Any,
    ) -> None:
        settings = Settings.of(_formats(prices, accuracy_budget), tasks, **keywords)
        super().__init__(num_envs, settings, render_mode)


def _formats(prices: Prices, accuracy_budget: float) -> Formats:
    if not 0 <= accuracy_budget < float("inf"):
        raise InputError(f"accuracy_budget is {accuracy_budget!r}; give points per table of 0 or more")
    return Formats(read_prices(prices), accuracy_budget)
