"""The recurrent policy of DreamShard's comparison (after Mirhoseini et al., ICML 2017).

A recurrent network reads the tables in order and says a device for each; it knows nothing of sums, costs or memory
but what is legal. Its output has one number per device, so that it serves only the number of devices it was trained on.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from torch import Tensor, nn

from shardgym.agents.learning.agent import raw_features
from shardgym.agents.learning.policy_network import MASKED, TableEncoder
from shardgym.agents.learning.training import TrainingOptions
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.agents.planners.planner import require_feasible
from shardgym.agents.planners.repair import finish
from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task


@public("shardgym.agents")
class RnnPolicy(nn.Module):
    """Table encoder, bidirectional GRU over the tables in placing order, a score for each device.

    Args:
        features: raw features of a table.
        devices: D.
        hidden: width.
    """

    def __init__(self, features: int, devices: int, hidden: int = 64) -> None:
        super().__init__()
        self.encoder = TableEncoder(features, hidden, hidden)
        self.recurrent = nn.GRU(hidden, hidden, bidirectional=True, batch_first=True)
        self.scorer = nn.Linear(2 * hidden, devices)

    def forward(self, features: Tensor) -> Tensor:
        """(T, F) features in placing order to (T, D) scores."""
        read, _ = self.recurrent(self.encoder(features)[None])
        return self.scorer(read[0])


@public("shardgym.agents")
class RnnPlanner:
    """A trained recurrent policy.

    Args:
        policy: trained.
        cost_model: which orders the tables.
    """

    name = "rnn"

    def __init__(self, policy: RnnPolicy, cost_model: SummedCostModel) -> None:
        self.policy = policy
        self.cost_model = cost_model

    @torch.no_grad()
    def plan(self, task: Task, budget_seconds: float) -> Placement:
        """Each table to the legal device that scores highest. Raises as `Planner.plan`.

        Raises:
            InputError: the task has another number of devices than the policy was trained on.
        """
        require_feasible(task)
        if task.devices != self.policy.scorer.out_features:
            raise InputError(
                f"rnn: was trained on {self.policy.scorer.out_features} devices and task {task.name!r} has "
                f"{task.devices}; train one for that number"
            )
        costed = CostedTask.of(task, self.cost_model)
        scores = self.policy(raw_features(task)[torch.from_numpy(costed.order)]).numpy()
        placing = Construction(costed, 1)
        while not placing.done and placing.legal().any():
            device = np.where(placing.legal()[0], scores[placing.placed], MASKED).argmax()
            placing.place(np.array([device]), placing.costs_after())
        return finish(costed, placing.device_of[0], budget_seconds)


def train_rnn(
    tasks: Sequence[Task],
    cost_model: SummedCostModel,
    options: TrainingOptions = TrainingOptions(),
    progress: Callable[[int], None] = lambda update: None,
) -> RnnPlanner:
    """Train by REINFORCE like the agent, on tasks of one number of devices.

    Raises:
        InputError: no task, or tasks of different numbers of devices.
    """
    devices = {task.devices for task in tasks}
    if len(devices) != 1:
        raise InputError(f"rnn: the tasks have {sorted(devices)} devices; give tasks of one number of devices")
    torch.manual_seed(options.seed)
    rng, generator = np.random.default_rng(options.seed), torch.Generator().manual_seed(options.seed)
    costed = [CostedTask.of(task, cost_model) for task in tasks]
    features = [raw_features(c.task)[torch.from_numpy(c.order)] for c in costed]
    policy = RnnPolicy(len(FEATURE_NAMES), devices.pop())
    policy.encoder.set_normalisation(torch.cat(features))
    optimizer = torch.optim.Adam(policy.parameters(), options.learning_rate)
    for update in range(options.updates):
        optimizer.zero_grad()
        for k in rng.integers(len(tasks), size=options.tasks_per_update):
            (_loss(policy, costed[k], features[k], options, generator) / options.tasks_per_update).backward()
        nn.utils.clip_grad_norm_(policy.parameters(), 1.0)
        optimizer.step()
        progress(update + 1)
    return RnnPlanner(policy.eval(), cost_model)


def _loss(
    policy: RnnPolicy, costed: CostedTask, features: Tensor, options: TrainingOptions, generator: torch.Generator
) -> Tensor:
    scores = policy(features)  # (T, D)
    episodes = Construction(costed, options.episodes)
    likelihood = torch.zeros(options.episodes)
    while not episodes.done:
        legal = torch.from_numpy(episodes.legal())
        legal |= ~legal.any(dim=-1, keepdim=True)  # without room anywhere, anywhere; the overflow is paid for
        shares = scores[episodes.placed].masked_fill(~legal, MASKED).log_softmax(dim=-1)  # (N, D)
        noise = torch.empty_like(shares).exponential_(generator=generator).log()
        actions = (shares.detach() - noise).argmax(dim=-1)
        likelihood = likelihood + shares.gather(1, actions[:, None])[:, 0]
        episodes.place(actions.numpy(), episodes.costs_after())
    ratio = episodes.steps() / costed.fair.sum() + options.overflow * episodes.overflow()
    returns = torch.from_numpy(-ratio).float()
    advantage = (returns - returns.mean()) / (returns.std() + 1e-6)
    return -(likelihood * advantage).mean() / len(features) ** 0.5
