"""A plan as a record: the task, every method's placement, what it is predicted and measured to cost.

The record holds all that is needed to check it again: `read_plan` validates each placement against the task.
"""

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.problem.costs import PHASES, StepCost
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import read_json, write_json
from shardgym.problem.placements import Placement
from shardgym.problem.task_files import task_from_record, task_to_record
from shardgym.problem.tasks import Task

FILE_KIND = "shardgym plan 2"


@public("shardgym")
@dataclass(frozen=True)
class Candidate:
    """One method's placement of a task.

    Args:
        method: name of the planner.
        placement: legal for the task.
        predicted: by the cost model, phases (D, 4) ms.
        planning_seconds: what the planner took.
        measured: by running the shards, phases (D, 4) ms; None until evaluated.
    """

    method: str
    placement: Placement
    predicted: StepCost
    planning_seconds: float
    measured: StepCost | None = None


@public("shardgym")
@dataclass(frozen=True)
class Plan:
    """A task and what each method makes of it.

    Args:
        task: what was placed.
        candidates: one per method; the chosen one is `chosen()`.
        cost_model: what predicted the costs, for reports.
        failures: method name to the reason for which it found no placement.
        caveats: why predicted costs may not be what the devices take, a sentence each.
    """

    task: Task
    candidates: tuple[Candidate, ...]
    cost_model: str
    failures: dict[str, str] = field(default_factory=dict)
    caveats: tuple[str, ...] = ()

    def chosen(self) -> Candidate:
        """The candidate of the least predicted step latency."""
        return min(self.candidates, key=lambda candidate: float(candidate.predicted.step))

    def with_measured(self, measured: dict[str, StepCost]) -> "Plan":
        """The plan with the measured costs of the named methods filled in."""
        filled = (replace(c, measured=measured.get(c.method, c.measured)) for c in self.candidates)
        return replace(self, candidates=tuple(filled))


def write_plan(path: Path, plan: Plan) -> None:
    """Write the record, atomically."""
    write_json(path, _to_record(plan))


def read_plan(path: Path) -> Plan:
    """Read a record and validate it.

    Raises:
        InputError: no such file, not a plan, a field that is missing or ill-typed, or a placement that is not legal.
    """
    record = read_json(path, f"run `shardgym plan --out {path}` first")
    if not isinstance(record, dict) or record.get("kind") != FILE_KIND:
        raise InputError(f"{path}: field 'kind' is not {FILE_KIND!r}; plan again with this version")
    try:
        return _from_record(record)
    except KeyError as error:
        raise InputError(f"{path}: field {error} is missing; plan again") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error
    except (TypeError, AttributeError, ValueError) as error:
        raise InputError(f"{path}: a field has the wrong type ({error}); plan again") from error


def _to_record(plan: Plan) -> dict[str, Any]:
    task = plan.task
    return {
        "kind": FILE_KIND,
        "task": task_to_record(task),
        "cost_model": plan.cost_model,
        "chosen": plan.chosen().method,
        "plans": [
            {
                "method": candidate.method,
                "device_of": candidate.placement.to_json(task)["device_of"],
                "planning_seconds": round(candidate.planning_seconds, 4),
                "predicted": _cost_record(candidate.predicted),
                "measured": _cost_record(candidate.measured) if candidate.measured else None,
            }
            for candidate in plan.candidates
        ],
        "failures": plan.failures,
        "caveats": list(plan.caveats),
    }


def _from_record(record: dict[str, Any]) -> Plan:
    task = task_from_record(record["task"])
    candidates = tuple(
        Candidate(
            entry["method"],
            Placement.from_json(entry, task),
            _cost(entry["predicted"]),
            entry["planning_seconds"],
            _cost(entry["measured"]) if entry["measured"] else None,
        )
        for entry in record["plans"]
    )
    return Plan(task, candidates, record["cost_model"], record["failures"], tuple(record["caveats"]))


def _cost_record(cost: StepCost) -> dict[str, Any]:
    phases = {name: cost.phase(name).tolist() for name in PHASES}
    return {"step_ms": float(cost.step), "max_of_sums_ms": float(cost.max_of_sums), **phases}


def _cost(record: dict[str, Any]) -> StepCost:
    return StepCost(np.stack([record[name] for name in PHASES], axis=-1))
