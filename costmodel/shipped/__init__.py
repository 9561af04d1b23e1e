"""The measurements and the network that come with the package, so that nothing need be measured to begin."""

from functools import lru_cache
from pathlib import Path

from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.all_to_all_samples import AllToAllSample, read_exchanges
from shardgym.costmodel.measuring.samples import GroupSample, read_samples

FOLDER = Path(__file__).parent
NETWORK = FOLDER / "network.pt"
GROUPS = FOLDER / "groups.parquet"
EXCHANGES = FOLDER / "exchanges.parquet"
CARD = FOLDER / "CARD.md"


@lru_cache(maxsize=1)
def shipped_cost() -> LearnedCost:
    """The cost network fitted on the shipped measurements: one CPU core of the machine that the data card describes."""
    return LearnedCost.load(NETWORK)


def shipped_samples() -> list[GroupSample]:
    """The shipped measurements of groups of tables, in the order in which they were taken."""
    return read_samples(GROUPS)


def shipped_exchanges() -> list[AllToAllSample]:
    """The shipped measurements of all-to-alls."""
    return read_exchanges(EXCHANGES)
