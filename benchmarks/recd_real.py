"""RecD on generated logs with the statistics of public ones: short and long sessions, slates, sliding histories."""

import functools
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from torch import nn
from torch.nn import functional as F

from benchmarks.recd_compute import train_step_fbgemm
from benchmarks.recd_storage import flat_batches, folder, read_through, smallest_flat
from benchmarks.recd_timing import medians, speedup
from benchmarks.recd_workload import DIM, ROWS, inverse_of, lists_of, power_law_ids
from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
from shardgym.dataio.sessions.grouping import propose_groups
from shardgym.dataio.sessions.log import open_log
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.synthetic import LogSpec, SlidingGroup, StayingGroup, write_log
from shardgym.embeddings.jagged.inverse_keyed import FeatureGroup, InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor, WindowGroup
from shardgym.embeddings.models.dlrm import DLRM
from shardgym.embeddings.models.inverse_bags import Batch, InverseBags
from shardgym.embeddings.models.sequence_layers import DINAttention
from shardgym.embeddings.models.sequences import embed

BATCH = 2048
SAMPLES = 60_000
SESSIONS = (4, 6, 16, 40)
CANDIDATES = 16
WINDOWS = ((2, 20, 12.0), (4, 10, 1.0), (4, 50, 0.5), (16, 50, 0.5), (40, 50, 0.2))
"""Samples per session, ids per list and ids by which a window moves: values over shared values of 1.3 to 35."""


def reading() -> dict[str, Any]:
    """Samples per second, clustered over flat Parquet and KJT, one thread, 2,048 samples per batch.

    Each the lesser of shuffled and not; the flat log is sorted by time and never shuffled.
    """
    ratios = {}
    for S in SESSIONS:
        spec = LogSpec(
            sessions=SAMPLES // S,
            samples_per_session=S,
            groups=(
                StayingGroup(GroupSpec("user", ("tags", "follows")), stay=0.98, length=20),
                SlidingGroup(GroupSpec("history", ("videos", "authors"), "partial"), window=50, shift=0.5),
            ),
            seed=S,
        )
        raw, out = write_log(spec, folder() / f"real-{S}"), folder() / f"real-{S}-clustered"
        cluster(raw, out, settings=ClusterSettings(partitions=1))
        flat = pq.read_table(raw, columns=list(spec.schema.columns))
        smallest_flat(flat, f"real-{S}")
        steps: dict[str, Callable[[], object]] = {
            name: functools.partial(
                lambda shuffled, out: read_through(SessionDataset(out, BATCH, shuffle=shuffled)), on, out
            )
            for name, on in (("in order", False), ("shuffled", True))
        }
        for form in ("dictionary", "plain", "split", "smallest"):
            path = folder() / f"real-{S}-{form}.parquet"
            steps[form] = functools.partial(
                lambda path, spec: read_through(flat_batches(path, spec.schema, BATCH)), path, spec
            )
        threads = torch.get_num_threads()
        taken = medians(steps, rounds=5, threads=1)
        torch.set_num_threads(threads)
        best = min(taken[form] for form in ("dictionary", "plain", "split", "smallest"))
        ratios[f"sessions_{S}"] = best / max(taken["in order"], taken["shuffled"])
    return {"reader": ratios}


def windows(S: int, length: int, shift: float) -> PartialInverseKeyedJaggedTensor:
    """A batch whose lists slide inside each session."""
    rng = np.random.default_rng(S)
    moves = rng.poisson(shift, BATCH // S * S)
    moves[::S] = length
    starts = torch.from_numpy(np.cumsum(moves) - length)
    generator = torch.Generator().manual_seed(S)
    ids = power_law_ids(int(starts[-1]) + length, ROWS, generator).unsqueeze(0)
    lengths = torch.full((len(starts),), length, dtype=torch.int32)
    batch = PartialInverseKeyedJaggedTensor([WindowGroup(("h",), ids, starts.int(), lengths)], validate=False)
    return batch.index_select(torch.arange(len(starts)))


def partial_lookup() -> dict[str, Any]:
    """Pooled look-ups, forward, backward and update, of the lists over those of windows; the least over the factors."""
    table = nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)
    bags, optimizer = InverseBags([(["h"], table)]), torch.optim.SGD(table.parameters(), lr=0.01)

    def step(batch: Batch) -> None:
        optimizer.zero_grad()
        bags(batch).sum().backward()
        optimizer.step()

    gains = {}
    for shape in WINDOWS:
        batch = windows(*shape)
        plain = batch.to_kjt()
        gains[f"factor_{batch.factor():.1f}"] = speedup(lambda: step(plain), lambda: step(batch), rounds=11)  # noqa: B023
    return {"partial_lookup": min(gains.values()), "partial_lookup_by_factor": gains}


def din_candidates() -> dict[str, Any]:
    """DIN's attention with a candidate per sample: histories of all samples over histories held once per session."""
    torch.manual_seed(0)
    table, unit = nn.Embedding(ROWS, DIM, sparse=True), DINAttention(DIM)
    generator = torch.Generator().manual_seed(1)
    inverse = inverse_of(CANDIDATES, BATCH, generator)
    group = FeatureGroup(lists_of(["history"], int(inverse[-1]) + 1, 50, generator), inverse)
    batch = InverseKeyedJaggedTensor([group])
    plain, query = batch.to_kjt(), torch.randn(BATCH, DIM)

    def step(features: Batch, attend: Callable[..., torch.Tensor]) -> None:
        table.zero_grad()
        unit.zero_grad()
        attend(query, embed(features, ["history"], [table])).sum().backward()

    taken = medians(
        {
            "plain": lambda: step(plain, unit.per_sample),
            "plain torch": lambda: step(plain, unit.reference),
            "shared": lambda: step(batch, unit.per_sample),
        },
        rounds=9,
    )
    return {
        "din_candidates_16": min(taken["plain"], taken["plain torch"]) / taken["shared"],
        "din_candidates_16_vs_torch": taken["plain torch"] / taken["shared"],
    }


def slate_log(path: Path) -> SessionSchema:
    """A slate shown with each of its items, few or many; its user's tags; the item itself."""
    rng = np.random.default_rng(0)
    columns: dict[str, list] = {name: [] for name in ("session_id", "timestamp", "label", "slate", "tags", "item")}
    for session in range(4_000):
        slate = rng.integers(0, ROWS, 2 + min(200, int(5 * rng.pareto(1.3)))).tolist()
        tags = rng.integers(0, ROWS, rng.integers(10, 60)).tolist()
        for item in slate:
            for name, value in zip(columns, (session, len(columns["label"]), len(slate) % 2, slate, tags, [item])):
                columns[name].append(value)
    pq.write_table(pa.table(columns), path)
    return SessionSchema(
        samples=("label",), groups=tuple(GroupSpec(name, (name,)) for name in ("slate", "tags", "item"))
    )


def slate_step() -> dict[str, Any]:
    """DLRM steps on a log of slates, in the groups that are proposed for it: plain batch over deduplicated batch."""
    with tempfile.TemporaryDirectory() as name:
        raw, out = Path(name) / "log.parquet", Path(name) / "clustered"
        schema = slate_log(raw)
        proposed = propose_groups(open_log(raw, schema), 20_000).schema(schema)
        cluster(raw, out, proposed, ClusterSettings(partitions=1))
        batches = [batch.features for batch in SessionDataset(out, BATCH, shuffle=True)][:4]
    torch.manual_seed(0)
    model = DLRM(
        InverseBags([([key], nn.EmbeddingBag(ROWS, DIM, mode="sum", sparse=True)) for key in schema.features]),
        13,
        (256, 128),
        (256, 64),
    )
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    dense, labels = torch.randn(BATCH, 13), torch.zeros(BATCH)
    plain = [batch.to_kjt() for batch in batches]

    def steps(features: list[Batch]) -> None:
        for batch in features:
            optimizer.zero_grad()
            F.binary_cross_entropy_with_logits(model(dense, batch), labels).backward()
            optimizer.step()

    return {"slate_step": speedup(lambda: steps(plain), lambda: steps(batches), rounds=9)}


def train_step_vs_fbgemm() -> dict[str, Any]:
    """Whole steps with FBGEMM's own bags: plain batch over deduplicated batch."""
    measured = train_step_fbgemm()
    return {"train_step_vs_fbgemm": measured["train_step_fbgemm"]} if measured else {}


def real() -> dict[str, Any]:
    """All of them."""
    numbers: dict[str, Any] = {}
    for part in (reading, partial_lookup, din_candidates, slate_step, train_step_vs_fbgemm):
        numbers.update(part())
    return numbers


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {"real": real}
