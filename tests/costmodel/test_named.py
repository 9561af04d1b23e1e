"""Cost models by name, and what they say of themselves where they may be wrong."""

from dataclasses import replace

import pytest

from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.named import NAMES, cost_model
from shardgym.costmodel.pricing.exchange import NoExchange
from shardgym.costmodel.shipped import shipped_cost
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.problem.errors import InputError
from shardgym.problem.plan_files import read_plan, write_plan
from shardgym.problem.tasks import Task
from shardgym.workflow import plan


def elsewhere(exchange=None):
    """The shipped network as if it had been measured on another processor."""
    shipped = shipped_cost()
    hardware = replace(shipped.hardware, model="Another Processor 9000")
    return LearnedCost(shipped.networks, hardware, "elsewhere", shipped.ranges, exchange or shipped.exchange)


@pytest.mark.parametrize("name", NAMES)
def test_every_name_is_a_model(name):
    model = cost_model(name)
    assert cost_model(model) is model
    assert model.cost(Task(dlrm_like(3, 0), (2**40,) * 2, 64), _first(3)).step > 0


def _first(tables):
    from shardgym.problem.placements import Placement

    return Placement((0,) * tables)


@pytest.mark.parametrize("name", ["roofline", "roofline:abacus", "nowhere.pt", 3])
def test_anything_else_is_refused_with_the_way_out(name):
    with pytest.raises(InputError, match=r"roofline:h100|a file of|names no machine"):
        cost_model(name)


def test_a_plan_says_whose_costs_it_rests_on(tmp_path):
    tables = dlrm_like(6, seed=0, row_scale=0.1)
    for model, said in ((elsewhere(), "Another Processor 9000"), (elsewhere(NoExchange()), "exchange between devices")):
        write_plan(tmp_path / "plan.json", plan(tables, 2, "40GB", cost_model=model))
        assert any(said in caveat for caveat in read_plan(tmp_path / "plan.json").caveats)
    here = plan(tables, 2, "40GB", cost_model="roofline:cpu-core")
    assert here.caveats == ()
    assert "no measurement" in here.cost_model
