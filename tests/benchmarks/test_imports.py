"""Every benchmark and example can be imported: a name that moved shows here, not when somebody runs it."""

import importlib
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
MODULES = sorted(
    str(path.relative_to(ROOT).with_suffix("")).replace("/", ".") for path in (ROOT / "benchmarks").rglob("[a-z]*.py")
)


@pytest.mark.parametrize("module", MODULES)
def test_a_benchmark_imports(module):
    importlib.import_module(module)
