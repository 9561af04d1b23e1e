"""One episode, in plain numbers: the single environment's state, and the reference of its vector twin.

A table is encoded once. Placing a piece adds its state to the running sum of its device, and only that device's cost
is predicted again; a step therefore costs the same whether it is the first or the thousandth.
"""

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.decisions import Decisions
from shardgym.envs.encoding import EncodedTask
from shardgym.envs.observation import PADDING, Layout
from shardgym.envs.rewards import REWARD_PER_MS, IllegalActionError, failed_ms
from shardgym.envs.table_options import ROUNDING
from shardgym.problem.costs import BACKWARD, BACKWARD_COMM, FORWARD, FORWARD_COMM, PHASES, step_ms
from shardgym.problem.placements import UNPLACED

COMPUTE_SLICE = slice(FORWARD, BACKWARD + 1, BACKWARD - FORWARD)
"""`COMPUTE` as a slice, which numpy takes without a copy."""


class Step(NamedTuple):
    """What a step did: its reward, and whether and how the episode has ended."""

    reward: float
    done: bool
    complete: bool
    dead_end: bool
    illegal: bool


@dataclass
class Board:
    """Where an episode stands, for pictures and for reading its decisions. Shapes are the task's own, unpadded.

    Args:
        encoded: the task.
        row: tables placed.
        option: of the current table, -1 while it is to be chosen.
        chosen: (T,) options, rows in placing order.
        device_of: (T, P) devices.
        memory_left: (D,) bytes.
        costs: (D, 4) predicted ms.
    """

    encoded: EncodedTask
    row: int
    option: int
    chosen: NDArray[np.int16]
    device_of: NDArray[np.int16]
    memory_left: NDArray[np.int64]
    costs: NDArray[np.float32]


class Episode:
    """The state of one episode.

    Args:
        layout: sizes to pad observations to.
        cost_model: predicts device costs.
        dense: reward each step's change of the step latency, else the whole at the end.
        strict: raise on an illegal action.
    """

    def __init__(self, layout: Layout, cost_model: SummedCostModel, dense: bool, strict: bool) -> None:
        self.layout, self.cost_model, self.dense, self.strict = layout, cost_model, dense, strict
        self.decides = layout.options > 0

    def begin(self, encoded: EncodedTask) -> None:
        """Start on a task that fits the layout."""
        layout = self.layout
        T, D = len(encoded.order), encoded.task.devices
        self.encoded, self.T, self.D = encoded, T, D
        self.row, self.piece = 0, 0
        self.option = -1 if self.decides else 0
        self.chosen = np.full(layout.max_tables, self.option, np.int16)
        self.device_of = np.full(layout.max_tables * layout.max_pieces, PADDING, np.int16)
        self.device_of[: T * layout.max_pieces] = UNPLACED
        self.memory_left = np.full(layout.max_devices, -1, np.int64)  # -1: less than any table needs
        self.memory_left[:D] = encoded.task.device_memory
        self.sums = np.zeros((layout.max_devices, encoded.states.shape[-1]))
        self.volumes = np.zeros((D, encoded.volumes.shape[-1]))
        self.costs = np.zeros((layout.max_devices, len(PHASES)), np.float32)
        self.exchange = np.zeros(2, np.float32)
        self.tables = np.zeros((layout.max_tables, layout.features), np.float32)
        self.tables[:T] = encoded.features[0]
        self.budget_left = encoded.budget
        self.value_ms = 0.0
        self.exists = np.zeros(layout.max_devices, np.int8)
        self.exists[:D] = 1
        self.legal = np.zeros(layout.actions, np.int8)
        self._count = np.array([T], np.int16)
        self._unit = max(encoded.task.device_memory)
        self._update_legal()

    def step(self, action: int) -> Step:
        """Take one action.

        Raises:
            IllegalActionError: under `strict`, before anything is changed.
        """
        illegal = not (0 <= action < self.layout.actions and self.legal[action])
        if illegal:
            if self.strict:
                raise IllegalActionError(action, self.legal.copy())
            return Step(self._reward(True, False), True, False, False, True)
        if action < self.layout.max_devices:
            self._place(action)
        else:
            self._choose(action - self.layout.max_devices)
        complete = self.row >= self.T
        done = not self._update_legal()
        return Step(self._reward(done, complete), done, complete, done and not complete, False)

    def step_ms(self) -> float:
        """Predicted step latency of what is placed."""
        return float(step_ms(self.costs[:, COMPUTE_SLICE].max(axis=0), self.exchange))

    def board(self) -> Board:
        """Where the episode stands; arrays are copies."""
        T, P = self.T, self.layout.max_pieces
        return Board(
            self.encoded,
            self.row,
            self.option,
            self.chosen[:T].copy(),
            self.device_of[: T * P].reshape(T, P).copy(),  # (T * P,) -> (T, P)
            self.memory_left[: self.D].copy(),
            self.costs[: self.D].copy(),
        )

    def decisions(self) -> Decisions:
        """What the episode has decided, once all its tables are placed."""
        return Decisions(self.encoded, self.chosen.copy(), self.device_of.copy(), self.layout.max_pieces)

    def observe(self) -> dict[str, NDArray]:
        """The observation (see `observation.FIELDS`), of new arrays."""
        encoded, row, option = self.encoded, min(self.row, self.T - 1), max(self.option, 0)
        fields = {
            "tables": self.tables.reshape(-1).copy(),  # (T, F) -> (T * F,)
            "device_of": self.device_of.copy(),
            "cursor": np.array([row], np.int16),
            "table_count": self._count.copy(),
            "current": encoded.features[option, row].copy(),
            "current_memory": encoded.memory[option, row : row + 1].copy(),
            "current_cost": encoded.single_table_costs[option, row : row + 1].copy(),
            "memory_left": (np.maximum(self.memory_left, 0) / self._unit).astype(np.float32),
            "device_costs": self.costs.reshape(-1).copy(),  # (D, 4) -> (D * 4,)
            "device_exists": self.exists.copy(),
            "legal": self.legal.copy(),
        }
        if self.decides:
            budget = encoded.budget
            fields |= {
                "deciding": np.array([self.option < 0], np.int8),
                "chosen": self.chosen.copy(),
                "option_memory": encoded.memory[:, row].copy(),
                "option_cost": encoded.single_table_costs[:, row].copy(),
                "option_pieces": encoded.pieces[:, row].astype(np.float32),
                "option_price": (encoded.price[:, row] / (budget or 1.0)).astype(np.float32),
                "budget_left": np.array([max(self.budget_left, 0.0) / budget if budget else 1.0], np.float32),
            }
        return fields

    def _place(self, device: int) -> None:
        """Put the current piece on a device."""
        encoded, row, option = self.encoded, self.row, self.option
        self.memory_left[device] -= encoded.bytes[option, row]
        sums = self.sums[device]
        sums += encoded.states[option, row]
        self.volumes[device] += encoded.volumes[option, row]
        costs = self.costs
        costs[device, FORWARD], costs[device, BACKWARD] = self.cost_model.device_ms(sums, encoded.task, device)
        self.exchange = self.cost_model.exchange.ms(self.volumes, encoded.task.topology)
        costs[: self.D, FORWARD_COMM], costs[: self.D, BACKWARD_COMM] = self.exchange
        self.device_of[row * self.layout.max_pieces + self.piece] = device
        self.piece += 1
        if self.piece >= encoded.pieces[option, row]:
            self.row, self.piece = row + 1, 0
            self.option = -1 if self.decides else 0

    def _choose(self, option: int) -> None:
        """Choose an option for the current table."""
        self.option = self.chosen[self.row] = option
        self.budget_left -= self.encoded.price[option, self.row]
        self.tables[self.row] = self.encoded.features[option, self.row]

    def _update_legal(self) -> bool:
        """Find the legal actions; none once the episode is complete or stuck. Whether there is one."""
        row, D, legal = self.row, self.layout.max_devices, self.legal
        if row >= self.T:
            legal[:] = 0
            return False
        if self.option >= 0:
            np.greater_equal(self.memory_left, self.encoded.bytes[self.option, row], out=legal[:D], casting="unsafe")
            legal[D:] = 0
            return 1 in legal.tolist()
        legal[:D] = 0
        size, pieces = self.encoded.bytes[:, row], self.encoded.pieces[:, row]  # (C,)
        # Equal pieces fit wherever the devices' whole numbers of them add up.
        free = (np.maximum(self.memory_left, 0) // size[:, None]).sum(axis=1)
        affordable = self.encoded.price[:, row] <= self.budget_left + ROUNDING
        legal[D:] = (free >= pieces) & (pieces > 0) & affordable
        return bool(legal.any())

    def _reward(self, done: bool, complete: bool) -> float:
        if done and not complete:
            value = float(failed_ms(self.encoded.worst_ms, 1 - self.row / self.T))
        elif done or self.dense:
            value = self.step_ms()
        else:
            return 0.0
        reward = REWARD_PER_MS * (value - self.value_ms)
        if self.dense:
            self.value_ms = value
        return reward
