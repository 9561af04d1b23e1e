"""Prices, twins, plans, task draws and certificates come out the same under every instruction set and thread count."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

MACHINES = {
    "plain": {},
    "no vector instructions in torch, two threads": {"ATEN_CPU_CAPABILITY": "default", "OMP_NUM_THREADS": "2"},
    "AVX2": {"ATEN_CPU_CAPABILITY": "avx2", "ONEDNN_MAX_CPU_ISA": "AVX2", "OMP_NUM_THREADS": "1"},
    "no compiler, old BLAS kernels": {"SHARDGYM_KERNELS": "off", "OPENBLAS_CORETYPE": "Nehalem"},
}


def digests(environment: dict[str, str]) -> dict[str, str]:
    done = subprocess.run(
        [sys.executable, "-m", "tests.everywhere"],
        cwd=ROOT,
        env=os.environ | environment,
        capture_output=True,
        text=True,
        check=True,
    )
    return json.loads(done.stdout.splitlines()[-1])


@pytest.fixture(scope="module")
def here():
    return digests({})


def test_tasks_are_those_that_were_frozen(here):
    """A task that changes raises its family's version; then `python -m tests.everywhere` gives the new digests."""
    frozen = json.loads((ROOT / "tests" / "frozen_tasks.json").read_text())
    assert {name: found for name, found in here.items() if name.startswith("task ")} == frozen


@pytest.mark.parametrize("machine", [name for name in MACHINES if name != "plain"])
def test_nothing_depends_on_the_instruction_set(here, machine):
    assert digests(MACHINES[machine]) == here
