"""DreamShard's cost network (arXiv 2210.02023, section 3.2 and appendix), as a baseline to compare with.

Kept: its 21 features, its layer sizes, sums over tables, a maximum over devices for the overall cost, the sum of mean
squared errors in milliseconds, Adam at 5e-4 with linear decay, batches of 64. Not kept: features are normalised with
fixed statistics, since the published code's statistics per task make one table look different in two tasks. Its three
heads of a device are forward, backward communication and backward; samples without communication train two.

It does not see the batch size or the dtype, since DreamShard fixes both; `features_with_batch` shows them to it.
"""

from collections.abc import Callable, Sequence

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from shardgym.costmodel.measuring.samples import GroupSample
from shardgym.costmodel.networks.normalised import NormalisedNetwork
from shardgym.costmodel.pricing.exchange import Exchange, NoExchange
from shardgym.costmodel.pricing.summed import SummedCostModel
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec
from shardgym.problem.tasks import Task

Features = Callable[[TableSpec, int], list[float]]
BATCH = 64
LEARNING_RATE = 5e-4


def published_features(table: TableSpec, batch_size: int) -> list[float]:
    """The 21 features of the paper: dim, rows, pooling factor, size, and the reuse bins."""
    return [table.dim, table.rows, table.pooling, table.dim * table.rows, *table.reuse_bins]


def features_with_batch(table: TableSpec, batch_size: int) -> list[float]:
    """The 21 features, then batch size, look-ups, numbers read, and whether the table is in fp16."""
    lookups = batch_size * table.pooling
    return [
        *published_features(table, batch_size), batch_size, lookups, lookups * table.dim, float(table.dtype == "fp16"),
    ]  # fmt: skip


class DreamShardNetwork(NormalisedNetwork):
    """Table MLP F -> 128 -> 32, sum over tables, heads 32 -> 64 -> 1 for each phase and for the overall cost."""

    def __init__(self, features: int, phases: int = 2) -> None:
        super().__init__(features)
        self.tables = nn.Sequential(nn.Linear(features, 128), nn.ReLU(), nn.Linear(128, 32))
        self.phase_heads = nn.ModuleList(_head() for _ in range(phases))
        self.overall_head = _head()

    def table_states(self, features: Tensor) -> Tensor:
        """(T, F) to (T, 32)."""
        return self.tables(self.normalised(features))

    def phases(self, states: Tensor) -> Tensor:
        """Summed states (..., 32) to phases (..., phases) ms."""
        return torch.cat([head(states) for head in self.phase_heads], dim=-1)

    def overall(self, states: Tensor) -> Tensor:
        """Summed states of all devices (..., D, 32) to the overall cost (...,) ms."""
        return self.overall_head(states.amax(dim=-2)).squeeze(-1)


@public("shardgym.costmodel")
class DreamShardCost(SummedCostModel):
    """The baseline as a cost model. Its costs may be negative, and may fall when a table is added.

    Args:
        network: trained; phases forward and backward.
        features: of a table under a batch size.
    """

    def __init__(self, network: DreamShardNetwork, features: Features) -> None:
        self.network = network.eval()
        self.features = features

    @classmethod
    def fit(
        cls, samples: Sequence[GroupSample], steps: int, features: Features = published_features, seed: int = 0
    ) -> "DreamShardCost":
        """Train on measured groups, each being one device."""
        data = [torch.tensor([features(t, s.batch_size) for t in s.tables]) for s in samples]
        targets = torch.tensor([(s.forward_ms, s.backward_ms) for s in samples])
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            network = DreamShardNetwork(data[0].shape[1])
        network.set_normalisation(torch.cat(data))
        optimizer = torch.optim.Adam(network.parameters(), LEARNING_RATE)
        schedule = torch.optim.lr_scheduler.LinearLR(optimizer, 1.0, 0.0, steps)
        generator = torch.Generator().manual_seed(seed)
        for _ in range(steps):
            chosen = torch.randint(len(data), (BATCH,), generator=generator)
            groups = [data[k] for k in chosen.tolist()]
            group_of = torch.repeat_interleave(torch.arange(BATCH), torch.tensor([len(group) for group in groups]))
            states = network.table_states(torch.cat(groups))
            summed = states.new_zeros(BATCH, states.shape[1]).index_add_(0, group_of, states)
            wanted = targets[chosen]
            squared = (network.phases(summed) - wanted).square().mean(dim=0).sum()
            overall = (network.overall(summed[:, None]) - wanted.sum(dim=1)).square().mean()
            optimizer.zero_grad()
            (squared + overall).backward()
            optimizer.step()
            schedule.step()
        return cls(network, features)

    @torch.no_grad()
    def table_states(self, task: Task) -> NDArray[np.float32]:
        """What each table adds to its device, (T, 32)."""
        features = torch.tensor([self.features(table, task.batch_size) for table in task.tables])
        return self.network.table_states(features).numpy()

    @torch.no_grad()
    def compute_ms(self, states: NDArray[np.float32], task: Task) -> NDArray[np.float32]:
        """(..., 32) to (..., 2) ms."""
        phases = self.network.phases(torch.from_numpy(np.ascontiguousarray(states))).numpy()
        return phases * np.any(states != 0, axis=-1, keepdims=True)

    @property
    def exchange(self) -> Exchange:
        """None: groups of one device are all that it is fitted on."""
        return NoExchange()

    @torch.no_grad()
    def overall(self, states: NDArray[np.float32]) -> NDArray[np.float32]:
        """The overall head's cost of placements, (..., D, 32) to (...,) ms."""
        return self.network.overall(torch.from_numpy(states)).numpy()


def _head() -> nn.Sequential:
    return nn.Sequential(nn.Linear(32, 64), nn.ReLU(), nn.Linear(64, 1))
