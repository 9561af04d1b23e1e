"""Table files, the generator's marginals, and ids drawn to match reuse bins."""

import json
from dataclasses import replace

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings, strategies as st
from scipy.stats import spearmanr

from shardgym.dataio.index_draw import draw_ids, draw_indices, scatter_rows
from shardgym.dataio.tables.public_tables import CRITEO_KAGGLE_ROWS, criteo_kaggle
from shardgym.dataio.tables.reuse import count_bins, even_reuse, reference_counts
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.dataio.tables.table_files import read_tables, write_tables
from shardgym.problem.errors import InputError
from shardgym.problem.tables import REFERENCE_BATCH, Dedup, TableSpec, TensorTrainFormat


@pytest.mark.parametrize("ending", [".json", ".csv", ".parquet"])
def test_tables_round_trip(tmp_path, ending):
    tables = (*dlrm_like(5, seed=1), TableSpec("x", 10, 4, dtype="int8", dedup=Dedup(16.0, 0.9), group="user"))
    path = tmp_path / f"tables{ending}"
    write_tables(path, tables)
    assert read_tables(path) == tables
    assert [p.name for p in tmp_path.iterdir()] == [path.name]


def test_tensor_train_tables_round_trip_in_json_and_are_refused_in_csv(tmp_path):
    tables = (TableSpec("t", 100, 8, tensor_train=TensorTrainFormat((4,), (10, 10), (2, 4), cached_rows=3)),)
    write_tables(tmp_path / "t.json", tables)
    assert read_tables(tmp_path / "t.json") == tables
    with pytest.raises(InputError, match=r"write \.json"):
        write_tables(tmp_path / "t.csv", tables)


@pytest.mark.parametrize(
    ("name", "content", "message"),
    [
        ("a.json", '{"tables": [{"name": "x", "rows": -5, "dim": 4}]}', r"a\.json.*'x'.*rows is -5"),
        ("a.json", '{"tables": [{"name": "x", "rows": 5, "dim": 4, "dtype": "fp8"}]}', r"dtype is 'fp8'.*fp32"),
        ("a.json", '{"tables": [{"name": "x", "rows": 5}]}', "'dim' is missing"),
        ("a.json", '{"tables": [{"name": "x", "rows": 5, "dim": 4, "color": 1}]}', "'color' is unknown"),
        ("a.json", '{"tables": [{"name": "x", "rows": "5", "dim": 4}]}', "rows is '5'"),
        ("a.json", '{"tables": []}', "holds no table"),
        ("a.json", '{"tables"', "not valid JSON"),
        ("a.json", "[]", "'tables' is missing"),
        ("a.csv", "name,rows,dim\nx,many,4\n", r"a\.csv.*line 2.*'rows' is 'many'"),
        ("a.csv", "name,rows,dim,speed\nx,1,4,3\n", "'speed' is unknown"),
        ("a.parquet", "PAR1 cut short", r"a\.parquet.*not a readable Parquet"),
        ("a.txt", "", r"'\.txt' is unknown"),
    ],
)
def test_a_bad_file_is_named_with_its_field(tmp_path, name, content, message):
    (tmp_path / name).write_text(content)
    with pytest.raises(InputError, match=message):
        read_tables(tmp_path / name)


def test_public_set_reads_with_a_default_dim(public_file):
    tables = read_tables(public_file("dlrm_tables_856.parquet"), default_dim=16)
    assert len(tables) == 856
    assert {table.dim for table in tables} == {16}
    assert tables[1].rows == 11714665
    assert tables[1].pooling == pytest.approx(43.140533)


def test_criteo_kaggle_is_the_published_size():
    tables = criteo_kaggle()
    assert sum(CRITEO_KAGGLE_ROWS) == 33_762_577
    assert sum(4 * t.rows * t.dim for t in tables) == pytest.approx(2.16e9, rel=1e-3)


def test_generated_marginals_follow_the_public_tables(public_file):
    public = {k: np.array(v) for k, v in pq.read_table(public_file("dlrm_tables_856.parquet")).to_pydict().items()}
    tables = dlrm_like(4000, seed=0)
    rows = np.array([t.rows for t in tables])
    pooling = np.array([t.pooling for t in tables])
    assert abs((rows == 100).mean() - 0.15) < 0.02
    for share in (0.3, 0.5, 0.75, 0.9):
        assert (rows <= np.quantile(public["rows"], share)).mean() == pytest.approx(share, abs=0.06)
        assert (pooling <= np.quantile(public["pooling_factor"], share)).mean() == pytest.approx(share, abs=0.06)
    assert spearmanr(rows, pooling).statistic == pytest.approx(0.45, abs=0.05)
    bins = np.stack([public[f"bin_{k}"] for k in range(17)], axis=1)
    bins = bins[bins.sum(axis=1) > 0.5]
    drawn = np.array([t.reuse_bins for t in tables])
    np.testing.assert_allclose(drawn.mean(axis=0), bins.mean(axis=0), atol=0.06)


def test_same_seed_same_tables():
    assert dlrm_like(20, seed=3) == dlrm_like(20, seed=3)
    assert dlrm_like(20, seed=3) != dlrm_like(20, seed=4)


@pytest.mark.parametrize("k", range(8))
def test_drawn_ids_reproduce_the_reuse_bins(k):
    tables = [t for t in dlrm_like(60, seed=5) if 0.5 <= t.pooling < 30 and reference_counts(t)[0].sum() > 5000]
    table = tables[k]
    ids = draw_ids(table, round(REFERENCE_BATCH * table.pooling), np.random.default_rng(k))
    _, counts = np.unique(ids, return_counts=True)
    np.testing.assert_allclose(count_bins(counts), table.reuse_bins, atol=0.02)


@settings(max_examples=50, deadline=None)
@given(
    rows=st.integers(1, 5000),
    pooling=st.floats(0, 6),
    hot=st.integers(0, 16),
    batch=st.integers(1, 400),
    seed=st.integers(0, 9),
)
def test_any_table_gets_ids_in_range_and_bags_of_its_pooling_factor(rows, pooling, hot, batch, seed):
    bins = tuple(float(k == hot) for k in range(17))
    table = TableSpec("t", rows, 4, pooling=pooling, reuse_bins=bins)
    indices, offsets = draw_indices([table, replace(table, name="u")], batch, np.random.default_rng(seed))
    lengths = offsets.diff()
    assert len(offsets) == 2 * batch + 1
    assert offsets[-1] == len(indices)
    assert ((lengths == int(pooling)) | (lengths == int(pooling) + 1)).all()
    assert ((indices >= 0) & (indices < rows)).all()


@given(rows=st.integers(1, 3000))
def test_scattered_rows_are_a_bijection(rows):
    assert sorted(scatter_rows(np.arange(rows), rows)) == list(range(rows))


def test_even_reuse_of_one_hot_tables():
    assert even_reuse(10**7, REFERENCE_BATCH)[0] == 1.0
    assert even_reuse(3, REFERENCE_BATCH)[15] == 1.0  # each of 3 rows about 21,845 times
    json.dumps(even_reuse(3, REFERENCE_BATCH))
