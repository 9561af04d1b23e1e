"""Cost models and small tasks that the environment tests share."""

import numpy as np

from shardgym.costmodel.pricing.additive import AdditiveCost, work
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.tasks import Task

COEFFICIENTS = np.array([[1e-3, 1e-9, 5e-10, 2e-10], [1e-3, 2e-9, 1e-9, 4e-10]])


def additive():
    """A fixed additive cost: a launch, and ms a table, a look-up, a number read and a number pooled."""
    return AdditiveCost(COEFFICIENTS, np.array([0.1, 0.2]))


class FusedCost(SummedCostModel):
    """A cost that is not additive, and that depends on the task's batch size and devices."""

    def table_states(self, task):
        """(T, 4): the work of each table."""
        return (work(task.tables, task.batch_size) * [1, 1e-6, 1e-7, 1e-6]).astype(np.float32)

    def device_costs(self, states, task):
        """(..., D, 4) to (..., D, 4) ms."""
        costs = np.sqrt(states) + np.log1p(states.sum(axis=-1, keepdims=True))
        costs[..., 1:3] *= task.devices - 1 + task.batch_size / 65536
        return costs.astype(np.float32)


def small_task(seed=0, tables=8, devices=3, room=2.0, **changes):
    """A task whose devices have `room` times an even share of its tables, unevenly."""
    specs = dlrm_like(tables, seed=seed)
    sizes = [spec.bytes() for spec in specs]
    share = max(int(room * sum(sizes) / devices), max(sizes))
    memory = tuple(share + d * share // 7 for d in range(devices))
    return Task(**({"tables": specs, "device_memory": memory, "batch_size": 4096, "name": f"small{seed}"} | changes))


def small_tasks():
    """Tasks of different sizes, devices, memory and batch size."""
    return [
        small_task(0),
        small_task(1, tables=5, devices=2, room=1.3),
        small_task(2, tables=11, devices=4, room=1.1, batch_size=65536),
        small_task(3, tables=3, devices=1, room=1.0),
    ]
