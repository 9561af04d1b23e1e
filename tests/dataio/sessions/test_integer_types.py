"""Ids of every width and sign stay exact through clustering, reading and deduplication to the model."""

import tempfile
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from hypothesis import given, settings, strategies as st
from torch import nn

from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.transforms import Bucketize, Clamp, HashIds
from shardgym.embeddings.jagged.inverse_keyed import InverseKeyedJaggedTensor
from shardgym.embeddings.jagged.partial_inverse import PartialInverseKeyedJaggedTensor
from shardgym.embeddings.models.inverse_bags import InverseBags
from shardgym.embeddings.models.sequences import embed

pytest.importorskip("duckdb", reason="clustering needs the extra `sessions`")

WIDTHS = [pa.int8(), pa.int16(), pa.int32(), pa.int64(), pa.uint8(), pa.uint16(), pa.uint32(), pa.uint64()]
FORMS = ("exact", "partial", "none")
ROWS = 1000


def ids_of(kind):
    limits = np.iinfo(kind.to_pandas_dtype())
    near = [v for v in (limits.min, limits.max, 0, 2**53 + 1, 2**63 - 1, 2**63 + 1) if limits.min <= v <= limits.max]
    return st.sampled_from(near) | st.integers(int(limits.min), int(limits.max))


@st.composite
def logs(draw):
    """A table with a feature of one integer type in every form, whose lists slide, repeat and change."""
    kind = draw(st.sampled_from(WIDTHS))
    state = draw(st.lists(ids_of(kind), min_size=3, max_size=5))
    lists = []
    for _ in range(draw(st.integers(1, 8))):
        state = state + [draw(ids_of(kind))] if draw(st.booleans()) else state
        lists.append(state[-3:])
    sessions = draw(st.lists(st.sampled_from([3, 2**63 + 9]), min_size=len(lists), max_size=len(lists)))
    columns = {
        "session_id": pa.array(sessions, pa.uint64()),
        "timestamp": pa.array(range(len(lists)), pa.int64()),
        "item": pa.array([values[-1] for values in lists], kind),
        **{form: pa.array(lists, pa.list_(kind)) for form in FORMS},
    }
    return pa.table(columns)


def read_back(folder, table, **options):
    schema = SessionSchema(samples=("item",), groups=tuple(GroupSpec(form, (form,), form) for form in FORMS))
    pq.write_table(table, folder / "log.parquet")
    cluster(folder / "log.parquet", folder / "out", schema, ClusterSettings(partitions=1))
    names = ("timestamp", "item")
    return list(SessionDataset(folder / "out", 3, samples=names, drop_last=False, **options))


def rows_in(features, form):
    return [row.tolist() for row in features[form].to_dense()]


@settings(max_examples=60)
@given(logs())
def test_ids_are_exact_through_cluster_read_and_dedup(table):
    with tempfile.TemporaryDirectory() as name:
        rows = {row["timestamp"]: row for row in table.to_pylist()}
        seen = 0
        for batch in read_back(Path(name), table):
            times = batch.samples["timestamp"].tolist()
            assert batch.samples["item"].tolist() == [rows[at]["item"] for at in times]
            expanded = batch.features.to_kjt()
            again = [
                InverseKeyedJaggedTensor.from_kjt(expanded, [["exact"], ["none"]]),
                PartialInverseKeyedJaggedTensor.from_kjt(expanded, [["partial"]]),
                batch.features.index_select(torch.arange(len(times))),
            ]
            for features in (batch.features, expanded, *again):
                for form in FORMS:
                    assert rows_in(features, form) == [rows[at][form] for at in times]
            seen += len(times)
        assert seen == table.num_rows


@settings(max_examples=30)
@given(logs())
def test_models_look_up_what_the_ids_say(table):
    wide = pa.types.is_uint64(table.schema.field("exact").type.value_type)
    with tempfile.TemporaryDirectory() as name:
        transforms = {form: [HashIds(ROWS, salt=4)] for form in FORMS}
        hashed = read_back(Path(name), table, transforms=transforms)
        rows = {row["timestamp"]: row for row in table.to_pylist()}
        bags = InverseBags([([form], nn.EmbeddingBag(ROWS, 4, mode="sum")) for form in FORMS])
        embedding = nn.Embedding(ROWS, 4)
        for batch in hashed:
            times = batch.samples["timestamp"].tolist()
            signed = {at: np.array(rows[at]["exact"], np.uint64 if wide else np.int64).astype(np.int64) for at in times}
            expected = {at: HashIds(ROWS, salt=4).values(torch.from_numpy(signed[at])) for at in times}
            pooled = bags(batch.features).view(len(times), len(FORMS), 4)
            for b, at in enumerate(times):
                for k, module in enumerate(bags.bags):
                    torch.testing.assert_close(pooled[b, k], module.weight[expected[at]].sum(0))
            sequences = embed(batch.features, ["partial"], [embedding]).one_row_per_sample()
            flat = torch.cat([embedding(expected[at]) for at in times])
            torch.testing.assert_close(sequences.at_positions(sequences.values), flat)


@pytest.mark.parametrize("kind", WIDTHS, ids=str)
def test_small_ids_of_every_type_index_tables_as_they_are(tmp_path, kind):
    lists = [[1, 2], [1, 2], [7]]
    columns = {"session_id": pa.array([1, 1, 1]), "timestamp": pa.array([1, 2, 3]), "item": pa.array([5, 6, 7], kind)}
    table = pa.table({**columns, **{form: pa.array(lists, pa.list_(kind)) for form in FORMS}})
    (batch,) = read_back(tmp_path, table)
    module = nn.EmbeddingBag(8, 4, mode="sum")
    bags = InverseBags([([form], module) for form in FORMS])
    expected = torch.stack([module.weight[torch.tensor(row)].sum(0) for row in lists]).repeat(1, 3)
    torch.testing.assert_close(bags(batch.features), expected)
    assert (batch.samples["item"].long() - 5).tolist() == [0, 1, 2]


def test_transforms_order_unsigned_ids_as_unsigned(tmp_path):
    values = torch.tensor([1, 2**63 + 5, 2**64 - 1], dtype=torch.uint64)
    assert Clamp(5, 2**63 + 9).values(values).tolist() == [5, 2**63 + 5, 2**63 + 9]
    assert Bucketize((2, 2**63, 2**63 + 6)).values(values).tolist() == [0, 2, 3]
