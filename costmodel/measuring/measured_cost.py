"""What a placement really costs: its shards run one after another on this machine, its exchange by local processes."""

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.measuring.all_to_all import measure_exchanges
from shardgym.costmodel.measuring.meter import Meter
from shardgym.costmodel.pricing.exchange import sent_bytes
from shardgym.problem.costs import BACKWARD, FORWARD, PHASES, StepCost
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task


@public("shardgym.costmodel")
class MeasuredCost:
    """Runs every device's shard here, in turn; the communication phases are zero (see `exchange_costs`).

    Args:
        meter: times a group of tables.
        progress: called with each device when it has been measured.
    """

    def __init__(self, meter: Meter, progress: Callable[[int], None] = lambda device: None) -> None:
        self.meter = meter
        self.progress = progress

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Measured phases of each device, (D, 4) ms.

        Raises:
            InputError: when the placement is not legal.
        """
        placement.validate(task)
        phases = np.zeros((task.devices, len(PHASES)))
        for device in range(task.devices):
            tables = [task.tables[t] for t in placement.tables_on(device)]
            if tables:
                latency = self.meter.measure(tables, task.batch_size)
                phases[device, FORWARD] = latency.forward_ms
                phases[device, BACKWARD] = latency.backward_ms
            self.progress(device)
        return StepCost(phases)


def exchange_costs(task: Task, placements: Sequence[Placement]) -> Iterator[NDArray[np.float64]]:
    """Measured all-to-alls of placements, by as many gloo processes of this machine as the task has devices.

    Yields:
        (D, 2) ms of forward_comm and backward_comm on each device, for each placement.

    Raises:
        InputError: when the processes cannot be started.
    """
    for measured in measure_exchanges(task.devices, [sent_by(task, placement) for placement in placements]):
        yield measured[:, :, 0]  # the medians of (D, forward and backward, median and spread)


def sent_by(task: Task, placement: Placement) -> tuple[int, ...]:
    """Bytes that each device of a placement sends forward, (D,)."""
    bytes_of = [sent_bytes(table, task.batch_size) for table in task.tables]
    return tuple(sum(bytes_of[t] for t in placement.tables_on(device)) for device in range(task.devices))
