"""Tasks and cost models that the planners' tests share."""

from itertools import product

import numpy as np

from shardgym.costmodel.pricing.additive import AdditiveCost
from shardgym.costmodel.pricing.exchange import Direction, PhysicalExchange
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.placements import Placement
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

ADDITIVE = AdditiveCost(np.array([[0.02, 1e-6, 4e-8, 2e-8], [0.03, 2e-6, 9e-8, 3e-8]]), np.array([0.05, 0.08]))


class FusedCost(SummedCostModel):
    """Sublinear in look-ups, linear in bytes moved: what is placed together matters. With an exchange."""

    exchange = PhysicalExchange(Direction(0.01, 0.002, 1e-8, 4e-8), Direction(0.01, 0.003, 1e-8, 5e-8))

    def table_states(self, task: Task):
        return on_grid(np.array([(t.pooling * 0.4 + 0.01, t.dim * 0.05, 1.0) for t in task.tables]))

    def compute_ms(self, states, task: Task):
        lookups, width, count = states[..., 0], states[..., 1], states[..., 2]
        return np.stack([np.sqrt(lookups) * 2 + width, 1.5 * lookups + 0.2 * np.sqrt(count)], axis=-1)


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
            # dim 1 in fp32 and the optimizer's number: 8 bytes per row.
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
