"""Fixtures that every test may use."""

import sys
from pathlib import Path

import pytest
from hypothesis import settings

# The benchmarks stand beside the package, not in it; tests share their way to the public data.
sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from benchmarks.public_data import public_data

# Timing never decides a test.
settings.register_profile("shardgym", deadline=None)
settings.load_profile("shardgym")


@pytest.fixture
def public_file():
    """A function from a public file's name to its path; skips the test where the data is absent."""

    def find(name: str) -> Path:
        path = public_data(name)
        if path is None:
            pytest.skip(f"the public data file {name} is not on this machine (set SHARDGYM_DATA)")
        return path

    return find
