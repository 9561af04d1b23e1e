"""Training a policy by REINFORCE on the environment that a cost model estimates.

As DreamShard trains its policy (arXiv 2210.02023, section 3.3): episodes on predicted costs only, returns
standardised over the episodes of a task. Episodes run in large batches, each table encoded once.
"""

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from shardgym.agents.learning.agent import Agent, decide, raw_features
from shardgym.agents.learning.policy_network import PlacementPolicy
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tasks import Task


@public("shardgym.agents")
@dataclass(frozen=True)
class TrainingOptions:
    """How a policy is trained.

    Args:
        updates: gradient steps.
        episodes: placements per task and update.
        tasks_per_update: tasks whose gradients are averaged.
        learning_rate: of Adam, decaying to zero along a cosine.
        entropy: weight of the policy's entropy, decaying to zero likewise.
        overflow: cost of placing all memory's worth of bytes without room, in fair steps.
        seed: the same seed, tasks and cost model give the same policy on the same machine.
    """

    updates: int = 150
    episodes: int = 128
    tasks_per_update: int = 2
    learning_rate: float = 2e-3
    entropy: float = 1e-3
    overflow: float = 20.0
    seed: int = 0


@public("shardgym.agents")
@dataclass(frozen=True)
class TrainingStatus:
    """How far a training is.

    Args:
        update: updates done, of `updates`.
        updates: in all.
        step_ratio: mean step of the last update's sampled placements over the fair step (lower is better).
        seconds: since the start.
        steps_per_second: tables placed a second, learning included.
    """

    update: int
    updates: int
    step_ratio: float
    seconds: float
    steps_per_second: float


@dataclass(frozen=True)
class Rollout:
    """N finished episodes of one task, as learning reads them. S steps, one per table.

    Args:
        order: (S,) the table placed at each step.
        inputs: (S, N, D, K), excess: (S, N, D, 2), legal: (S, N, D): as `PlacementPolicy.scores` takes them.
        actions: (S, N) the device chosen.
        returns: (N,) minus the step in fair steps, memory overflow counted.
        step_ratio: mean step in fair steps.
    """

    order: Tensor
    inputs: Tensor
    excess: Tensor
    legal: Tensor
    actions: Tensor
    returns: Tensor
    step_ratio: float


def train_agent(
    tasks: Sequence[Task],
    cost_model: SummedCostModel,
    options: TrainingOptions = TrainingOptions(),
    progress: Callable[[TrainingStatus], None] = lambda status: None,
) -> Agent:
    """Train a placement policy on tasks of any sizes.

    An interrupt (Ctrl-C) ends the training early and returns the policy learned so far.

    Args:
        tasks: to learn on, at least one.
        cost_model: what episodes cost.
        options: of the training.
        progress: called after each update.

    Raises:
        InputError: no task, or one whose tables cannot fit.
    """
    if not tasks:
        raise InputError("train: tasks is empty; give at least one task")
    for task in tasks:
        task.require_room()
    torch.manual_seed(options.seed)
    rng = np.random.default_rng(options.seed)
    generator = torch.Generator().manual_seed(options.seed)
    costed = [CostedTask.of(task, cost_model) for task in tasks]
    features = [raw_features(task) for task in tasks]
    policy = PlacementPolicy(len(FEATURE_NAMES))
    policy.encoder.set_normalisation(torch.cat(features))
    optimizer = torch.optim.Adam(policy.parameters(), options.learning_rate)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, options.updates)
    trained_on = f"{len(tasks)} tasks, {options.updates} updates of {options.episodes} x {options.tasks_per_update}"
    began, placed = time.monotonic(), 0
    try:
        for update in range(options.updates):
            entropy = options.entropy * float(schedule.get_last_lr()[0]) / options.learning_rate
            optimizer.zero_grad()
            ratios = []
            for k in rng.integers(len(tasks), size=options.tasks_per_update):
                rollout = roll_out(policy, costed[k], features[k], options, generator)
                (policy_loss(policy, features[k], rollout, entropy) / options.tasks_per_update).backward()
                ratios.append(rollout.step_ratio)
                placed += rollout.actions.numel()
            torch.nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
            optimizer.step()
            schedule.step()
            seconds = time.monotonic() - began
            progress(TrainingStatus(update + 1, options.updates, float(np.mean(ratios)), seconds, placed / seconds))
    except KeyboardInterrupt:
        trained_on += ", interrupted"
    return Agent(policy, cost_model, trained_on)


@torch.no_grad()
def roll_out(
    policy: PlacementPolicy,
    costed: CostedTask,
    features: Tensor,
    options: TrainingOptions,
    generator: torch.Generator,
) -> Rollout:
    """Sample `options.episodes` placements of a task. Without room a table goes where most memory is left.

    Args:
        policy: what is sampled from.
        costed: the task, T tables.
        features: (T, F) raw features of its tables.
        options: their number.
        generator: of the samples.
    """
    episodes = Construction(costed, options.episodes)
    N, D, S = options.episodes, costed.task.devices, len(costed.order)
    encodings = policy.encoder(features)
    sums = torch.zeros(N, D, encodings.shape[1])
    rows = torch.arange(N)
    noise = torch.empty(S, N, D).exponential_(generator=generator).log()
    inputs, excesses, legals, actions = [], [], [], []
    for step in range(S):
        after = episodes.costs_after()
        decision = decide(episodes, after)
        stuck = ~decision.legal.any(dim=-1)
        if stuck.any():
            roomiest = decision.room == decision.room.amax(dim=-1, keepdim=True)
            decision = decision._replace(legal=decision.legal | (stuck[:, None] & roomiest))
        excess = decision.excess()
        inputs.append(decision.device_inputs(excess))
        table = encodings[episodes.table]
        scores = policy.scores(sums, table, inputs[-1], excess, decision.legal)
        action = (scores - noise[step]).argmax(dim=-1)  # Gumbel's trick: a draw from the softmax
        sums[rows, action] += table
        episodes.place(action.numpy(), after)
        excesses.append(excess)
        legals.append(decision.legal)
        actions.append(action)
    ratio = episodes.steps() / costed.fair.sum()
    returns = torch.from_numpy(-ratio - options.overflow * episodes.overflow()).float()
    return Rollout(
        torch.from_numpy(costed.order),
        torch.stack(inputs),
        torch.stack(excesses),
        torch.stack(legals),
        torch.stack(actions),
        returns,
        float(ratio.mean()),
    )


def policy_loss(policy: PlacementPolicy, features: Tensor, rollout: Rollout, entropy: float) -> Tensor:
    """REINFORCE with standardised returns, a scalar ().

    Running sums are recomputed from features (T, F), so that the encoder learns through them; `entropy` is the weight
    of the policy's own.
    """
    table = policy.encoder(features)[rollout.order]  # (S, encoding)
    chosen = torch.nn.functional.one_hot(rollout.actions, rollout.legal.shape[-1]).to(table.dtype)  # (S, N, D)
    added = chosen[..., None] * table[:, None, None, :]  # (S, N, D, encoding)
    sums = added.cumsum(dim=0) - added
    scores = policy.scores(sums, table[:, None, :], rollout.inputs, rollout.excess, rollout.legal)
    log_shares = scores.log_softmax(dim=-1)
    log_likelihood = (log_shares * chosen).sum(dim=-1)  # (S, N)
    advantage = (rollout.returns - rollout.returns.mean()) / (rollout.returns.std() + 1e-6)
    policy_entropy = -(log_shares.exp() * log_shares * rollout.legal).sum(dim=-1)
    return (
        -(log_likelihood.sum(dim=0) * advantage).mean() / len(table) ** 0.5 - entropy * policy_entropy.sum(dim=0).mean()
    )
