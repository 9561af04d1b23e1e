"""The agent that comes with the package, so that planning is good at once."""

from pathlib import Path

from shardgym.agents.learning.agent import Agent
from shardgym.costmodel.pricing.summed import SummedCostModel

AGENT = Path(__file__).parent / "agent.pt"


def pretrained_agent(cost_model: SummedCostModel) -> Agent:
    """The agent trained on the training halves of the suite's families (`python -m benchmarks.pretrain`).

    It was trained on the shipped cost network and reads costs as ratios, so that it plans by any cost model.
    """
    return Agent.load(AGENT, cost_model)
