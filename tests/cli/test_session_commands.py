"""`shardgym sessions`, from a generated log to a clustered one."""

import json

import pytest
from typer.testing import CliRunner

from shardgym.cli.session_commands import app
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.dataio.tables.table_files import read_tables
from shardgym.problem.errors import InputError

pytest.importorskip("duckdb", reason="clustering needs the extra `sessions`")


def run(*arguments):
    result = CliRunner().invoke(app, [str(each) for each in arguments])
    if result.exception is not None and not isinstance(result.exception, SystemExit):
        raise result.exception
    assert result.exit_code == 0, result.output
    return result.output


def test_generate_group_cluster_inspect(tmp_path):
    log, out, schema = tmp_path / "log", tmp_path / "out", tmp_path / "groups.json"
    assert "samples in 1 files" in run("generate", log, "--sessions", 800, "--samples-per-session", 6)
    tables = tmp_path / "tables.json"
    said = run("group", log, "--out", schema, "--samples", 4000, "--tables", tables, "--dim", 32)
    assert "predicted" in said
    assert {group["form"] for group in json.loads(schema.read_text())["groups"]} == {"exact", "partial"}
    assert {table.dim for table in read_tables(tables)} == {32}
    said = run("cluster", log, "--out", out, "--schema", schema, "--memory", "256M", "--partitions", 2)
    assert "800 session rows, 2 parts" in said
    assert "times smaller" in said
    assert run("inspect", out).splitlines()[0] in said
    assert "a raw log" in run("inspect", log)
    assert sum(batch.features.stride() for batch in SessionDataset(out, 64, drop_last=False)) > 4000


def test_bad_input_is_one_sentence(tmp_path):
    with pytest.raises(InputError, match="no Parquet file here"):
        run("inspect", tmp_path / "nothing")
    with pytest.raises(InputError, match="size 'lots' is not understood"):
        run("cluster", tmp_path, "--out", tmp_path / "out", "--memory", "lots")
