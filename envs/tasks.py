"""Where an environment's tasks come from: a family, a list, a file, or a generator.

A source draws a task for an episode from the episode's own random generator, so that the same seed gives the same
tasks, single or vector. Tasks of a finite source are encoded once and kept.
"""

from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np

from shardgym.envs.families import HALVES, Family, family
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.task_files import read_tasks
from shardgym.problem.tasks import Task

TaskDraw = Callable[[np.random.Generator], Task]


@public("shardgym.envs")
@runtime_checkable
class TaskSource(Protocol):
    """Tasks of an environment.

    max_tables and max_devices bound every task, or are None where that is not known beforehand.
    """

    max_tables: int | None
    max_devices: int | None

    def draw(self, rng: np.random.Generator) -> Task:
        """A task for a new episode."""
        ...

    def task(self, number: int) -> Task:
        """Task `number` of a finite source."""
        ...


class TaskList:
    """A finite list of tasks, drawn evenly.

    Raises:
        InputError: the list is empty.
    """

    def __init__(self, tasks: Sequence[Task]) -> None:
        if not tasks:
            raise InputError("tasks: the list is empty; give at least one task")
        self.tasks = tuple(tasks)
        self.max_tables: int | None = max(len(task.tables) for task in self.tasks)
        self.max_devices: int | None = max(task.devices for task in self.tasks)

    def __len__(self) -> int:
        return len(self.tasks)

    def draw(self, rng: np.random.Generator) -> Task:
        """A task, each as likely."""
        return self.tasks[int(rng.random() * len(self.tasks))]

    def task(self, number: int) -> Task:
        """Task `number` of the list."""
        return _numbered(number, len(self), lambda: self.tasks[number])


class FamilyTasks:
    """One half of a family; its tasks are generated when they are first drawn."""

    def __init__(self, tasks: Family, half: str = "train") -> None:
        self.family, self.half = tasks, half
        self.max_tables: int | None = tasks.tables
        self.max_devices: int | None = tasks.devices
        self._made: dict[int, Task] = {}

    def __len__(self) -> int:
        return self.family.count(self.half)

    def draw(self, rng: np.random.Generator) -> Task:
        """A task of the half, each as likely."""
        return self.task(int(rng.random() * len(self)))

    def task(self, number: int) -> Task:
        """Task `number` of the half."""
        if number not in self._made:
            self._made[number] = _numbered(number, len(self), lambda: self.family.task(number, self.half))
        return self._made[number]


class TaskStream:
    """Endless tasks of a function of a random generator, or of an iterator.

    An iterator gives its tasks in turn, whatever the seed, and can neither be copied nor sent to another process.
    """

    max_tables: int | None = None
    max_devices: int | None = None

    def __init__(self, make: TaskDraw | Iterator[Task]) -> None:
        self._make = make

    def draw(self, rng: np.random.Generator) -> Task:
        """The next task.

        Raises:
            InputError: the generator has ended, or gave something else than a task.
        """
        if isinstance(self._make, Iterator):
            task = next(self._make, None)
            if task is None:
                raise InputError("tasks: the generator has ended; give an endless one, or a list")
        else:
            task = self._make(rng)
        if not isinstance(task, Task):
            raise InputError(f"tasks: the generator gave a {type(task).__name__}; let it give a Task")
        return task

    def task(self, number: int) -> Task:
        """Refused: a stream is not numbered.

        Raises:
            InputError: always.
        """
        raise InputError("tasks: a generator's tasks have no numbers; give reset a Task, or tasks as a list")


def as_source(tasks: Any) -> TaskSource:
    """Tasks in any form that an environment's `tasks` takes.

    Args:
        tasks: a family's name ("dlrm-50x4", "dlrm-50x4/test"), a `Family`, a task, a list of tasks, a path of a task
            file (see `task_files`), a function from a NumPy generator to a task, an iterator, or a source.

    Raises:
        InputError: it is none of these.
    """
    if isinstance(tasks, str) and not tasks.endswith(".json"):
        name, _, half = tasks.partition("/")
        if half not in ("", *HALVES):
            raise InputError(f"tasks: {tasks!r} has no half {half!r}; give '{name}/train' or '{name}/test'")
        return FamilyTasks(family(name), half or "train")
    if isinstance(tasks, str | Path):
        return TaskList(read_tasks(Path(tasks)))
    if isinstance(tasks, Family):
        return FamilyTasks(tasks)
    if isinstance(tasks, Task):
        return TaskList([tasks])
    if isinstance(tasks, Sequence) and all(isinstance(task, Task) for task in tasks):
        return TaskList(tasks)
    if isinstance(tasks, TaskSource):
        return tasks
    if callable(tasks) or isinstance(tasks, Iterator):
        return TaskStream(tasks)
    raise InputError(
        f"tasks: a {type(tasks).__name__} gives no tasks; give a family's name, a list of tasks, a .json file, or a "
        "function from a NumPy generator to a task"
    )


def _numbered(number: int, count: int, get: Callable[[], Task]) -> Task:
    if not 0 <= number < count:
        raise InputError(f"tasks: there is no task {number}; give a number from 0 to {count - 1}")
    return get()
