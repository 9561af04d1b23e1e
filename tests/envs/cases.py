"""Cost models and small tasks that the environment tests share."""

import numpy as np

from shardgym.costmodel.pricing.additive import AdditiveCost, work
from shardgym.costmodel.pricing.exchange import Direction, PhysicalExchange
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.tasks import Task

COEFFICIENTS = np.array([[1e-3, 1e-9, 5e-10, 2e-10], [1e-3, 2e-9, 1e-9, 4e-10]])


def additive():
    """A fixed additive cost: a launch, and ms per table, a look-up, a number read and a number pooled."""
    return AdditiveCost(COEFFICIENTS, np.array([0.1, 0.2]))


class FusedCost(SummedCostModel):
    """A cost that is not additive, that depends on the task's batch size and devices, and that has an exchange."""

    exchange = PhysicalExchange(Direction(0.1, 0.02, 1e-8, 4e-8), Direction(0.1, 0.03, 1e-8, 5e-8))

    def table_states(self, task):
        """(T, 4): the work of each table."""
        return on_grid(work(task.tables, task.batch_size) * [1, 1e-6, 1e-7, 1e-6])

    def compute_ms(self, states, task):
        """(..., 4) to (..., 2) ms."""
        total = states[..., 0] + states[..., 1] + states[..., 2] + states[..., 3]
        ms = np.stack([np.sqrt(total) + states[..., 1], np.sqrt(total) * 2 + states[..., 2]], axis=-1)
        return ms * np.float32(1 + task.batch_size / 65536)


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
