"""Local search, the integer program, column splits and the portfolio, against enumeration and whole re-computation."""

import itertools
import time

import numpy as np
import pytest
from scipy.optimize import linprog

from shardgym.agents.learning.agent import Agent
from shardgym.agents.learning.policy_network import PlacementPolicy
from shardgym.agents.planners.column_split import BeamSearchPlanner
from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.heuristics import LargestFirstPlanner, heuristic_planners
from shardgym.agents.planners.local_search import LocalSearchPlanner, search
from shardgym.agents.planners.milp import MilpPlanner, PiecewiseCost
from shardgym.agents.planners.neighbourhoods import ejections, moves, swaps
from shardgym.agents.planners.planner import InfeasibleTaskError, Planner
from shardgym.agents.planners.portfolio import PortfolioPlanner
from shardgym.agents.planners.search_state import SearchState
from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task
from tests.agents.cases import ADDITIVE, FusedCost, best_by_enumeration, make_task, packed_task, step_of

MODELS = (ADDITIVE, FusedCost())


def new_agent(model) -> Agent:
    return Agent(PlacementPolicy(len(FEATURE_NAMES)), model)


def searchers(model):
    return (
        LocalSearchPlanner(model),
        MilpPlanner(model),
        BeamSearchPlanner(model),
        PortfolioPlanner(model, (new_agent(model),)),
    )


def random_state(model, seed: int, devices: int = 4) -> SearchState:
    task = make_task(18, devices, seed, slack=2.5)
    device_of = np.array(LargestFirstPlanner(model).plan(task, 1.0).device_of)
    return SearchState(CostedTask.of(task, model), device_of)


@pytest.mark.parametrize("model", MODELS, ids=["additive", "fused"])
@pytest.mark.parametrize("neighbourhood", [moves, swaps, ejections])
def test_a_change_is_worth_what_the_changed_placement_costs(model, neighbourhood):
    rng = np.random.default_rng(0)
    for seed in range(3):
        state = random_state(model, seed)
        changes = neighbourhood(state, np.arange(4), rng, 60)
        values = state.values_after(changes)
        for n in range(len(changes)):
            device_of = state.device_of.copy()
            device_of[changes.tables[n]] = changes.targets[n]
            fresh = SearchState(state.costed, device_of)
            assert (fresh.memory_left >= 0).all()
            np.testing.assert_allclose(values[n], fresh.value, rtol=2e-4)
            assert (device_of != state.device_of).sum() == changes.tables.shape[1]


def test_applied_changes_leave_the_state_of_a_fresh_one():
    state, rng = random_state(FusedCost(), 1), np.random.default_rng(0)
    for step in range(60):
        changes = (moves, swaps, ejections)[step % 3](state, np.arange(4), rng, 8)
        if len(changes):
            state.apply(changes, int(rng.integers(len(changes))))
    fresh = SearchState(state.costed, state.device_of)
    assert (state.compute == fresh.compute).all()
    assert (state.exchange == fresh.exchange).all()
    assert (state.memory_left == fresh.memory_left).all()
    assert state.step == state.costed.cost_model.cost(state.costed.task, state.placement).step


@pytest.mark.parametrize("model", MODELS, ids=["additive", "fused"])
def test_local_search_finds_the_enumerated_optimum(model):
    for seed in range(4):
        task = make_task(9, 3, seed)
        _, optimum = best_by_enumeration(task, model)
        assert step_of(task, model, LocalSearchPlanner(model).plan(task, 2.0)) <= optimum * 1.0001


def test_local_search_never_ends_worse_than_it_starts_and_is_reproducible_when_it_ends_early():
    task = make_task(8, 2)
    costed = CostedTask.of(task, ADDITIVE)
    start = np.array(heuristic_planners()[0].plan(task, 1.0).device_of)
    placements = [search(costed, start, time.monotonic() + 60, np.random.default_rng(3)) for _ in range(2)]
    assert placements[0] == placements[1]
    stopped = search(costed, start, time.monotonic() - 1, np.random.default_rng(0))
    assert SearchState(costed, np.array(stopped.device_of)).step <= SearchState(costed, start).step


def test_the_program_solves_an_additive_task_to_the_optimum():
    for seed in range(3):
        task = make_task(9, 3, seed)
        _, optimum = best_by_enumeration(task, ADDITIVE)
        assert step_of(task, ADDITIVE, MilpPlanner(ADDITIVE).plan(task, 10.0)) <= optimum * 1.0005


def test_the_pieces_of_an_additive_cost_are_its_line():
    costed = CostedTask.of(make_task(20, 3), ADDITIVE)
    device_of = np.array(LargestFirstPlanner(ADDITIVE).plan(costed.task, 1.0).device_of)
    cost = PiecewiseCost.near(costed, device_of, np.random.default_rng(0))
    np.testing.assert_allclose(cost.slopes[[0, 3]], 1.0, rtol=1e-3)
    np.testing.assert_allclose(cost.offsets[0], ADDITIVE.overhead[0], rtol=0.05)
    assert (cost.slopes[[1, 2]] == 0).all()


def test_column_splits_help_where_one_table_is_most_of_the_work():
    tables = (TableSpec("wide", 1000, 64, pooling=1.0), *(TableSpec(f"t{k}", 1000, 8, pooling=1.0) for k in range(3)))
    task, model = Task(tables, (10**7,) * 4, 512), FusedCost()
    plan = BeamSearchPlanner(model).plan_shards(task, 5.0)
    plan.placement.validate(plan.task)
    assert sum(table.dim for table in plan.task.tables) == sum(table.dim for table in tables)
    whole = best_by_enumeration(task, model)[1]
    assert plan.step < whole
    assert plan.step == pytest.approx(float(model.cost(plan.task, plan.placement).step))


def test_column_splits_place_a_table_that_no_device_holds_whole():
    tables = (TableSpec("wide", 1000, 64), TableSpec("small", 1000, 8))
    task = Task(tables, (200_000, 200_000), 512)
    plan = BeamSearchPlanner(ADDITIVE).plan_shards(task, 5.0)
    plan.placement.validate(plan.task)
    assert len(plan.task.tables) > 2


@pytest.mark.parametrize("model", MODELS, ids=["additive", "fused"])
def test_every_searcher_fits_nearly_full_memory(model):
    for planner, seed in itertools.product(searchers(model), range(2)):
        assert isinstance(planner, Planner)
        task = packed_task(devices=4, pieces=6, seed=seed, slack=1.02)
        planner.plan(task, 0.5).validate(task)


def test_every_searcher_says_why_a_task_is_infeasible():
    tables = tuple(TableSpec(f"t{k}", 200, 1) for k in range(5))
    for planner in searchers(ADDITIVE):
        with pytest.raises(InfeasibleTaskError, match="proves that the 5 tables"):
            planner.plan(Task(tables, (4000, 4000), 512), 20.0)
        with pytest.raises(InfeasibleTaskError, match="takes 1,600 bytes"):
            planner.plan(Task(tables, (1500, 1500), 512), 5.0)


def test_the_portfolio_is_no_worse_than_its_starts():
    model = FusedCost()
    portfolio = PortfolioPlanner(model, (new_agent(model),))
    for seed in range(3):
        task = make_task(30, 4, seed)
        best = min(step_of(task, model, planner.plan(task, 1.0)) for planner in portfolio.starts())
        assert step_of(task, model, portfolio.plan(task, 0.3)) <= best * (1 + 1e-6)


@pytest.mark.parametrize("budget", [0.2, 0.6])
def test_budgets_are_kept(budget):
    task, model = make_task(60, 4), FusedCost()
    for planner in searchers(model):
        # The least of three: others may hold the machine for a moment.
        seconds = []
        for _ in range(3):
            began = time.perf_counter()
            planner.plan(task, budget)
            seconds.append(time.perf_counter() - began)
        assert min(seconds) <= 1.2 * budget + 0.05


def test_linear_relaxation_is_a_lower_bound_of_what_search_finds():
    task = make_task(30, 3)
    table = ADDITIVE.table_states(task)[:, :2].astype(float)
    # min sum of peaks over fractional placements.
    T, D = len(task.tables), 3
    goal = np.concatenate([np.zeros(T * D), np.ones(2)])
    once = np.zeros((T, T * D + 2))
    once[np.repeat(np.arange(T), D), np.arange(T * D)] = 1
    peaks = np.zeros((2 * D, T * D + 2))
    for phase, device in itertools.product(range(2), range(D)):
        peaks[phase * D + device, device : T * D : D] = table[:, phase]
        peaks[phase * D + device, T * D + phase] = -1
    bound = linprog(goal, A_ub=peaks, b_ub=np.zeros(2 * D), A_eq=once, b_eq=np.ones(T)).fun + ADDITIVE.overhead.sum()
    found = step_of(task, ADDITIVE, LocalSearchPlanner(ADDITIVE).plan(task, 1.0))
    assert bound * (1 - 1e-5) <= found <= bound * 1.02
