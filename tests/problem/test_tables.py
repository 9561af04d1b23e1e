"""TableSpec: sizes against arithmetic done by hand, and errors that name the field."""

import pytest

from shardgym.problem.errors import InputError
from shardgym.problem.tables import Dedup, TableSpec, TensorTrainFormat


@pytest.mark.parametrize(
    ("dtype", "expected"),
    [("fp32", 1000 * (16 * 4 + 4)), ("fp16", 1000 * (16 * 2 + 4)), ("int8", 1000 * 28), ("int4", 1000 * 16)],
)
def test_bytes_of_a_dense_table_count_weights_and_row_state(dtype, expected):
    assert TableSpec("t", rows=1000, dim=16, dtype=dtype).bytes() == expected


def test_bytes_of_a_tensor_train_table():
    # Criteo Kaggle's largest table at rank 32: p = (200, 220, 250), q = (2, 2, 4).
    tt = TensorTrainFormat((32, 32), (200, 220, 250), (2, 2, 4), cached_rows=10)
    cores = 200 * 1 * 2 * 32 + 220 * 32 * 2 * 32 + 250 * 32 * 4
    table = TableSpec("t", rows=10_131_227, dim=16, tensor_train=tt)
    assert tt.parameters() == cores
    assert table.bytes() == 4 * cores + 4 * (200 + 220 + 250) + 10 * (16 * 4 + 4)


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("rows", -1),
        ("rows", 2.5),
        ("dim", 0),
        ("pooling", -0.1),
        ("pooling", float("nan")),
        ("dtype", "fp64"),
        ("reuse_bins", (1.0,) * 17),
        ("reuse_bins", (1.0,)),
        ("tensor_train", TensorTrainFormat((2,), (3, 3), (2, 2))),
    ],
)
def test_a_bad_field_is_named(field, value):
    fields = {"name": "clicks", "rows": 100, "dim": 4} | {field: value}
    with pytest.raises(InputError, match=rf"'clicks'.*{field}"):
        TableSpec(**fields)


def test_dedup_factor_matches_simulated_sessions():
    # 9.30 at S = 16.5, d = 0.95 in RecD's formula; a simulation of sessions gives 9.26.
    assert Dedup(16.5, 0.95).factor() == pytest.approx(9.30, abs=0.005)
    assert Dedup().factor() == 1.0


def test_column_shards_keep_rows_and_traffic_and_split_dim():
    table = TableSpec("t", rows=10, dim=16, pooling=3.0)
    shards = table.column_shards(4)
    assert [s.name for s in shards] == ["t/0", "t/1", "t/2", "t/3"]
    assert all((s.rows, s.dim, s.pooling) == (10, 4, 3.0) for s in shards)
    with pytest.raises(InputError, match="dim 16 cannot be cut into 3"):
        table.column_shards(3)
