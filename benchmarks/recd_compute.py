"""RecD's compute (O3, O5, O6, O7): whole training steps and their parts, plain batch against deduplicated batch."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.public_data import public_data
from benchmarks.recd_histories import HISTORY_KEYS, watch_histories
from benchmarks.recd_timing import medians, speedup
from benchmarks.recd_workload import (
    BATCH,
    DENSE_FEATURES,
    DIM,
    ITEM_KEYS,
    ROWS,
    SESSION_KEYS,
    Workload,
    inverse_of,
    lists_of,
    workload,
)
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.ops import jagged_index_select
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.embeddings.models.dlrm import DLRM
from shardgym.embeddings.models.inverse_bags import Batch, InverseBags
from shardgym.embeddings.models.sequence_layers import DINAttention
from shardgym.embeddings.models.sequences import Sequences, embed
from shardgym.embeddings.tables.table_batched import FBGEMM_AVAILABLE, TableBatchedBags
from shardgym.problem.tables import TableSpec

FACTORS = {"factor_1_15": 1.15, "factor_5": 5.0, "factor_16": 16.0}
BOTTOM, TOP = (256, 128), (256, 64)
HISTORY = 50
ATTENTION_BATCH = 4096


def torch_bags() -> InverseBags:
    """One nn.EmbeddingBag per table, sparse gradients."""
    return InverseBags(
        [([key], nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)) for key in SESSION_KEYS + ITEM_KEYS]
    )


def fused_bags() -> InverseBags:
    """FBGEMM's table-batched op, its update fused, one for the session features and one for the item's."""
    ops = []
    for keys in (SESSION_KEYS, ITEM_KEYS):
        op = TableBatchedBags([TableSpec(key, rows=ROWS, dim=DIM) for key in keys])
        for weight in op.weights():
            nn.init.normal_(weight, std=0.01)
        ops.append((keys, op))
    return InverseBags(ops)


class Trainer:
    """A DLRM whose MLPs are small beside its tables, trained by SGD."""

    def __init__(self, bags: InverseBags, own_update: bool) -> None:
        torch.manual_seed(0)
        self.model = DLRM(bags, DENSE_FEATURES, BOTTOM, TOP)
        # A fused op updates its tables in backward; their parameters only carry its state.
        tables = {id(parameter) for parameter in bags.parameters()}
        trained = [p for p in self.model.parameters() if not own_update or id(p) not in tables]
        self.optimizer = torch.optim.SGD(trained, lr=0.01)

    def step(self, load: Workload, batch: Batch) -> None:
        """Forward, loss, backward, update."""
        self.optimizer.zero_grad()
        F.binary_cross_entropy_with_logits(self.model(load.dense, batch), load.labels).backward()
        self.optimizer.step()


def _train_steps(trainer: Trainer) -> dict[str, float]:
    ratios = {}
    for name, factor in FACTORS.items():
        load = workload(factor)
        plain = load.batch.to_kjt()
        ratios[name] = speedup(lambda: trainer.step(load, plain), lambda: trainer.step(load, load.batch))  # noqa: B023
    return ratios


def train_step() -> dict[str, Any]:
    """Whole DLRM steps with nn.EmbeddingBag."""
    return {"train_step": _train_steps(Trainer(torch_bags(), own_update=False))}


def train_step_fbgemm() -> dict[str, Any]:
    """Whole DLRM steps with FBGEMM's fused op; nothing where it is not installed."""
    if not FBGEMM_AVAILABLE:
        return {}
    return {"train_step_fbgemm": _train_steps(Trainer(fused_bags(), own_update=True))}


def _histories(factor: float) -> InverseKeyedJaggedTensor:
    """A watch history per session and a candidate that repeats with it."""
    generator = torch.Generator().manual_seed(1)
    inverse = inverse_of(factor, ATTENTION_BATCH, generator)
    return InverseKeyedJaggedTensor(
        [FeatureGroup(lists_of(["history"], int(inverse[-1]) + 1, HISTORY, generator), inverse)]
    )


def _attention(table: nn.Embedding, attention: DINAttention, batch: Batch, queries: torch.Tensor) -> None:
    """Embed, attend, backward; one query per row of the sequences."""
    sequences = embed(batch, ["history"], [table])
    if len(queries) == sequences.rows():
        pooled = sequences.per_sample(attention(queries, sequences))
    else:
        pooled = attention(queries, sequences.one_row_per_sample())
    table.zero_grad()
    attention.zero_grad()
    pooled.sum().backward()


def attention() -> dict[str, Any]:
    """DIN attention on unique rows over the same on all rows, a share of the factor; the least over the factors."""
    torch.manual_seed(0)
    table, unit = nn.Embedding(ROWS, DIM, sparse=True), DINAttention(DIM)
    repeating, own = {}, {}
    for factor in (5.0, 16.0):
        batch = _histories(factor)
        plain, U = batch.to_kjt(), batch.groups[0].unique_rows()
        unique = torch.randn(U, DIM)
        every = unique[batch.groups[0].inverse]
        taken = medians(
            {
                "plain": lambda: _attention(table, unit, plain, every),  # noqa: B023
                "unique": lambda: _attention(table, unit, batch, unique),  # noqa: B023
                "own": lambda: _attention(table, unit, batch, every),  # noqa: B023
            },
            rounds=15,
        )
        repeating[factor] = taken["plain"] / taken["unique"] / factor
        own[factor] = taken["plain"] / taken["own"]
    return {
        "attention_over_factor": min(repeating.values()),
        # Beside it: each sample has a candidate of its own, so only look-up and projection are shared.
        "attention_own_candidate": {f"factor_{factor:.0f}": ratio for factor, ratio in own.items()},
    }


def partial_factor() -> dict[str, Any]:
    """Values of KuaiRand watch histories of 50, in batches clustered by user, over values held; exact lists beside."""
    path = public_data("kuairand_events.parquet")
    if path is None:
        return {}
    histories = watch_histories(path, HISTORY)
    values = windows = lists = 0
    for rows in torch.arange(histories.stride()).split(BATCH):
        batch = histories.index_select(rows)
        partial = PartialInverseKeyedJaggedTensor.from_kjt(batch, [HISTORY_KEYS])
        if not partial.to_kjt().equal(batch):
            raise AssertionError("windows do not expand to the batch they were found in")
        values += len(batch.values())
        windows += sum(group.values.numel() for group in partial.groups)
        lists += len(InverseKeyedJaggedTensor.from_kjt(batch, [HISTORY_KEYS]).groups[0].unique.values())
    return {"partial_factor": values / windows, "partial_exact_factor": values / lists}


def ablation() -> dict[str, Any]:
    """What each technique gives by itself at factor 5."""
    load = workload(5.0)
    plain, batch = load.batch.to_kjt(), load.batch
    trainer = Trainer(torch_bags(), own_update=False)
    bags, tables = trainer.model.bags, torch.optim.SGD(trainer.model.bags.parameters(), lr=0.01)

    def converted() -> None:
        groups = [SESSION_KEYS]
        trainer.step(load, InverseKeyedJaggedTensor.from_kjt(plain, groups))

    def look_up(features: Batch) -> None:
        tables.zero_grad()
        bags(features).sum().backward()
        tables.step()

    return {
        "ablation": {
            # O3: convert in the training process, then train on the unique rows.
            "O3": speedup(lambda: trainer.step(load, plain), converted, rounds=9),
            "O5": speedup(lambda: look_up(plain), lambda: look_up(batch), rounds=9),
            "O6": _expansion(),
            "O7": _pooling_attention(),
        }
    }


def _expansion() -> float:
    """Expanding embedded histories without padding over expanding them padded, forward and backward."""
    group = _histories(5.0).groups[0]
    lists = group.unique
    values = torch.randn(len(lists.values()), DIM, requires_grad=True)
    embedded = Sequences(values, lists.offsets()[:-1], lists.lengths(), None, side_by_side=True)

    def jagged() -> None:
        jagged_index_select(values, lists.offsets(), group.inverse)[0].sum().backward()

    def padded() -> None:
        lengths = embedded.lengths
        L = int(lengths.max())
        inside = torch.arange(L) < lengths.unsqueeze(1)
        rows = values.new_zeros(len(lengths), L, DIM).masked_scatter(inside.unsqueeze(2), values)
        rows.index_select(0, group.inverse).sum().backward()

    return speedup(padded, jagged, rounds=9)


def _pooling_attention() -> float:
    """DIN attention over embedded histories on unique rows, over all rows."""
    torch.manual_seed(0)
    table, unit = nn.Embedding(ROWS, DIM, sparse=True), DINAttention(DIM)
    batch = _histories(5.0)
    plain = batch.to_kjt()
    unique = torch.randn(batch.groups[0].unique_rows(), DIM)
    every = unique[batch.groups[0].inverse]
    return speedup(
        lambda: _attention(table, unit, plain, every), lambda: _attention(table, unit, batch, unique), rounds=9
    )


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "train_step": train_step,
    "train_step_fbgemm": train_step_fbgemm,
    "attention": attention,
    "partial": partial_factor,
    "ablation_compute": ablation,
}
