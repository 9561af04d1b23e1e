"""Planning time of production-sized models."""

import time
from typing import Any

import numpy as np

from shardgym.agents.learning.agent import Agent
from shardgym.agents.planners.portfolio import PortfolioPlanner
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.envs.families import BATCH, DEVICE_MEMORY, family
from shardgym.problem.tasks import Task

BUDGET = 4.5


def scale(agent: Agent) -> dict[str, Any]:
    """Seconds for 1,935 tables on 96 devices by the portfolio, and for 1,000 on 128 by the agent alone."""
    model = agent.cost_model
    task = Task(dlrm_like(1935, seed=96), (DEVICE_MEMORY,) * 96, BATCH, "1935x96")
    began = time.perf_counter()
    placement = PortfolioPlanner(model, (agent,)).plan(task, BUDGET)
    portfolio_s = time.perf_counter() - began
    placement.validate(task)
    large = family("large-1000x128").all_tasks()[0]
    seconds = []
    for _ in range(3):
        began = time.perf_counter()
        agent.plan(large).validate(large)
        seconds.append(time.perf_counter() - began)
    return {"scale_1935x96_s": portfolio_s, "agent_1000x128_s": float(np.median(seconds))}
