"""Tasks and cost models that the planners' tests share."""

from itertools import product

import numpy as np

from shardgym.costmodel.pricing.additive import AdditiveCost
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.costs import PHASES
from shardgym.problem.placements import Placement
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

ADDITIVE = AdditiveCost(np.array([[0.02, 1e-6, 4e-8, 2e-8], [0.03, 2e-6, 9e-8, 3e-8]]), np.array([0.05, 0.08]))


class FusedCost(SummedCostModel):
    """Sublinear in look-ups, linear in bytes moved: what is placed together matters. With communication."""

    def table_states(self, task: Task):
        work = np.array([(t.pooling * 0.4 + 0.01, t.dim * 0.05, 1.0) for t in task.tables])
        return work.astype(np.float32)

    def device_costs(self, states, task: Task):
        costs = np.zeros((*states.shape[:-1], len(PHASES)), dtype=np.float32)
        lookups, width, count = states[..., 0], states[..., 1], states[..., 2]
        costs[..., 0] = lookups**0.8 + width
        costs[..., 1] = width / task.devices
        costs[..., 2] = width / task.devices
        costs[..., 3] = 1.5 * lookups + 0.2 * np.sqrt(count)
        return costs


def make_task(tables: int, devices: int, seed: int = 0, slack: float = 1.4, name: str = "case") -> Task:
    """A task of generated tables; memory is `slack` times an even share, and room for the largest table."""
    specs = dlrm_like(tables, seed)
    sizes = [spec.bytes() for spec in specs]
    memory = int(max(sum(sizes) / devices * slack, max(sizes)))
    return Task(specs, (memory,) * devices, batch_size=4096, name=name)


def packed_task(devices: int, pieces: int, seed: int = 0, slack: float = 1.0) -> Task:
    """A task with a known plan that fills each device to 1 / slack of its memory."""
    rng = np.random.default_rng(seed)
    capacity = 1_000_000
    tables = []
    for device in range(devices):
        cuts = np.sort(rng.choice(np.arange(1, capacity // 8), pieces - 1, replace=False))
        for k, rows in enumerate(np.diff([0, *cuts, capacity // 8])):
            # dim 1 in fp32 and the optimizer's number: 8 bytes a row.
            tables.append(TableSpec(f"t{device}_{k}", int(rows), 1, pooling=float(rng.uniform(0.1, 40))))
    order = rng.permutation(len(tables))
    return Task(tuple(tables[k] for k in order), (int(capacity * slack),) * devices, 1024, "packed")


def best_by_enumeration(task: Task, model: SummedCostModel) -> tuple[Placement, float]:
    """The legal placement with the least step, by trying them all."""
    device_of = np.array(list(product(range(task.devices), repeat=len(task.tables))))
    used = np.stack([(device_of == d) @ task.table_bytes for d in range(task.devices)], axis=1)
    device_of = device_of[(used <= np.array(task.device_memory)).all(axis=1)]
    steps = model.costs(task, device_of).step
    best = int(steps.argmin())
    return Placement.of(device_of[best]), float(steps[best])


def step_of(task: Task, model: SummedCostModel, placement: Placement) -> float:
    """Step of a placement, after checking that it is legal."""
    placement.validate(task)
    return float(model.cost(task, placement).step)
