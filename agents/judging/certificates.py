"""Certificates: a placement, its cost, and the multipliers that prove its bound, to be checked by someone else.

The check trusts neither the planner nor its solver: it costs the placement again, checks that it fits, and works the
bound out from the multipliers by arithmetic.
"""

import hashlib
import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from shardgym.agents.judging.bounds import Multipliers, bound_with, lower_bound
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import read_json, write_json
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task
from shardgym.problem.topology import topology_to_record

FILE_KIND = "shardgym certificate 2"
TOLERANCE = 1e-4
"""Relative difference of costs below which two machines' float32 arithmetic counts as the same."""


@public("shardgym.agents")
@dataclass(frozen=True)
class Certificate:
    """What is claimed of a placement.

    Args:
        task_name, fingerprint: of the task; the fingerprint is of all its tables, memory and batch size.
        cost_model: description of the cost model.
        device_of: (T,) device of each table.
        step_ms: what the placement costs.
        bound_ms: what no placement can go below, or 0 where nothing is proven.
        multipliers: that prove the bound.
    """

    task_name: str
    fingerprint: str
    cost_model: str
    device_of: tuple[int, ...]
    step_ms: float
    bound_ms: float
    multipliers: Multipliers

    @property
    def gap(self) -> float:
        """Share that the placement may be above the best one: step over bound, minus one."""
        return self.step_ms / self.bound_ms - 1 if self.bound_ms > 0 else float("inf")


def certify(task: Task, placement: Placement, cost_model: SummedCostModel) -> Certificate:
    """Cost a placement and bound its task.

    Raises:
        InputError: the placement is not legal.
    """
    placement.validate(task)
    bound = lower_bound(task, cost_model)
    return Certificate(
        task.name,
        fingerprint(task),
        describe(cost_model),
        placement.device_of,
        float(cost_model.cost(task, placement).step),
        bound.ms,
        bound.multipliers,
    )


def check(certificate: Certificate, task: Task, cost_model: SummedCostModel) -> Certificate:
    """Work all claims out again.

    Returns:
        The certificate, as found true.

    Raises:
        InputError: says which claim does not hold.
    """
    if certificate.fingerprint != fingerprint(task):
        raise InputError(
            f"certificate: it is of another task than {task.name!r} (or the task was changed); certify this plan anew"
        )
    if certificate.cost_model != describe(cost_model):
        raise InputError(
            f"certificate: it was made with {certificate.cost_model} and this is {describe(cost_model)}; check it with "
            "the same cost model"
        )
    placement = Placement(certificate.device_of)
    placement.validate(task)
    step = float(cost_model.cost(task, placement).step)
    if not np.isclose(step, certificate.step_ms, rtol=TOLERANCE):
        raise InputError(
            f"certificate: it says {certificate.step_ms:.6g} ms and the placement costs {step:.6g}; do not trust it"
        )
    weights, prices = certificate.multipliers.weights, certificate.multipliers.prices
    if weights.shape != (task.devices, 2) or prices.shape != (task.devices,):
        raise InputError(f"certificate: its multipliers are not of {task.devices} devices; do not trust it")
    if not (np.isfinite(weights).all() and np.isfinite(prices).all()):
        raise InputError("certificate: its multipliers are not finite; do not trust it")
    bound = bound_with(task, cost_model, certificate.multipliers).ms
    if certificate.bound_ms > bound * (1 + TOLERANCE):
        raise InputError(
            f"certificate: it claims a bound of {certificate.bound_ms:.6g} ms and proves {bound:.6g}; do not trust it"
        )
    return certificate


def fingerprint(task: Task) -> str:
    """A digest of all that a task's costs depend on; its name left out."""
    content = [
        [asdict(table) for table in task.tables],
        list(task.device_memory),
        task.batch_size,
        topology_to_record(task.topology),
    ]
    return hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()


def describe(cost_model: SummedCostModel) -> str:
    """A cost model by kind and by what it was measured on."""
    return f"{type(cost_model).__name__} ({getattr(cost_model, 'measured_on', 'no measurement')})"


def write_certificate(path: Path, certificate: Certificate) -> None:
    """Write a certificate to a JSON file, atomically."""
    record = asdict(certificate) | {"kind": FILE_KIND}
    record["multipliers"] = {
        "weights": certificate.multipliers.weights.tolist(),
        "prices": certificate.multipliers.prices.tolist(),
    }
    write_json(Path(path), record)


def read_certificate(path: Path) -> Certificate:
    """Read a certificate; nothing in it is checked yet.

    Raises:
        InputError: no such file, or not a certificate.
    """
    record = read_json(Path(path), "give a file of `shardgym certify`")
    if not isinstance(record, dict) or record.get("kind") != FILE_KIND:
        raise InputError(f"{path}: is not a {FILE_KIND!r}; give a file of `shardgym certify`")
    fields: tuple[tuple[str, Callable[[Any], Any]], ...] = (
        ("task_name", str), ("fingerprint", str), ("cost_model", str), ("device_of", _devices),
        ("step_ms", float), ("bound_ms", float), ("multipliers", _multipliers),
    )  # fmt: skip
    values = {}
    for name, convert in fields:
        try:
            values[name] = convert(record[name])
        except (KeyError, TypeError, ValueError) as error:
            raise InputError(f"{path}: field {name!r} is missing or damaged; certify the plan anew") from error
    return Certificate(**values)


def _devices(value: Any) -> tuple[int, ...]:
    return tuple(int(device) for device in value)


def _multipliers(value: Any) -> Multipliers:
    return Multipliers(np.array(value["weights"], dtype=np.float64), np.array(value["prices"], dtype=np.float64))
