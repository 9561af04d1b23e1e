"""A plan as a record: the task, every method's placement, what it is predicted and measured to cost.

The record holds all that is needed to check it again: `read_plan` validates each placement against the task.
"""

import json
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.costmodel.placement import PHASES, Placement, StepCost, Task
from shardgym.dataio.atomic import write_text
from shardgym.dataio.table_files import table_from_record, table_to_record
from shardgym.embeddings.errors import InputError

FILE_KIND = "shardgym plan 1"


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


@dataclass(frozen=True)
class Plan:
    """A task and what each method makes of it.

    Args:
        task: what was placed.
        candidates: one a method; the chosen one is `chosen()`.
        cost_model: what predicted the costs, for reports.
        failures: method name to the reason for which it found no placement.
    """

    task: Task
    candidates: tuple[Candidate, ...]
    cost_model: str
    failures: dict[str, str] = field(default_factory=dict)

    def chosen(self) -> Candidate:
        """The candidate of the least predicted step latency."""
        return min(self.candidates, key=lambda candidate: float(candidate.predicted.step))

    def with_measured(self, measured: dict[str, StepCost]) -> "Plan":
        """The plan with the measured costs of the named methods filled in."""
        filled = (replace(c, measured=measured.get(c.method, c.measured)) for c in self.candidates)
        return replace(self, candidates=tuple(filled))


def write_plan(path: Path, plan: Plan) -> None:
    """Write the record, atomically."""
    write_text(path, json.dumps(_to_record(plan), indent=1) + "\n")


def read_plan(path: Path) -> Plan:
    """Read a record and validate it.

    Raises:
        InputError: no such file, not a plan, or a placement that is not legal.
    """
    if not path.exists():
        raise InputError(f"{path}: no such plan; run `shardgym plan --out {path}` first")
    try:
        record = json.loads(path.read_text(encoding="utf-8"))
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"{path}: is not valid JSON ({error}); plan again") from error
    if not isinstance(record, dict) or record.get("kind") != FILE_KIND:
        raise InputError(f"{path}: field 'kind' is not {FILE_KIND!r}; plan again with this version")
    try:
        return _from_record(record)
    except KeyError as error:
        raise InputError(f"{path}: field {error} is missing; plan again") from error
    except InputError as error:
        raise InputError(f"{path}: {error}") from error


def _to_record(plan: Plan) -> dict[str, Any]:
    task = plan.task
    return {
        "kind": FILE_KIND,
        "task": {
            "name": task.name,
            "batch_size": task.batch_size,
            "device_memory": list(task.device_memory),
            "tables": [table_to_record(table) for table in task.tables],
        },
        "cost_model": plan.cost_model,
        "chosen": plan.chosen().method,
        "plans": [
            {
                "method": candidate.method,
                "devices": candidate.placement.to_json(task)["devices"],
                "planning_seconds": round(candidate.planning_seconds, 4),
                "predicted": _cost_record(candidate.predicted),
                "measured": _cost_record(candidate.measured) if candidate.measured else None,
            }
            for candidate in plan.candidates
        ],
        "failures": plan.failures,
    }


def _from_record(record: dict[str, Any]) -> Plan:
    fields = record["task"]
    task = Task(
        tuple(table_from_record(table) for table in fields["tables"]),
        tuple(fields["device_memory"]),
        fields["batch_size"],
        fields["name"],
    )
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
    return Plan(task, candidates, record["cost_model"], record["failures"])


def _cost_record(cost: StepCost) -> dict[str, Any]:
    phases = {name: [round(float(ms), 4) for ms in cost.phase(name)] for name in PHASES}
    return {"step_ms": round(float(cost.step), 4), "max_of_sums_ms": round(float(cost.max_of_sums), 4), **phases}


def _cost(record: dict[str, Any]) -> StepCost:
    return StepCost(np.stack([record[name] for name in PHASES], axis=-1))
