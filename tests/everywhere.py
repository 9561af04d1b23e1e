"""Prints a digest of what must come out the same on every processor and thread count; run in a process of its own."""

import hashlib
import json
import warnings

import gymnasium as gym
import numpy as np

import shardgym  # noqa: F401  registers the environments
from shardgym.agents.judging.certificates import certify, check
from shardgym.agents.learning.pretrained import pretrained_agent
from shardgym.agents.planners.construction import CostedTask
from shardgym.agents.planners.heuristics import LargestFirstPlanner, RandomPlanner, heuristic_planners
from shardgym.agents.planners.local_search import descend
from shardgym.agents.planners.search_state import SearchState
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.costmodel.shipped import shipped_cost
from shardgym.envs.families import FAMILIES, family
from shardgym.problem.task_files import task_to_record


def digest(*parts) -> str:
    """Of arrays by their bytes, of anything else by its JSON."""
    total = hashlib.sha256()
    for part in parts:
        total.update(part.tobytes() if isinstance(part, np.ndarray) else json.dumps(part).encode())
    return total.hexdigest()[:16]


def main() -> None:
    warnings.simplefilter("ignore")
    found = {}
    for name in FAMILIES:
        if name != "large-1000x128":
            found[f"task {name}"] = digest(task_to_record(family(name).task(1, "test")))
    for kind, model in (("shipped", shipped_cost()), ("roofline", RooflineCost())):
        task = family("mixed-50x4").task(0, "test")
        device_of = np.random.default_rng(0).integers(-1, 4, size=(50, 50))
        found[f"price {kind}"] = digest(model.table_states(task), model.costs(task, device_of).phases)
        planners = [RandomPlanner(), *heuristic_planners(), LargestFirstPlanner(model), pretrained_agent(model)]
        placements = [planner.plan(task, 1.0) for planner in planners]
        found[f"plans {kind}"] = digest([placement.device_of for placement in placements])
        state = SearchState(CostedTask.of(task, model), placements[0].array())
        descend(state, np.random.default_rng(0), np.inf)
        found[f"search {kind}"] = digest(state.device_of, state.step)
        certificate = certify(task, placements[-1], model)
        found[f"certificate {kind}"] = digest(check(certificate, task, model).step_ms)
    twin = gym.make_vec("shardgym/FormatPlacement-v1", num_envs=8, tasks="overfull-20x4")
    rng = np.random.default_rng(0)
    observation, info = twin.reset(seed=0)
    seen = []
    for _ in range(30):
        mask = info["action_mask"]
        actions = np.where(mask, rng.random(mask.shape), -1).argmax(axis=1)
        observation, reward, *_, info = twin.step(actions)
        seen += [reward, *(observation[key] for key in ("device_costs", "memory_left", "legal"))]
    found["twin"] = digest(*seen)
    print(json.dumps(found))


if __name__ == "__main__":
    main()
