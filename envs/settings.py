"""The keyword arguments that every environment of the suite takes, checked and made into objects."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np

from shardgym.costmodel.named import cost_model as named_cost_model
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.envs.encoding import ORDERS, TaskEncoder
from shardgym.envs.episode import Episode
from shardgym.envs.episodes import Episodes
from shardgym.envs.observation import Layout
from shardgym.envs.table_options import Rules
from shardgym.envs.task_store import TaskStore
from shardgym.envs.tasks import TaskSource, as_source
from shardgym.problem.errors import InputError
from shardgym.problem.tasks import Task

Reward = Literal["dense", "sparse"]
Order = Literal["cost", "bytes", "given"]

CACHED_TASKS = 128
"""Encoded tasks that an environment keeps beside those being played."""


@dataclass(frozen=True)
class Settings:
    """What an environment is made of.

    Args:
        rules: what is decided about a table beside its device.
        source: tasks of the episodes.
        cost_model: predicts step latency.
        layout: sizes of the observation.
        dense, order, strict: as in the environments' pages.
    """

    rules: Rules
    source: TaskSource
    cost_model: SummedCostModel
    layout: Layout
    dense: bool
    order: str
    strict: bool

    @classmethod
    def of(
        cls,
        rules: Rules,
        tasks: Any,
        cost_model: SummedCostModel | str | Path | None = None,
        max_tables: int | None = None,
        max_devices: int | None = None,
        reward: Reward = "dense",
        order: Order = "cost",
        strict: bool = False,
    ) -> "Settings":
        """Check the keyword arguments of an environment.

        Raises:
            InputError: names the argument that does not fit.
        """
        if reward not in ("dense", "sparse"):
            raise InputError(f"reward is {reward!r}; give 'dense' or 'sparse'")
        if order not in ORDERS:
            raise InputError(f"order is {order!r}; give one of {', '.join(ORDERS)}")
        source = as_source(tasks)
        options = len(rules.names) if len(rules.names) > 1 else 0
        layout = Layout(
            _bound("max_tables", max_tables, source.max_tables),
            _bound("max_devices", max_devices, source.max_devices),
            options,
            rules.max_pieces,
        )
        return cls(rules, source, named_cost_model(cost_model), layout, reward == "dense", order, bool(strict))

    @property
    def cost_source(self) -> str:
        """What the cost model was measured on, or that nothing was."""
        return getattr(self.cost_model, "measured_on", f"no measurement: {type(self.cost_model).__name__}")

    def episode(self) -> Episode:
        """One episode."""
        return Episode(self.layout, self.cost_model, self.dense, self.strict)

    def episodes(self, count: int) -> Episodes:
        """`count` episodes that share one store of encoded tasks."""
        store = TaskStore(self.encoder(1), self.layout, count + CACHED_TASKS)
        return Episodes(count, store, self.cost_model, self.dense, self.strict)

    def encoder(self, capacity: int) -> TaskEncoder:
        """What makes tasks into arrays, keeping the last `capacity`."""
        return TaskEncoder(self.layout, self.rules, self.cost_model, self.order, capacity)

    def next_task(self, rng: np.random.Generator, options: dict[str, Any] | None) -> Task:
        """The task of a reset: `options["task"]` (a Task, or its number in a finite source) or one drawn."""
        wanted = (options or {}).get("task")
        if wanted is None:
            return self.source.draw(rng)
        return wanted if isinstance(wanted, Task) else self.source.task(int(wanted))


def _bound(name: str, given: int | None, known: int | None) -> int:
    """A size of the observation: as given, else what the tasks are known to need."""
    if given is None and known is None:
        raise InputError(f"{name} is not known from a generator of tasks; give {name}")
    if given is None:
        return int(known or 0)
    if known is not None and isinstance(given, int) and 1 <= given < known:
        raise InputError(f"{name} is {given} and the tasks have up to {known}; raise {name}, or leave it out")
    return given
