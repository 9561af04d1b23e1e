"""Tasks, placements and step costs: rules checked by hand-made cases."""

import numpy as np
import pytest

from shardgym.costmodel.pricing.additive import AdditiveCost, work
from shardgym.problem.costs import BACKWARD, FORWARD, StepCost
from shardgym.problem.errors import InputError
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

TABLES = tuple(TableSpec(name, rows=1000, dim=dim) for name, dim in [("a", 4), ("b", 8), ("c", 16)])
ROOM = 1000 * (16 + 8) * 4 + 10_000


def task(**changes):
    return Task(**({"tables": TABLES, "device_memory": (ROOM, ROOM), "batch_size": 512} | changes))


def test_step_adds_the_slowest_device_of_each_phase():
    phases = np.array([[1.0, 5.0, 1.0, 2.0], [4.0, 1.0, 1.0, 1.0]])
    cost = StepCost(phases)
    assert cost.step == 4 + 5 + 1 + 2
    assert cost.max_of_sums == 9.0
    assert cost.phase("forward_comm").tolist() == [5.0, 1.0]
    assert StepCost(np.stack([phases, 2 * phases])).step.tolist() == [12.0, 24.0]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"tables": ()}, "tables is empty"),
        ({"tables": (TABLES[0], TABLES[0])}, "'a' is given twice"),
        ({"device_memory": ()}, "device_memory"),
        ({"device_memory": (0, 1)}, "device_memory"),
        ({"batch_size": 0}, "batch_size is 0"),
    ],
)
def test_a_bad_task_is_refused_by_field(changes, message):
    with pytest.raises(InputError, match=message):
        task(**changes)


def test_a_task_without_room_says_which_table_or_total():
    task().require_room()
    with pytest.raises(InputError, match=r"table 'c' takes 68,000 bytes .* 1,000"):
        task(device_memory=(1000, 1000)).require_room()
    with pytest.raises(InputError, match=r"take 124,000 bytes and the 1 devices have 70,000"):
        task(device_memory=(70_000,)).require_room()


def test_placement_is_validated_against_devices_and_memory():
    Placement((0, 0, 1)).validate(task())
    for devices, message in [((0, 1), "2 devices for the 3 tables"), ((0, 2, 1), "'b' is on device 2"),
                             ((UNPLACED, 0, 1), "'a' is on device -1")]:  # fmt: skip
        with pytest.raises(InputError, match=message):
            Placement(devices).validate(task())
    with pytest.raises(InputError, match=r"device 1 holds 124,000 bytes and has 70,000"):
        Placement((1, 1, 1)).validate(task(device_memory=(70_000, 70_000)))


def test_placement_round_trips_through_json_by_table_name():
    placement = Placement((1, 0, 1))
    record = placement.to_json(task())
    assert Placement.from_json(record, task()) == placement
    del record["device_of"]["b"]
    with pytest.raises(InputError, match="'b'"):
        Placement.from_json(record, task())


def test_summed_costs_match_group_by_group_sums():
    rng = np.random.default_rng(0)
    model = AdditiveCost(rng.random((2, 4)), np.array([0.1, 0.2]))
    device_of = rng.integers(UNPLACED, 3, size=(20, 3))
    the_task = task(device_memory=(ROOM,) * 3)
    cost = model.costs(the_task, device_of)
    per_table = work(TABLES, 512) @ model.coefficients.T
    for n, row in enumerate(device_of):
        for device in range(3):
            on = row == device
            expected = per_table[on].sum(axis=0) + model.overhead * on.any()
            got = cost.phases[n, device]
            np.testing.assert_allclose([got[FORWARD], got[BACKWARD]], expected, rtol=1e-5)
    single = model.cost(the_task, Placement.of(np.abs(device_of[0])))
    assert single.phases.shape == (3, 4)
