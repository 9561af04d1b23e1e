"""N concurrent episodes as NumPy arrays: `episode.Episode`, N times at once.

Arrays are padded; `store` holds what is static, so that episodes of one task share it.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.decisions import Decisions
from shardgym.envs.episode import Board
from shardgym.envs.observation import PADDING
from shardgym.envs.rewards import REWARD_PER_MS, IllegalActionError, failed_ms
from shardgym.envs.table_options import ROUNDING
from shardgym.envs.task_store import NO_SLOT, TaskStore
from shardgym.problem.costs import COMPUTE, EXCHANGE, PHASES, StepCost
from shardgym.problem.placements import UNPLACED
from shardgym.problem.tasks import Task


@dataclass(frozen=True)
class Outcome:
    """What a step did to each of N episodes.

    Args:
        reward: (N,) float64.
        done: (N,) bool, the episode has ended: complete, dead_end or illegal.
        complete: (N,) bool, every table is placed.
        dead_end: (N,) bool, the next table fits nowhere.
        illegal: (N,) bool, the action was not legal and changed nothing.
    """

    reward: NDArray[np.float64]
    done: NDArray[np.bool_]
    complete: NDArray[np.bool_]
    dead_end: NDArray[np.bool_]
    illegal: NDArray[np.bool_]


class Episodes:
    """The state of N episodes; their tasks may differ in tables, devices and memory.

    Args:
        count: N.
        store: where tasks are encoded.
        cost_model: predicts device costs.
        dense: reward each step's change of the step latency, else the whole at the end.
        strict: raise on an illegal action.
    """

    def __init__(self, count: int, store: TaskStore, cost_model: SummedCostModel, dense: bool, strict: bool) -> None:
        layout = store.layout
        self.count, self.store, self.layout, self.cost_model = count, store, layout, cost_model
        self.dense, self.strict = dense, strict
        N, T, D, P = count, layout.max_tables, layout.max_devices, layout.max_pieces
        self.decides = layout.options > 0
        self._all = np.arange(N)
        self.slot = np.full(N, NO_SLOT)
        self.tables_of = np.ones(N, np.int64)
        self.devices_of = np.ones(N, np.int64)
        self.row = np.zeros(N, np.int64)  # tables placed; `cursor` is this, clamped to the last row
        self.piece = np.zeros(N, np.int64)  # pieces of the current table that are placed
        self.option = np.zeros(N, np.int64)  # of the current table; -1 while it is to be chosen
        self.device_of = np.full((N, T * P), PADDING, np.int16)
        self.chosen = np.full((N, T), -1 if self.decides else 0, np.int16)
        self.memory_left = np.full((N, D), -1)  # bytes
        self.memory_unit = np.ones((N, 1))
        self.budget_left = np.zeros(N)
        self.budget = np.zeros(N)
        self.worst_ms = np.zeros(N)
        self.value_ms = np.zeros(N)
        self.sums = np.zeros((N, D, 0))  # (N, D, H) states
        self.volumes = np.zeros((N, D, 0))  # (N, D, V) what devices send
        self.costs = np.zeros((N, D, len(PHASES)), np.float32)
        self.exists = np.zeros((N, D), np.int8)
        self.legal = np.zeros((N, layout.actions), np.int8)
        # Replaced, never written to, once it has been observed.
        self.tables = np.zeros((N, T * layout.features), np.float32)
        self._one_context = True

    def begin(self, episodes: NDArray[np.int64], tasks: Sequence[Task]) -> None:
        """Start some of the episodes, (n,) numbers, on new tasks, one each.

        Raises:
            InputError: a task does not fit the layout or its devices.
        """
        store, rows = self.store, episodes
        for slot in self.slot[rows].tolist():
            store.give_back(slot)
        self.slot[rows] = NO_SLOT
        slots = np.array([store.take(task) for task in tasks])
        if self.sums.shape[-1] != store.rows.states.shape[-1]:
            self.sums = np.zeros((*self.sums.shape[:-1], store.rows.states.shape[-1]))
            self.volumes = np.zeros((*self.sums.shape[:-1], store.volumes.shape[-1]))
        self.slot[rows] = slots
        self.tables_of[rows] = store.tables_of[slots]
        self.devices_of[rows] = store.devices_of[slots]
        self.budget[rows] = self.budget_left[rows] = store.budget[slots]
        self.worst_ms[rows] = store.worst_ms[slots]
        self.row[rows] = self.piece[rows] = self.value_ms[rows] = 0
        self.sums[rows] = 0
        self.volumes[rows] = 0
        self.costs[rows] = 0
        self.option[rows] = self.chosen[rows] = -1 if self.decides else 0
        padding = np.arange(self.layout.max_tables) >= self.tables_of[rows, None]  # (n, T)
        self.device_of[rows] = np.where(padding, PADDING, UNPLACED).repeat(self.layout.max_pieces, axis=1)
        self.memory_left[rows] = store.device_memory[slots]
        self.memory_unit[rows] = self.memory_left[rows].max(axis=1, keepdims=True)
        self.exists[rows] = np.arange(self.layout.max_devices) < self.devices_of[rows, None]
        tables = np.empty_like(self.tables) if len(rows) == self.count else self.tables.copy()
        tables[rows] = store.rows.features[store.index[slots, 0]].reshape(len(rows), -1)  # (n, T, F) -> (n, T * F)
        self.tables = tables
        contexts = store.context[self.slot]
        self._one_context = bool((contexts == contexts[0]).all())
        self._update_legal()

    def step(self, actions: NDArray[np.integer]) -> Outcome:
        """Take one action in each episode, (N,).

        Raises:
            IllegalActionError: under `strict`, before anything is changed.
        """
        inside = np.minimum(np.maximum(actions, 0), self.layout.actions - 1)
        allowed = (inside == actions) & (self.legal[self._all, inside] != 0)
        every = bool(allowed.all())
        if self.strict and not every:
            self._refuse(actions, allowed)
        if self.decides:
            devices = allowed & (inside < self.layout.max_devices)
            options = allowed & ~devices
            self._choose(self._all[options], inside[options] - self.layout.max_devices)
            self._place(self._all[devices], inside[devices])
        elif every:
            self._place(self._all, inside)
        else:
            self._place(self._all[allowed], inside[allowed])
        complete = self.row >= self.tables_of
        self._update_legal()
        stuck = ~self.legal.any(axis=1)
        illegal, dead_end = ~allowed, stuck & ~complete & allowed
        done = stuck | illegal
        return Outcome(self._reward(done, complete & allowed), done, complete & allowed, dead_end, illegal)

    def cursor(self) -> NDArray[np.int64]:
        """(N,) row of the table about to be placed; the last row once all are placed."""
        return np.minimum(self.row, self.tables_of - 1)

    def step_ms(self) -> NDArray[np.float64]:
        """(N,) predicted step latency of what is placed."""
        return StepCost(self.costs).step

    def board(self, n: int) -> Board:
        """Where episode n stands; arrays are copies."""
        T, D, P = int(self.tables_of[n]), int(self.devices_of[n]), self.layout.max_pieces
        return Board(
            self.store.encoded[self.slot[n]],
            int(self.row[n]),
            int(self.option[n]),
            self.chosen[n, :T].copy(),
            self.device_of[n, : T * P].reshape(T, P).copy(),  # (T * P,) -> (T, P)
            self.memory_left[n, :D].copy(),
            self.costs[n, :D].copy(),
        )

    def decisions(self, which: NDArray[np.int64]) -> list[Decisions]:
        """What some episodes, (n,) numbers, have decided, once all their tables are placed."""
        encoded, P = self.store.encoded, self.layout.max_pieces
        rows = zip(self.slot[which].tolist(), self.chosen[which], self.device_of[which])
        return [Decisions(encoded[slot], chosen, device_of, P) for slot, chosen, device_of in rows]

    def observe(self) -> dict[str, NDArray]:
        """The observations of all episodes (see `observation.FIELDS`); only `tables` is not a copy."""
        store, slot, cursor = self.store, self.slot, self.cursor()
        option = np.maximum(self.option, 0)
        fields = {
            "tables": self.tables,
            "device_of": self.device_of.copy(),
            "cursor": cursor[:, None].astype(np.int16),
            "table_count": self.tables_of[:, None].astype(np.int16),
            "current": store.rows.features.take(store.index[slot, option, cursor], axis=0),
            "current_memory": store.memory[slot, option, cursor][:, None],
            "current_cost": store.single_table_costs[slot, option, cursor][:, None],
            "memory_left": (np.maximum(self.memory_left, 0) / self.memory_unit).astype(np.float32),
            "device_costs": self.costs.reshape(self.count, -1).copy(),  # (N, D, 4) -> (N, D * 4)
            "device_exists": self.exists.copy(),
            "legal": self.legal.copy(),
        }
        if self.decides:
            whole = np.where(self.budget > 0, self.budget, 1.0)[:, None]
            left = np.where(self.budget > 0, self.budget_left, 1.0)[:, None]
            fields |= {
                "deciding": (self.option < 0)[:, None].astype(np.int8),
                "chosen": self.chosen.copy(),
                "option_memory": store.memory[slot, :, cursor],
                "option_cost": store.single_table_costs[slot, :, cursor],
                "option_pieces": store.pieces[slot, :, cursor].astype(np.float32),
                "option_price": (store.price[slot, :, cursor] / whole).astype(np.float32),
                "budget_left": np.clip(left / whole, 0, 1).astype(np.float32),
            }
        return fields

    def _place(self, rows: NDArray[np.int64], devices: NDArray[np.int64]) -> None:
        """Put the current piece of each episode in `rows` on a device."""
        if not len(rows):
            return
        slot, row, option = self.slot[rows], self.row[rows], self.option[rows]
        self.memory_left[rows, devices] -= self.store.bytes[slot, option, row]
        sums = self._add_states(rows * self.layout.max_devices + devices, self.store.index[slot, option, row])
        self.volumes[rows, devices] += self.store.volumes[slot, option, row]
        self._price(rows, devices, sums)
        if not self.decides:
            self.device_of[rows, row] = devices
            self.row[rows] = row + 1
            return
        piece = self.piece[rows]
        self.device_of[rows, row * self.layout.max_pieces + piece] = devices
        last = piece + 1 >= self.store.pieces[slot, option, row]
        self.piece[rows] = np.where(last, 0, piece + 1)
        self.row[rows] = row + last
        self.option[rows] = np.where(last, -1, option)

    def _add_states(self, places: NDArray[np.int64], tables: NDArray[np.int64]) -> NDArray[np.float64]:
        """Add states, rows of the store, to the sums of devices, counted through all episodes; the new sums (n, H)."""
        H = self.sums.shape[-1]
        all_sums = self.sums.reshape(-1, H)  # (N, D, H) -> (N * D, H), a view
        sums = all_sums.take(places, axis=0)
        sums += self.store.rows.states.take(tables, axis=0)
        all_sums[places] = sums
        return sums

    def _choose(self, rows: NDArray[np.int64], options: NDArray[np.int64]) -> None:
        """Choose an option for the current table of each episode in `rows`."""
        if not len(rows):
            return
        slot, row = self.slot[rows], self.row[rows]
        self.option[rows] = self.chosen[rows, row] = options
        self.budget_left[rows] -= self.store.price[slot, options, row]
        tables = self.tables.copy()
        # (N, T * F) -> (N, T, F), a view
        shaped = tables.reshape(self.count, self.layout.max_tables, self.layout.features)
        shaped[rows, row] = self.store.rows.features[self.store.index[slot, options, row]]
        self.tables = tables

    def _price(self, rows: NDArray[np.int64], devices: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
        """Price again what placing changed: the compute of one device, with sums (n, H), and the exchange."""
        contexts = self.store.context[self.slot[rows]]
        if self._one_context:
            self._price_alike(rows, devices, sums)
            return
        for context in np.unique(contexts):
            here = np.flatnonzero(contexts == context)
            self._price_alike(rows[here], devices[here], sums[here])

    def _price_alike(self, rows: NDArray[np.int64], devices: NDArray[np.int64], sums: NDArray[np.float64]) -> None:
        """The same for episodes whose tasks agree in all that a price depends on beside the tables."""
        task = self.store.encoded[self.slot[rows[0]]].task
        compute = self.cost_model.device_ms(sums, task, devices)
        exchange = self.cost_model.exchange.ms(self.volumes[rows, : task.devices], task.topology)
        for k in range(2):
            self.costs[rows, devices, COMPUTE[k]] = compute[:, k]
            self.costs[rows, : task.devices, EXCHANGE[k]] = exchange[:, None, k]

    def _update_legal(self) -> None:
        """Which actions each episode may take now; none once it is complete or stuck."""
        slot, cursor, D = self.slot, self.cursor(), self.layout.max_devices
        open_ = (self.row < self.tables_of)[:, None]
        need = self.store.bytes[slot, np.maximum(self.option, 0), cursor][:, None]
        placing = (self.memory_left >= need) & open_
        if not self.decides:
            self.legal[:] = placing
            return
        deciding = (self.option < 0)[:, None]
        self.legal[:, :D] = placing & ~deciding
        size, pieces = self.store.bytes[slot, :, cursor], self.store.pieces[slot, :, cursor]  # (N, C)
        # Equal pieces fit wherever the devices' whole numbers of them add up.
        free = np.maximum(self.memory_left, 0)[:, None, :] // size[:, :, None]  # (N, C, D)
        fits = (free.sum(axis=2) >= pieces) & (pieces > 0)
        affordable = self.store.price[slot, :, cursor] <= self.budget_left[:, None] + ROUNDING
        self.legal[:, D:] = fits & affordable & deciding & open_

    def _reward(self, done: NDArray[np.bool_], complete: NDArray[np.bool_]) -> NDArray[np.float64]:
        reward = np.zeros(self.count)
        if self.dense:
            value = self.step_ms()
            self._fail(value, self._all[done & ~complete])
            reward = REWARD_PER_MS * (value - self.value_ms)
            self.value_ms = value
        elif done.any():
            ended = self._all[done]
            value = np.zeros(self.count)
            value[ended] = StepCost(self.costs[ended]).step
            self._fail(value, self._all[done & ~complete])
            reward[ended] = REWARD_PER_MS * value[ended]
        return reward

    def _fail(self, value: NDArray[np.float64], failed: NDArray[np.int64]) -> None:
        value[failed] = failed_ms(self.worst_ms[failed], 1 - self.row[failed] / self.tables_of[failed])

    def _refuse(self, actions: NDArray[np.integer], allowed: NDArray[np.bool_]) -> None:
        n = int(self._all[~allowed][0])
        raise IllegalActionError(int(actions[n]), self.legal[n].copy())
