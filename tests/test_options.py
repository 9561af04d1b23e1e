"""Sizes, durations, table sources, and stages that are not done twice."""

import pytest

from shardgym.embeddings.errors import InputError
from shardgym.options import parse_bytes, parse_devices, parse_seconds, parse_tables
from shardgym.stages import Stages


@pytest.mark.parametrize(
    ("text", "expected"), [("4GB", 4 * 10**9), ("1.5GiB", 3 * 2**29), ("500 mb", 5 * 10**8), ("7", 7), (".5KB", 500)]
)
def test_sizes(text, expected):
    assert parse_bytes(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "4 parsecs", "-1GB", "0", "1.2.3GB"])
def test_a_bad_size_is_quoted(text):
    with pytest.raises(InputError, match="write it like 4GB"):
        parse_bytes(text)


def test_durations():
    assert [parse_seconds(t) for t in ("90", "90s", "1.5m", "2h")] == [90, 90, 90, 7200]
    with pytest.raises(InputError, match="'soon'"):
        parse_seconds("soon")


def test_memory_is_one_size_or_one_a_device():
    assert parse_devices(3, "1GB") == (10**9,) * 3
    assert parse_devices(2, "1GB,2GB") == (10**9, 2 * 10**9)
    with pytest.raises(InputError, match="2 sizes for 3 devices"):
        parse_devices(3, "1GB,2GB")
    with pytest.raises(InputError, match="devices is 0"):
        parse_devices(0, "1GB")


def test_table_sources(tmp_path):
    assert len(parse_tables("criteo-kaggle", 0)) == 26
    assert {t.dim for t in parse_tables("dlrm:7", 0, 32)} == {32}
    for source, message in [("dlrm:none", "dlrm:50"), ("alibaba", "is unknown"), (str(tmp_path / "no.csv"), "no such")]:
        with pytest.raises(InputError, match=message):
            parse_tables(source, 0)


def test_a_stage_is_done_again_only_when_inputs_or_outputs_change(tmp_path):
    output, done = tmp_path / "out", []

    def work():
        done.append(1)
        output.write_text("x")

    def run(inputs):
        return Stages(tmp_path).run("work", inputs, [output], work)

    assert [run(1), run(1), run(2), run(2)] == [True, False, True, False]
    output.unlink()
    assert run(2)
    assert len(done) == 3


def test_a_stage_that_fails_is_not_remembered(tmp_path):
    def fail():
        raise RuntimeError("interrupted")

    with pytest.raises(RuntimeError):
        Stages(tmp_path).run("work", 1, [tmp_path], fail)
    assert Stages(tmp_path).run("work", 1, [tmp_path], lambda: None)
