"""The snippets of the pages and the scripts in examples/ run as they stand."""

import importlib.util
import os
import re
import runpy
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent


@pytest.mark.parametrize("page", ["envs.md", "tasks.md", "tensor_train.md"])
def test_snippets_run_one_after_another(page, tmp_path):
    names = {"path": tmp_path / "tasks.json"}
    snippets = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / page).read_text(), re.DOTALL)
    assert snippets
    for snippet in snippets:
        exec(compile(snippet, page, "exec"), names)


def run_here(script, monkeypatch, capsys, *arguments):
    """Run a script as `python script arguments` would, in this process; what it printed."""
    monkeypatch.setattr(sys, "argv", [script, *map(str, arguments)])
    runpy.run_path(str(ROOT / script), run_name="__main__")
    return capsys.readouterr().out


def run(*arguments):
    """Run Python on arguments in a process of its own; what it printed."""
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    result = subprocess.run(
        [sys.executable, *map(str, arguments)], capture_output=True, text=True, cwd=ROOT, env=environment
    )
    assert result.returncode == 0, result.stderr[-3000:]
    return result.stdout


def test_the_sb3_script_trains_and_evaluates(monkeypatch, capsys):
    out = run_here("examples/sb3_ppo.py", monkeypatch, capsys, 1280)
    assert re.search(r"held-out return: -\d+\.\d+ before, -\d+\.\d+", out)


@pytest.mark.parametrize("tasks", ["dlrm-20x4", "tight-20x4"])
def test_the_cleanrl_script_trains(tasks, monkeypatch, capsys):
    options = ("--total-steps", 3000, "--num-envs", 16, "--tasks", tasks)
    out = run_here("examples/cleanrl_ppo.py", monkeypatch, capsys, *options)
    assert len(re.findall(r"steps/s", out)) == 4


def test_rl_zoo_trains_from_the_yaml(tmp_path):
    if importlib.util.find_spec("rl_zoo3") is None:
        pytest.skip("rl_zoo3 is not installed (it is in the extra `test`)")
    options = ["--algo", "ppo", "--env", "shardgym/TablePlacement-v1", "--gym-packages", "shardgym", "-n", "700"]
    options += ["-conf", "examples/rl_zoo_ppo.yml", "--log-folder", tmp_path, "--eval-freq", "-1", "--verbose", "0"]
    out = run("-m", "rl_zoo3.train", *options)
    assert "Saving to" in out
    assert list(tmp_path.rglob("shardgym-TablePlacement-v1.zip"))


def test_the_rllib_script_trains():
    if importlib.util.find_spec("ray") is None:
        pytest.skip("ray is not installed (pip install 'shardgym[rllib]')")
    assert "update 0: mean return -" in run("examples/rllib_ppo.py", 1)
