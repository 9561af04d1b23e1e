"""The policy network and its training: invariances, the enumerated optimum, the file."""

import dataclasses

import numpy as np
import pytest
import torch

from shardgym.agents.learning.agent import Agent, decide, raw_features
from shardgym.agents.learning.policy_network import MASKED, PlacementPolicy
from shardgym.agents.learning.training import TrainingOptions, policy_loss, roll_out, train_agent
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.agents.planners.heuristics import heuristic_planners
from shardgym.agents.planners.planner import InfeasibleTaskError, Planner
from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.problem.errors import InputError
from shardgym.problem.tasks import Task
from tests.agents.cases import ADDITIVE, FusedCost, best_by_enumeration, make_task, packed_task, step_of


@pytest.fixture(autouse=True)
def one_thread():
    """Threads split the rows of a matrix product, and its rounding then depends on a device's row."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


QUICK = TrainingOptions(updates=30, episodes=64)


def random_policy(seed: int = 0) -> PlacementPolicy:
    """A policy whose scorer matters, unlike that of a new one."""
    torch.manual_seed(seed)
    policy = PlacementPolicy(len(FEATURE_NAMES))
    torch.nn.init.normal_(policy.scorer)
    return policy


def part_way(model, task, seed=0):
    """Two episodes with half of the tables placed at random, their encodings, and the decision at hand."""
    policy, rng = random_policy(), np.random.default_rng(seed)
    episodes = Construction(CostedTask.of(task, model), 2)
    encodings = policy.encoder(raw_features(task)).detach()
    sums = torch.zeros(2, task.devices, encodings.shape[1])
    while episodes.placed < len(task.tables) // 2:
        devices = rng.integers(task.devices, size=2)
        sums[[0, 1], devices] += encodings[episodes.table]
        episodes.place(devices, episodes.costs_after())
    return policy, sums, encodings[episodes.table], decide(episodes, episodes.costs_after())


@torch.no_grad()
def test_logits_follow_a_permutation_of_the_devices_exactly():
    policy, sums, table, decision = part_way(FusedCost(), make_task(24, 5))
    straight = policy.logits(sums, table, decision)
    turned = torch.tensor([3, 1, 4, 0, 2])
    per_device = ("after", "now", "legal", "room", "mean_room")
    permuted = decision._replace(**{name: getattr(decision, name)[:, turned] for name in per_device})
    assert torch.equal(policy.logits(sums[:, turned], table, permuted), straight[:, turned])


@torch.no_grad()
def test_an_illegal_device_changes_no_other_logit():
    policy, sums, table, decision = part_way(FusedCost(), make_task(24, 5))
    legal = decision.legal.clone()
    legal[:, 2] = False
    blind = policy.logits(sums, table, decision._replace(legal=legal))
    assert (blind[:, 2] == MASKED).all()
    changed = decision._replace(legal=legal, after=decision.after.clone())
    changed.after[:, 2] *= 3
    assert torch.equal(policy.logits(sums, table, changed), blind)


def test_learning_sees_the_scores_that_sampling_saw():
    task = make_task(12, 3)
    policy, features = random_policy(), raw_features(task)
    options = dataclasses.replace(QUICK, episodes=256)
    rollout = roll_out(policy, CostedTask.of(task, ADDITIVE), features, options, torch.Generator().manual_seed(0))
    with torch.no_grad():
        first = policy.scores(
            torch.zeros(256, 3, 32), policy.encoder(features)[rollout.order[0]], rollout.inputs[0], rollout.excess[0],
            rollout.legal[0],
        ).softmax(dim=-1)  # fmt: skip
    drawn = torch.bincount(rollout.actions[0], minlength=3) / 256
    np.testing.assert_allclose(drawn, first[0], atol=0.12)
    assert torch.isfinite(policy_loss(policy, features, rollout, 0.01))


def test_training_reaches_the_enumerated_optimum_of_a_small_task():
    model, task = FusedCost(), make_task(8, 2, seed=5)
    agent = train_agent([task], model, TrainingOptions(updates=60, episodes=128, learning_rate=5e-3))
    _, optimum = best_by_enumeration(task, model)
    assert step_of(task, model, agent.plan(task)) <= optimum * 1.001


def test_a_trained_agent_beats_the_proxies_on_unseen_tables_and_sizes():
    model = FusedCost()
    agent = train_agent([make_task(20, 4, seed) for seed in range(8)], model, QUICK)
    assert isinstance(agent, Planner)
    for tables, devices in ((50, 4), (60, 8)):
        unseen = [make_task(tables, devices, 100 + seed) for seed in range(4)]
        ours = np.mean([step_of(task, model, agent.plan(task)) for task in unseen])
        best = min(np.mean([step_of(task, model, p.plan(task, 1.0)) for task in unseen]) for p in heuristic_planners())
        assert ours < best


def test_training_is_reproducible_and_reports_its_progress():
    seen = []
    tasks = [make_task(10, 2), make_task(14, 3, 1)]
    first, second = (train_agent(tasks, ADDITIVE, dataclasses.replace(QUICK, updates=5), seen.append) for _ in range(2))
    assert [status.update for status in seen] == [1, 2, 3, 4, 5] * 2
    for a, b in zip(first.policy.state_dict().values(), second.policy.state_dict().values()):
        assert torch.equal(a, b)


def test_an_interrupt_keeps_what_was_learned():
    def interrupt(status):
        if status.update == 3:
            raise KeyboardInterrupt

    agent = train_agent([make_task(10, 2)], ADDITIVE, QUICK, interrupt)
    assert "interrupted" in agent.trained_on
    agent.plan(make_task(10, 2)).validate(make_task(10, 2))


def test_a_saved_agent_plans_bit_for_bit_alike(tmp_path):
    agent, task = Agent(random_policy(), FusedCost(), "nothing"), make_task(40, 4)
    agent.save(tmp_path / "agent.pt")
    again = Agent.load(tmp_path / "agent.pt", FusedCost())
    for a, b in zip(agent.policy.state_dict().values(), again.policy.state_dict().values()):
        assert torch.equal(a, b)
    assert again.plan(task) == agent.plan(task)
    assert again.trained_on == "nothing"


@pytest.mark.parametrize("content", [b"", b"not a file of torch", None])
def test_a_bad_agent_file_is_named(tmp_path, content):
    path = tmp_path / "agent.pt"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(InputError, match=r"agent\.pt"):
        Agent.load(path, ADDITIVE)


def test_a_file_of_another_kind_is_named(tmp_path):
    torch.save({"kind": "else"}, tmp_path / "agent.pt")
    with pytest.raises(InputError, match="is not a 'shardgym agent 2'"):
        Agent.load(tmp_path / "agent.pt", ADDITIVE)


def test_the_agent_fits_nearly_full_memory_and_refuses_what_cannot_fit():
    agent = Agent(random_policy(), FusedCost())
    for seed in range(4):
        task = packed_task(devices=4, pieces=6, seed=seed, slack=1.02)
        agent.plan(task, 20.0).validate(task)
    task = make_task(10, 2)
    with pytest.raises(InfeasibleTaskError, match="give more devices or memory"):
        agent.plan(Task(task.tables, (max(task.table_bytes), 10), 512))


def test_training_needs_a_task_that_fits():
    with pytest.raises(InputError, match="tasks is empty"):
        train_agent([], ADDITIVE)
