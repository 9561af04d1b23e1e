"""Plans as records: what is written is read back and validated, damage is named."""

import json

import numpy as np
import pytest

from shardgym.costmodel.measuring.measured_cost import MeasuredCost
from shardgym.costmodel.measuring.meter import Meter, Timing
from shardgym.costmodel.pricing.additive import AdditiveCost
from shardgym.problem.costs import BACKWARD, FORWARD
from shardgym.problem.errors import InputError
from shardgym.problem.placements import Placement
from shardgym.problem.plan_files import Candidate, Plan, read_plan, write_plan
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

TABLES = tuple(TableSpec(f"t{k}", rows=100 * (k + 1), dim=4, pooling=1.5) for k in range(4))
TASK = Task(TABLES, (100_000, 100_000), 64, "small")


def small_plan():
    model = AdditiveCost(np.full((2, 4), 1e-3), np.array([0.1, 0.1]))
    placements = {"one device": (0, 0, 0, 0), "even": (0, 1, 1, 0)}
    made = [Candidate(m, p := Placement(d), model.cost(TASK, p), 0.01) for m, d in placements.items()]
    return Plan(TASK, tuple(made), "additive", {"lazy": "would not"})


def test_a_plan_round_trips_and_chooses_the_least_step(tmp_path):
    plan = small_plan()
    write_plan(tmp_path / "plan.json", plan)
    read = read_plan(tmp_path / "plan.json")
    assert read.task == plan.task
    assert read.failures == plan.failures
    assert [c.placement for c in read.candidates] == [c.placement for c in plan.candidates]
    assert read.chosen().method == plan.chosen().method == "even"
    np.testing.assert_allclose(read.candidates[0].predicted.phases, plan.candidates[0].predicted.phases, atol=1e-4)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda r: r["plans"][0]["device_of"].update(t1=5), r"plan\.json: .*'t1' is on device 5"),
        (lambda r: r["plans"][0]["device_of"].pop("t1"), "'t1' is only|'t1' is in only"),
        (lambda r: r["task"].update(device_memory=[10, 10]), "holds .* bytes and has 10"),
        (lambda r: r["task"]["tables"][0].update(rows=-1), r"plan\.json: table 't0': rows is -1"),
        (lambda r: r.update(kind="poem"), "'kind'"),
        (lambda r: r.pop("cost_model"), "'cost_model' is missing"),
    ],
)
def test_a_damaged_plan_is_refused(tmp_path, damage, message):
    path = tmp_path / "plan.json"
    write_plan(path, small_plan())
    record = json.loads(path.read_text())
    damage(record)
    path.write_text(json.dumps(record))
    with pytest.raises(InputError, match=message):
        read_plan(path)


def test_measured_cost_runs_the_shards_and_leaves_empty_devices_at_zero():
    cost = MeasuredCost(Meter(timing=Timing(1, 2, 1))).cost(TASK, Placement((0, 0, 0, 0)))
    assert (cost.phases[0, [FORWARD, BACKWARD]] > 0).all()
    assert (cost.phases[1] == 0).all()
    with pytest.raises(InputError, match="device 3"):
        MeasuredCost(Meter(timing=Timing(1, 2, 1))).cost(TASK, Placement((0, 0, 0, 3)))
