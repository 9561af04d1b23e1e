"""A trained agent: a policy that places tables one after another, and its file."""

from copy import deepcopy
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from shardgym.agents.learning.policy_network import Decision, PlacementPolicy
from shardgym.agents.planners.construction import Construction, CostedTask
from shardgym.agents.planners.planner import require_feasible
from shardgym.agents.planners.repair import finish
from shardgym.costmodel.networks.saved_files import read_network_file, write_network_file
from shardgym.costmodel.pricing.features import FEATURE_NAMES, table_features
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.placements import Placement
from shardgym.problem.tasks import Task

FILE_KIND = "shardgym agent 2"

SCORE_GRID = 2.0**20
"""Scores are compared in whole multiples of one over this; of equal ones the first device wins."""


@public("shardgym.agents")
class Agent:
    """A placement policy and the cost model it reads.

    The policy sees costs only as ratios, so it may be used with another cost model than it was trained on.

    Args:
        policy: trained.
        cost_model: what it reads costs from.
        trained_on: tasks and cost model of its training, for reports.
    """

    name = "agent"

    def __init__(self, policy: PlacementPolicy, cost_model: SummedCostModel, trained_on: str = "") -> None:
        self.policy = policy.eval()
        # Decides in float64 and on rounded scores, so that the same device wins on every processor.
        self._exact = deepcopy(policy).double()
        self.cost_model = cost_model
        self.trained_on = trained_on

    @torch.no_grad()
    def plan(self, task: Task, budget_seconds: float = 1.0) -> Placement:
        """Place each table on the device the policy scores highest; the same task gives the same placement.

        Where memory is so tight that a table is left without room, tables are moved to make some.
        Raises as `Planner.plan`.
        """
        require_feasible(task)
        costed = CostedTask.of(task, self.cost_model)
        episode = Construction(costed, 1)
        encodings = self._exact.encoder(raw_features(task).double())
        sums = torch.zeros(1, task.devices, encodings.shape[1], dtype=torch.float64)
        while not episode.done and episode.legal().any():
            table, after = episode.table, episode.costs_after()
            scores = self._exact.logits(sums, encodings[table], in_double(decide(episode, after)))
            device = int(torch.round(scores * SCORE_GRID).argmax())
            sums[0, device] += encodings[table]
            episode.place(np.array([device]), after)
        return finish(costed, episode.device_of[0], budget_seconds)

    def save(self, path: Path) -> None:
        """Write the agent to one file, atomically. The cost model has its own file."""
        content = {"trained_on": self.trained_on, "weights": self.policy.state_dict()}
        write_network_file(path, FILE_KIND, content)

    @classmethod
    def load(cls, path: Path, cost_model: SummedCostModel) -> "Agent":
        """Read an agent's file.

        Raises:
            InputError: no such file, not an agent, or trained on other table features.
        """
        content = read_network_file(path, FILE_KIND, f"run `shardgym train --out {path}`")
        policy = PlacementPolicy(len(FEATURE_NAMES))
        policy.load_state_dict(content["weights"])
        return cls(policy, cost_model, content["trained_on"])


def raw_features(task: Task) -> Tensor:
    """(T, F) features of the tables, as the policy's encoder reads them."""
    return torch.from_numpy(table_features(task.tables, task.batch_size))


def in_double(decision: Decision) -> Decision:
    """The same in float64."""
    return Decision(*(each.double() if each.is_floating_point() else each for each in decision))


def decide(episode: Construction, after: np.ndarray) -> Decision:
    """What the policy is told about the table in hand, for each of N episodes.

    Args:
        episode: under way.
        after: (N, D, 4) of `Construction.costs_after`.
    """
    costed, table = episode.costed, episode.table
    rest = costed.order[episode.placed :]
    table_bytes, single = costed.task.table_bytes, costed.single_table_costs
    left = episode.memory_left - table_bytes[table]  # (N, D)
    bytes_to_come = float(table_bytes[rest].sum())
    legal = torch.from_numpy(left >= 0)
    room = torch.from_numpy(left / np.array(costed.task.device_memory)).float()
    mean_room = torch.from_numpy(left / (bytes_to_come / len(rest))).float()
    pressure = torch.from_numpy(bytes_to_come / np.maximum(episode.memory_left, 1).sum(axis=1)).float()
    fair = torch.from_numpy(costed.fair)
    return Decision(
        after=torch.from_numpy(after),
        now=torch.from_numpy(episode.costs),
        fair=fair,
        legal=legal,
        room=room,
        mean_room=mean_room,
        pressure=pressure,
        to_come=torch.full_like(pressure, float(single[rest].sum() / single.sum())),
        weight=torch.full_like(pressure, float(single[table] / costed.fair.sum())),
    )
