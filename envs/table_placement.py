"""`shardgym/TablePlacement-v1`: tables in a fixed order, each to a device."""

from typing import Any

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.settings import Order, Reward, Settings
from shardgym.envs.single import PlacingEnv
from shardgym.envs.table_options import AsGiven
from shardgym.envs.vector import VectorPlacingEnv
from shardgym.problem.faces import public

DEFAULT_TASKS = "dlrm-50x4"


@public("shardgym.envs")
class TablePlacement(PlacingEnv):
    """Place embedding tables on devices.

    ## Description
    A recommender model's embedding tables are to be placed on the devices that train it, so that a training step takes
    as little time as possible and every device has room. This is DreamShard's decision process: tables come one after
    another, most expensive first, and each is put on a device. A cost model predicts the latency of the step.

    ## Action Space
    `Discrete(max_devices)`: the device of the table at the cursor. `info["action_mask"]` and the observation's `legal`
    are exact: a device is legal when it exists and has room for the table.

    ## Observation Space
    A flat `Dict` of one-dimensional Boxes, padded to `max_tables` and `max_devices`: see
    `shardgym.envs.observation.FIELDS`, and `Layout.of(space).unflatten(batch)` to have their axes back.

    ## Starting State
    All devices are empty. Tables stand in descending predicted cost of each alone (`order="cost"`), fixed at reset.

    ## Rewards
    -0.01 a millisecond of predicted step latency: the sum over the phases (forward, its communication, backward
    communication, backward) of the slowest device's time. `reward="dense"` pays each step's change, `reward="sparse"`
    all at the end; the return is the same. A failed episode returns -0.01 * W * (1 + the share of tables not placed),
    W being the milliseconds of all tables alone, one after another: more than any plan takes.

    ## Episode End
    Terminated when every table is placed, when no device has room for the next one (`dead_end`), or by an illegal
    action, which changes nothing else. Never truncated.

    ## Information
    Always `action_mask` (int8, one per action). At the end `is_success`, `illegal_action`, `dead_end`; on success also
    `step_ms` and `decisions` (`.task()`, `.placement()`). At reset `cost_source`, what the costs were measured on.

    ## Arguments
    - `tasks="dlrm-50x4"`: a family ("dlrm-50x4/test" for its held-out half), a list of tasks, a task file, a function
      from a NumPy generator to a task, or an iterator of tasks. `reset(options={"task": ...})` gives one by number or
      as a `Task`.
    - `cost_model`: a `SummedCostModel`, or the path of a fitted model; by default the network shipped with the package.
    - `max_tables`, `max_devices`: sizes of the observation; by default what the tasks need.
    - `reward="dense"`: or "sparse".
    - `order="cost"`: or "bytes" (largest first) or "given".
    - `strict=False`: raise `IllegalActionError` at an illegal action instead of ending the episode.
    - `render_mode`: "ansi", "rgb_array" or "human".

    ## References
    Zha et al., DreamShard: Generalizable Embedding Table Placement for Recommender Systems, NeurIPS 2022,
    arXiv 2210.02023.

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
        settings = Settings.of(AsGiven(), tasks, cost_model, max_tables, max_devices, reward, order, strict)
        super().__init__(settings, render_mode)


@public("shardgym.envs")
class TablePlacementVector(VectorPlacingEnv):
    """N `TablePlacement` environments stepped together; keyword arguments are the same."""

    def __init__(
        self, num_envs: int = 1, tasks: Any = DEFAULT_TASKS, render_mode: str | None = None, **keywords: Any
    ) -> None:
        super().__init__(num_envs, Settings.of(AsGiven(), tasks, **keywords), render_mode)
