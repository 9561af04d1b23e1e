"""What every method answers to: a task and a time budget in, a placement out, or a reason why there is none."""

from typing import Protocol, runtime_checkable

from shardgym.problem.costs import StepCost
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task


@public("shardgym.agents")
class InfeasibleTaskError(InputError):
    """No placement has room. The message says which table or total does not fit, and the way out."""


@public("shardgym.agents")
class NoPlacementFoundError(InputError):
    """A method ran out of room or time on a task that may well have a placement; another method may find it."""


@public("shardgym.agents")
@runtime_checkable
class Planner(Protocol):
    """A method that places tables.

    `name` stands in reports. `plan` returns a placement that `Placement.validate` accepts.
    """

    name: str

    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Place the tables within the budget.

        Args:
            task: what to place.
            budget_seconds: wall-clock time to use at most; a method that is done earlier returns earlier.

        Raises:
            InfeasibleTaskError: no placement can exist.
            NoPlacementFoundError: this method found none.
        """
        ...


class Measure(Protocol):
    """What a placement really costs: `MeasuredCost`, or any cost model in its stead."""

    def cost(self, task: Task, placement: Placement) -> StepCost:
        """Cost of one placement; phases (D, 4)."""
        ...


def require_feasible(task: Task) -> None:
    """Refuse a task that cannot be placed for a reason that shows without search.

    Besides one table or all of them being too large: of the tables larger than half the largest device, no two
    share a device, so there cannot be more of them than devices.

    Raises:
        InfeasibleTaskError: saying which table, total or count does not fit.
    """
    try:
        task.require_room()
    except InputError as error:
        raise InfeasibleTaskError(str(error)) from error
    half = max(task.device_memory) / 2
    large = int((task.table_bytes > half).sum())
    if large > task.devices:
        raise InfeasibleTaskError(
            f"task {task.name!r}: {large} tables take more than half of the largest device each, and there are "
            f"{task.devices} devices; give more devices or memory, or compress or split these tables"
        )
