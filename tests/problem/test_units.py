"""Sizes and durations as people write them."""

import pytest

from shardgym.problem.errors import InputError
from shardgym.problem.units import device_memory, human_bytes, parse_bytes, parse_seconds


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4GB", 4 * 10**9),
        ("1.5GiB", 3 * 2**29),
        ("500 mb", 5 * 10**8),
        ("7", 7),
        (".5KB", 500),
        ("3G", 3 * 10**9),
        ("3K", 3000),
        ("2 TiB", 2**41),
        ("1.kb", 1000),
    ],
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
    assert device_memory(3, "1GB") == (10**9,) * 3
    assert device_memory(2, "1GB,2GB") == (10**9, 2 * 10**9)
    with pytest.raises(InputError, match="2 sizes for 3 devices"):
        device_memory(3, "1GB,2GB")
    with pytest.raises(InputError, match="devices is 0"):
        device_memory(0, "1GB")


@pytest.mark.parametrize("count", [7, 1500, 2 * 10**6, 12_300_000_000, 10**13])
def test_what_is_printed_can_be_read(count):
    assert parse_bytes(human_bytes(count)) == pytest.approx(count, rel=0.01)
