"""Whether everything that prices a placement says the same: asserted before anything is timed."""

import gymnasium as gym
import numpy as np

from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.agents.planners.search_state import SearchState
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.families import family
from shardgym.envs.rewards import REWARD_PER_MS
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

PLACEMENTS = 1000
LARGEST = 1e-6
"""Largest relative difference that summed rewards may have; prices themselves have none."""


def price_identity(model: SummedCostModel, names: tuple[str, ...] = ("dlrm-20x4", "dlrm-80x8", "mixed-50x4")) -> float:
    """Largest relative difference between the cost model's step and those of environment (its step and its summed
    rewards), search state and construction, over `PLACEMENTS` random placements.

    Raises:
        AssertionError: a price differs at all, or summed rewards by more than `LARGEST`.
    """
    worst = 0.0
    for name in names:
        task = family(name).task(0, "test")
        count = -(-PLACEMENTS // len(names))
        device_of = np.random.default_rng(0).integers(task.devices, size=(count, len(task.tables)))
        expected = model.costs(task, device_of).step
        costed = CostedTask.of(task, model)
        under_way = Construction(costed, count)
        while not under_way.done:
            under_way.place(device_of[:, under_way.table], under_way.costs_after())
        assert (under_way.steps() == expected).all(), "construction prices another step than the cost model"
        roomy = Task(task.tables, (2**50,) * task.devices, task.batch_size, task.name, task.topology)
        env = gym.make("shardgym/TablePlacement-v1", tasks=[roomy], cost_model=model, order="given")
        for row, step in zip(device_of, expected):
            assert SearchState(costed, row).step == step, "search prices another step than the cost model"
            assert float(model.cost(task, Placement.of(row)).step) == step, "one placement costs another step than many"
            env.reset()
            total = 0.0
            for device in row:
                _, reward, _, _, info = env.step(device)
                total += float(reward)
            assert info["step_ms"] == step, "the environment prices another step than the cost model"
            worst = max(worst, abs(total / REWARD_PER_MS / step - 1))
    assert worst <= LARGEST, f"summed rewards differ from the step by {worst}"
    return worst
