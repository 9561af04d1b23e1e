"""Who decides: planners, learning agents, and what judges them.

Planners: `planner.plan(task, budget_seconds)` gives a placement
    `heuristic_planners()`, `GreedyPlanner`, `RandomPlanner`, `LargestFirstPlanner`: rules.
    `LocalSearchPlanner`, `MilpPlanner`, `BeamSearchPlanner` (column splits, a `ShardedPlan`): search.
    `PortfolioPlanner(cost_model, (agent,))`: all within one budget. `Planner`: the protocol of your own.
    `InfeasibleTaskError`, `NoPlacementFoundError`: why there is no placement.

Learning
    `pretrained_agent(cost_model)`: the agent that comes with the package. `Agent.load(path, cost_model)`.
    `train_agent(tasks, cost_model, TrainingOptions(...))`: an `Agent` with a `PlacementPolicy`; tells `TrainingStatus`.
    `make_vec(id, num_envs)`: a vector twin (`TwinVecEnv`) for Stable-Baselines3.
    `PlacementActorCriticPolicy`, `MaskablePlacementPolicy`, `ActionFeatures`: policies for PPO, A2C and MaskablePPO;
    `transfer(...)` loads one for another size.
    `DreamShard`, `DreamShardPolicy`, `Schedules`: the published algorithm. `train_rnn`, `RnnPolicy`, `RnnPlanner`.

Judging
    `lower_bound(task, cost_model)`: a `Bound` no placement can go below.
    `certify(task, placement, cost_model)`, `check`, `write_certificate`, `read_certificate`: a `Certificate` of it.
    `compare(tasks, planners, budgets, cost_model)`, `summarise`, `suite_tasks`: planners at equal time, as `Trial`s
    and `Summary`s.
"""

import lazy_loader

__getattr__, __dir__, __all__ = lazy_loader.attach_stub(__name__, __file__)
