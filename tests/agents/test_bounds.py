"""Bounds under the enumerated optimum, certificates that refuse what is tampered with."""

import dataclasses
import json

import numpy as np
import pytest

from shardgym.agents.judging.bounds import Multipliers, bound_with, lower_bound, sharing_bound
from shardgym.agents.judging.certificates import certify, check, read_certificate, write_certificate
from shardgym.agents.planners.heuristics import LargestFirstPlanner
from shardgym.agents.planners.local_search import LocalSearchPlanner
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.shipped import shipped_cost
from shardgym.problem.errors import InputError
from shardgym.problem.placements import Placement
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task
from tests.agents.cases import ADDITIVE, best_by_enumeration, make_task, packed_task, step_of

MODELS = {"additive": ADDITIVE, "roofline": RooflineCost(), "shipped": shipped_cost()}


def uneven_task(seed: int) -> Task:
    """Room for little on one of three devices."""
    task = make_task(9, 3, seed)
    total = int(task.table_bytes.sum())
    return dataclasses.replace(task, device_memory=(int(0.12 * total), int(0.9 * total), int(0.9 * total)))


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_no_placement_is_below_the_bound(model):
    for seed in range(6):
        for task in (make_task(9, 3, seed, slack=1.2), uneven_task(seed), make_task(6, 4, seed)):
            _, optimum = best_by_enumeration(task, model)
            assert 0 <= lower_bound(task, model).ms <= optimum


@pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)
def test_any_multipliers_give_a_valid_bound(model):
    rng = np.random.default_rng(0)
    for seed in range(4):
        task = uneven_task(seed)
        _, optimum = best_by_enumeration(task, model)
        for _ in range(10):
            wild = Multipliers(rng.uniform(-1, 3, (3, 2)), rng.uniform(-1, 1, 3) * optimum / task.device_memory[1])
            assert bound_with(task, model, wild).ms <= optimum


def test_the_bound_is_nearly_met_by_search_on_an_additive_cost():
    for seed in range(3):
        task = make_task(50, 4, seed)
        found = step_of(task, ADDITIVE, LocalSearchPlanner(ADDITIVE).plan(task, 0.5))
        assert found <= lower_bound(task, ADDITIVE).ms * 1.01


def test_memory_that_binds_raises_the_bound_above_the_mean():
    # Equal work, but the tables of much memory fit only on the second device.
    tables = tuple(TableSpec(f"t{k}", 10_000, 8, pooling=5.0) for k in range(8))
    task = Task(tables, (2 * tables[0].bytes(), 8 * tables[0].bytes()), 512)
    floors = ADDITIVE.table_floors(task).astype(float)
    even = sharing_bound(task, floors, Multipliers.even(2))
    bound = lower_bound(task, ADDITIVE)
    assert bound.ms > 1.3 * even
    assert bound.ms == pytest.approx(best_by_enumeration(task, ADDITIVE)[1], rel=1e-3)


def test_a_certificate_holds_after_a_round_trip(tmp_path):
    task = packed_task(4, 6, slack=1.1)
    placement = LocalSearchPlanner(ADDITIVE).plan(task, 0.2)
    certificate = certify(task, placement, ADDITIVE)
    write_certificate(tmp_path / "c.json", certificate)
    read = check(read_certificate(tmp_path / "c.json"), task, ADDITIVE)
    assert read.gap == pytest.approx(certificate.gap)
    assert 0 <= read.gap < 0.5


@pytest.mark.parametrize(
    ("field", "value", "message"),
    [
        ("step_ms", 0.1, "the placement costs"),
        ("bound_ms", 1e6, "claims a bound"),
        ("device_of", [0] * 12, "device 0 holds"),
        ("device_of", [0, 1], "2 devices for the 12 tables"),
        ("fingerprint", "0", "of another task"),
        ("cost_model", "Oracle", "was made with Oracle"),
        ("multipliers", {"weights": [[1.0]], "prices": [0.0]}, "not of 2 devices"),
        ("multipliers", {"weights": [[float("nan")] * 2] * 2, "prices": [0, 0]}, "not finite"),
        ("multipliers", None, "field 'multipliers'"),
        ("device_of", "abc", "field 'device_of'"),
        ("kind", "else", "is not a 'shardgym certificate 2'"),
    ],
)
def test_a_tampered_certificate_is_refused(tmp_path, field, value, message):
    task = make_task(12, 2)
    write_certificate(tmp_path / "c.json", certify(task, LargestFirstPlanner(ADDITIVE).plan(task, 1.0), ADDITIVE))
    record = json.loads((tmp_path / "c.json").read_text())
    record[field] = value
    (tmp_path / "c.json").write_text(json.dumps(record))
    with pytest.raises(InputError, match=message):
        check(read_certificate(tmp_path / "c.json"), task, ADDITIVE)


def test_a_plan_that_was_changed_no_longer_matches_its_claim():
    task = make_task(12, 2)
    certificate = certify(task, LocalSearchPlanner(ADDITIVE).plan(task, 0.3), ADDITIVE)
    device_of = (1 - certificate.device_of[0], *certificate.device_of[1:])
    with pytest.raises(InputError, match=r"the placement costs|device . holds"):
        check(dataclasses.replace(certificate, device_of=device_of), task, ADDITIVE)


def test_an_illegal_placement_gets_no_certificate():
    task = make_task(12, 2, slack=1.1)
    with pytest.raises(InputError, match="device 0 holds"):
        certify(task, Placement((0,) * 12), ADDITIVE)
