"""One price of a step: whoever prices a placement says what the cost model says, to the last digit."""

from dataclasses import replace

import gymnasium as gym
import numpy as np
import pytest

from shardgym.agents.learning.agent import raw_features
from shardgym.agents.learning.policy_network import PlacementPolicy
from shardgym.agents.learning.pretrained import pretrained_agent
from shardgym.agents.learning.training import TrainingOptions, roll_out
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.agents.planners.heuristics import LargestFirstPlanner, RandomPlanner
from shardgym.agents.planners.local_search import search
from shardgym.agents.planners.search_state import SearchState
from shardgym.cli.plan_report import plan_view
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.pricing.additive import AdditiveCost
from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.pricing.roofline_machines import CPU_CORE
from shardgym.costmodel.shipped import shipped_cost
from shardgym.envs.families import FAMILIES, family
from shardgym.envs.rewards import REWARD_PER_MS
from shardgym.problem.placements import UNPLACED, Placement
from shardgym.problem.plan_files import read_plan, write_plan
from shardgym.problem.tasks import Task
from shardgym.problem.topology import Topology
from shardgym.registration import ENTRY_POINTS
from shardgym.workflow import make_plan
from tests.agents.cases import FusedCost as UsersOwn
from tests.envs.cases import additive, small_tasks

pytestmark = pytest.mark.exact


def without_exchange():
    shipped = shipped_cost()
    return LearnedCost(shipped.networks, shipped.hardware, shipped.measured_on, shipped.ranges)


MODELS = {
    "shipped": shipped_cost(),
    "learned-without-exchange": without_exchange(),
    "roofline-h100": RooflineCost(),
    "roofline-core": RooflineCost(CPU_CORE),
    "additive": additive(),
    "additive-with-exchange": AdditiveCost(additive().coefficients, additive().overhead, shipped_cost().exchange),
    "users-own": UsersOwn(),
}
every_model = pytest.mark.parametrize("model", MODELS.values(), ids=MODELS)


def with_speeds(task: Task) -> Task:
    """The task on hosts of two, its devices of different speeds."""
    speeds = tuple(1.0 + 0.25 * (d % 3) for d in range(task.devices))
    return replace(task, topology=Topology(2, between_bandwidth=2e9, speeds=speeds))


TASKS = [*small_tasks(), *map(with_speeds, small_tasks())]


def by_hand(model, task, placement):
    """The step from the contract's three parts, device by device, in plain Python."""
    states, volumes = model.table_states(task).astype(float), model.table_volumes(task)
    compute = []
    for device in range(task.devices):
        held = list(placement.tables_on(device))
        alone = model.compute_ms(states[held].sum(axis=0).astype(np.float32), task)
        compute.append(alone / task.speeds[device])
    sent = np.array([volumes[list(placement.tables_on(d))].sum(axis=0) for d in range(task.devices)])
    exchange = model.exchange.ms(sent, task.topology)
    forward, backward = np.max(compute, axis=0).astype(float)
    return (forward + backward) + (float(exchange[0]) + float(exchange[1]))


@every_model
def test_the_cost_of_a_placement_is_its_three_parts(model):
    for number, task in enumerate(TASKS):
        for seed in range(5):
            placement = Placement.of(
                np.random.default_rng([seed, number]).integers(task.devices, size=len(task.tables))
            )
            assert float(model.cost(task, placement).step) == by_hand(model, task, placement)


@every_model
@pytest.mark.parametrize("name", ENTRY_POINTS)
@pytest.mark.parametrize("reward", ["dense", "sparse"])
def test_an_episode_ends_at_the_cost_of_its_placement(model, name, reward):
    keywords = {"tasks": TASKS, "cost_model": model, "max_devices": 5, "reward": reward}
    env, twin = gym.make(name, **keywords), gym.make_vec(name, num_envs=len(TASKS), **keywords)
    rng = np.random.default_rng(0)
    for number in range(len(TASKS)):
        _, info = env.reset(seed=number, options={"task": number})
        total, done = 0.0, False
        while not done:
            action = rng.choice(np.flatnonzero(info["action_mask"]))
            observation, gained, done, _, info = env.step(action)
            total += gained
        if info["is_success"]:
            decisions = info["decisions"]
            expected = model.cost(decisions.task(), decisions.placement())
            assert info["step_ms"] == float(expected.step)
            assert total == pytest.approx(REWARD_PER_MS * info["step_ms"], rel=1e-6)
            seen = observation["device_costs"].reshape(5, 4)[: decisions.task().devices]
            assert (seen == expected.phases).all()
    twin.reset(seed=0)
    ended = 0
    for _ in range(60):
        legal = twin.unwrapped.episodes.legal
        actions = np.array([rng.choice(np.flatnonzero(row)) for row in legal])
        _, _, _, _, info = twin.step(actions)
        final = info.get("final_info", {})
        for n in np.flatnonzero(final.get("_decisions", np.zeros(len(TASKS), bool))):
            decisions = final["decisions"][n]
            assert final["step_ms"][n] == float(model.cost(decisions.task(), decisions.placement()).step)
            ended += 1
    assert ended >= 10


@pytest.mark.parametrize("name", [name for name in FAMILIES if name != "large-1000x128"])
def test_every_family_is_priced_alike_by_environment_search_training_and_plan(name, tmp_path):
    model, task = shipped_cost(), family(name).task(0, "test")
    costed = CostedTask.of(task, model)
    if not name.startswith("overfull"):
        agent = pretrained_agent(model)
        plan = make_plan(task, model, "shipped", [RandomPlanner(), LargestFirstPlanner(model), agent], 0.1)
        write_plan(tmp_path / "plan.json", plan)
        record = read_plan(tmp_path / "plan.json")
        shown = {row["method"]: row["predicted"] for row in plan_view(record)["methods"]}
        for candidate in record.candidates:
            step = float(model.cost(task, candidate.placement).step)
            assert float(candidate.predicted.step) == step
            assert shown[candidate.method] == f"{step:.3f} ms"
            assert SearchState(costed, candidate.placement.array()).step == step
    env = gym.make("shardgym/TablePlacement-v1", tasks=[replace(task, device_memory=(2**45,) * task.devices)])
    rng = np.random.default_rng(0)
    env.reset(seed=0)
    done = False
    while not done:
        _, _, done, _, info = env.step(int(rng.integers(task.devices)))
    decisions = info["decisions"]
    assert info["step_ms"] == float(model.cost(decisions.task(), decisions.placement()).step)


@every_model
def test_what_training_thinks_of_an_episode_is_its_price(model):
    import torch

    for task in TASKS:
        costed = CostedTask.of(task, model)
        episodes = Construction(costed, 6)
        rng = np.random.default_rng(0)
        while not episodes.done:
            after = episodes.costs_after()
            devices = rng.integers(task.devices, size=6)
            episodes.place(devices, after)
            partial = model.costs(task, episodes.device_of)
            assert (episodes.costs == partial.phases).all()
        assert (episodes.steps() == model.costs(task, episodes.device_of).step).all()
        policy, features = PlacementPolicy(len(FEATURE_NAMES)), raw_features(task)
        options = TrainingOptions(episodes=4)
        rollout = roll_out(policy, costed, features, options, torch.Generator().manual_seed(0))
        device_of = np.full((4, len(task.tables)), UNPLACED)
        device_of[:, costed.order] = rollout.actions.numpy().T
        ratio = model.costs(task, device_of).step / costed.fair.sum()
        assert rollout.step_ratio == pytest.approx(float(ratio.mean()), rel=1e-6)


@every_model
def test_search_never_ends_above_its_start_by_the_true_price(model):
    for number, task in enumerate(TASKS):
        costed = CostedTask.of(task, model)
        start = RandomPlanner(number).plan(task, 0.0).array()
        found = search(costed, start, 0.0, np.random.default_rng(0))
        assert model.cost(task, found).step <= model.cost(task, Placement.of(start)).step


@every_model
def test_order_and_unplaced_tables_change_nothing(model):
    rng = np.random.default_rng(0)
    for task in TASKS:
        order = rng.permutation(len(task.tables))
        shuffled = replace(task, tables=tuple(task.tables[t] for t in order))
        device_of = rng.integers(UNPLACED, task.devices, size=(7, len(task.tables)))
        expected = model.costs(task, device_of).phases
        assert (model.costs(shuffled, device_of[:, order]).phases == expected).all()
        for row, phases in zip(device_of, expected):
            assert (model.costs(task, row[None]).phases[0] == phases).all()
