"""What a placement really costs: its shards run one after another on this machine."""

from collections.abc import Callable

import numpy as np

from shardgym.costmodel.measure import Meter
from shardgym.costmodel.placement import PHASES, Placement, StepCost, Task


class MeasuredCost:
    """Runs every device's shard here, in turn; the communication phases are not measured and are zero.

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
                phases[device, PHASES.index("forward")] = latency.forward_ms
                phases[device, PHASES.index("backward")] = latency.backward_ms
            self.progress(device)
        return StepCost(phases)
