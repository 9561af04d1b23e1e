"""The page on planners: every snippet runs, in order, and the shipped agent keeps what the page says of it."""

import re
import runpy
from pathlib import Path

import numpy as np
import pytest

from shardgym.agents.learning.pretrained import AGENT, pretrained_agent
from shardgym.agents.planners.heuristics import heuristic_planners
from shardgym.costmodel.shipped import shipped_cost
from shardgym.envs.families import family
from tests.agents.cases import step_of

PAGE = Path(__file__).resolve().parent.parent.parent / "docs" / "planners.md"


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_every_snippet_of_the_page_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    names: dict[str, object] = {}
    snippets = re.findall(r"```python\n(.*?)```", PAGE.read_text(), flags=re.DOTALL)
    assert len(snippets) == 4
    for snippet in snippets:
        exec(compile(snippet, str(PAGE), "exec"), names)
    assert "above the best" in capsys.readouterr().out


def test_the_script_trains_ppo_and_moves_it_to_another_size(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("sys.argv", ["placement_policy_ppo.py", "3200"])
    runpy.run_path(str(PAGE.parent.parent / "examples" / "placement_policy_ppo.py"))
    out = capsys.readouterr().out
    assert "dlrm-20x4/test: step" in out
    assert "dlrm-80x8/test: step" in out


def test_the_shipped_agent_is_small_and_beats_the_heuristics_on_held_out_tasks():
    assert AGENT.stat().st_size < 2_000_000
    model = shipped_cost()
    agent = pretrained_agent(model)
    for name in ("dlrm-50x4", "dlrm-80x8"):
        tasks = family(name).all_tasks()[:4]
        ours = np.mean([step_of(task, model, agent.plan(task)) for task in tasks])
        best = min(np.mean([step_of(task, model, p.plan(task, 1.0)) for task in tasks]) for p in heuristic_planners())
        assert ours < best
