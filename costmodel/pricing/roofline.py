"""An ANALYTIC cost model, for tests and for studies without hardware: none of its numbers is a measurement.

Every phase is bounded by the bytes it moves and the operations it does (the roofline of Williams et al., CACM 2009).
Fusion is not additive for two reasons. A table alone may have too few bags to keep the memory busy, and fused tables
share it until its capacity is reached. And tables crowd each other out of the last-level cache, so that repeated reads
come from memory once the rows touched by all no longer fit.
"""

from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.exchange import OUTPUT_BYTES, Direction, Exchange, PhysicalExchange
from shardgym.costmodel.pricing.features import product_work, unique_rows
from shardgym.costmodel.pricing.roofline_machines import H100, Machine
from shardgym.costmodel.pricing.summed import SummedCostModel, on_grid
from shardgym.problem.faces import public
from shardgym.problem.tables import OPTIMIZER_BYTES_PER_ROW, ROW_BYTES, TableSpec
from shardgym.problem.tasks import Task

SHARPNESS = 4
"""Tables overlap like the SHARPNESS-norm of their times alone: close to the slowest of them."""
INDEX_BYTES = 8
SORT_PASSES = 4
"""Times that the backward reads and writes its ids to bring those of a row together."""

STATE = (
    "count", "touched_bytes",
    "forward_flow", "forward_repeated", "forward_alone", "backward_flow", "backward_repeated", "backward_alone",
)  # fmt: skip
"""What is summed over a device's tables: bytes, and milliseconds (those alone to the power `SHARPNESS`)."""


@public("shardgym.costmodel")
@dataclass(frozen=True)
class RooflineCost(SummedCostModel):
    """Analytic costs on one kind of machine.

    Args:
        machine: its constants.
    """

    machine: Machine = H100

    @property
    def measured_on(self) -> str:
        """What stands behind the numbers, for reports."""
        return f"no measurement: {self.machine.name}"

    @cached_property
    def exchange(self) -> Exchange:
        """The machine's link within a host, TorchRec's bandwidth between hosts; latency per collective."""
        one = Direction(
            1e3 * self.machine.link_latency, 1e3 * self.machine.peer_latency, 0.0, 1e3 / self.machine.link_bandwidth
        )
        return PhysicalExchange(one, one, self.machine.devices_per_host)

    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device, (T, 8) in the order of `STATE`."""
        return on_grid(np.array([self._state(table, task.batch_size) for table in task.tables]))

    def compute_ms(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """(..., 8) to (..., 2) ms. Neither phase falls when a table is added."""
        part = {name: states[..., k].astype(np.float64) for k, name in enumerate(STATE)}
        # The share of repeated reads that the cache no longer holds.
        slower = self._slower_ms(part["touched_bytes"])
        ms = np.zeros((*states.shape[:-1], 2), dtype=np.float32)
        for k, phase in enumerate(("forward", "backward")):
            flow = part[f"{phase}_flow"] + part[f"{phase}_repeated"] * slower
            # The fourth root as two square roots: these are exact to the last digit on every processor.
            together = np.maximum(flow, np.sqrt(np.sqrt(part[f"{phase}_alone"])))
            ms[..., k] = self._overhead_ms(part["count"]) * (part["count"] > 0) + together
        return ms

    def table_floors(self, task: Task) -> NDArray[np.float32]:
        """Ms that a device surely computes for each table, whatever is beside it, (T, 2)."""
        states = self.table_states(task)
        touched = states[:, STATE.index("touched_bytes")].astype(np.float64)
        floors = np.zeros((len(states), 2), dtype=np.float32)
        for k, phase in enumerate(("forward", "backward")):
            flow = states[:, STATE.index(f"{phase}_flow")]
            # Other tables only crowd the cache further.
            repeated = states[:, STATE.index(f"{phase}_repeated")] * self._slower_ms(touched)
            floors[:, k] = flow + repeated + 1e3 * self.machine.table_overhead
        return floors

    def total_floor(self, task: Task) -> NDArray[np.float64]:
        """Ms that all devices together spend on the tables at least, launches left out, (2,).

        On a device the share min(1, cache / touched bytes) of every table's repeated reads hits, so that the tables'
        hits fill no more than all caches: the best that can hit is a fractional knapsack.
        """
        states = self.table_states(task).astype(np.float64)
        total = super().total_floor(task)
        touched = states[:, STATE.index("touched_bytes")]
        held = np.minimum(touched, self.machine.cache_bytes)  # no table hits more than its part of one cache
        for k, phase in enumerate(("forward", "backward")):
            repeated = states[:, STATE.index(f"{phase}_repeated")]
            density = repeated / np.maximum(touched, 1.0)
            best = np.argsort(-density)
            room = task.devices * self.machine.cache_bytes - (np.cumsum(held[best]) - held[best])
            hits = (density[best] * np.clip(room, 0.0, held[best])).sum()
            misses = (repeated.sum() - hits) * (self._memory_ms(1.0) - self._cache_ms(1.0))
            flow = states[:, STATE.index(f"{phase}_flow")].sum() + 1e3 * self.machine.table_overhead * len(states)
            total[k] = max(total[k], flow + misses)
        return total

    def launch_floor(self, task: Task) -> NDArray[np.float32]:
        """Starting the ops, (2,) ms."""
        return np.full(2, 1e3 * self.machine.launch, dtype=np.float32)

    def _slower_ms(self, touched: NDArray[np.float64]) -> NDArray[np.float64]:
        """Ms that a repeated byte takes longer for not being in the cache, by the bytes that a device touches."""
        misses = 1 - 1 / np.maximum(1, touched / self.machine.cache_bytes)
        return misses * (self._memory_ms(1.0) - self._cache_ms(1.0))

    def _state(self, table: TableSpec, batch_size: int) -> list[float]:
        lookups = batch_size * table.pooling / table.dedup.factor()
        unique = unique_rows(table, lookups)
        access = max(self.machine.access_bytes, _row_bytes(table))
        output = batch_size * table.dim * OUTPUT_BYTES
        ids = lookups * INDEX_BYTES
        repeated = (lookups - unique) * access
        update = 2 * unique * (access + OPTIMIZER_BYTES_PER_ROW)
        first = {"forward": unique * access + ids + output, "backward": update + 2 * SORT_PASSES * ids + output}
        again = {"forward": repeated, "backward": max(0.0, lookups - batch_size) * table.dim * OUTPUT_BYTES}
        product = 2.0 * product_work(table.tensor_train.core_shapes()) if table.tensor_train else 0.0
        # A backward of products goes through them twice more: for the gradient of either side.
        flops = {
            "forward": lookups * table.dim + unique * product,
            "backward": lookups * table.dim + 2 * unique * product,
        }
        full, alone = self._efficiency(self.machine.bags_in_flight, access), self._efficiency(batch_size, access)
        state = [1.0, float(round(unique * access))]
        for phase in ("forward", "backward"):
            compute = 1e3 * flops[phase] / self.machine.flops
            flow = max(compute, self._memory_ms(first[phase]) / full + self._cache_ms(again[phase]))
            alone_ms = max(flow, self._memory_ms(first[phase]) / alone + self._cache_ms(again[phase]))
            state += [flow, again[phase], alone_ms**SHARPNESS]
        return state

    def _efficiency(self, bags: int, access: float) -> float:
        """Share of the memory bandwidth that so many bags can ask for (Little's law)."""
        in_flight = min(bags, self.machine.bags_in_flight) * max(access, self.machine.bytes_in_flight)
        return min(1.0, in_flight / (self.machine.memory_bandwidth * self.machine.memory_latency))

    def _memory_ms(self, moved: float) -> float:
        return 1e3 * moved / self.machine.memory_bandwidth

    def _cache_ms(self, moved: float) -> float:
        return 1e3 * moved / self.machine.cache_bandwidth

    def _overhead_ms(self, tables: NDArray[np.float64]) -> NDArray[np.float64]:
        return 1e3 * (self.machine.launch + tables * self.machine.table_overhead)


def _row_bytes(table: TableSpec) -> float:
    """Bytes of one row as it is read: the row, or the slices of the cores that make it."""
    if table.tensor_train is None:
        return ROW_BYTES[table.dtype](table.dim)
    slices = sum(rank * q * next_rank for _, rank, q, next_rank in table.tensor_train.core_shapes())
    return float(ROW_BYTES[table.dtype](slices))
