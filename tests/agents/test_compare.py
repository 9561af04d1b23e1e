"""The comparison: failures count, ratios are to what they say, the page and the command hold it all."""

import json

import numpy as np
import pytest
from typer.testing import CliRunner

from shardgym.agents.judging.compare import Trial, compare, paired_ratio, suite_tasks, summarise
from shardgym.agents.planners.heuristics import GreedyPlanner, LargestFirstPlanner, heuristic_planners
from shardgym.agents.planners.planner import NoPlacementFoundError
from shardgym.cli.compare_report import rich_table, write_html, write_trials
from shardgym.cli.planner_commands import app
from shardgym.costmodel.pricing.roofline import RooflineCost
from shardgym.problem.errors import InputError
from shardgym.problem.plan_files import Candidate, Plan, write_plan
from tests.agents.cases import ADDITIVE, FusedCost, make_task


class NeverPlanner:
    name = "never"

    def plan(self, task, budget_seconds):
        raise NoPlacementFoundError("never: finds nothing; use another planner")


def trial(planner="a", task="t", step=1.0, bound=0.0, failure=""):
    return Trial("f", task, planner, 1.0, step, None, 0.1, bound, failure, None)


def test_a_failure_counts_over_all_tasks_and_is_never_dropped():
    tasks = {"case": [make_task(12, 3, seed, slack=2.5, name=f"case/{seed}") for seed in range(3)]}
    planners = [LargestFirstPlanner(ADDITIVE), NeverPlanner()]
    seen = []
    trials = compare(tasks, planners, [0.1, 0.2], ADDITIVE, progress=seen.append)
    assert len(trials) == len(seen) == 12
    never = [s for s in summarise(trials) if s.planner == "never"]
    assert [s.feasible for s in never] == [0.0, 0.0]
    assert all(np.isnan(s.mean) for s in never)
    assert all(s.feasible == 1.0 for s in summarise(trials) if s.planner != "never")


def test_ratios_are_to_the_best_known_where_bounds_say_little():
    trials = [trial("a", "t", 2.0), trial("b", "t", 1.0), trial("a", "u", 3.0), trial("b", "u", 6.0)]
    a, b = summarise(trials)
    assert (a.to, a.mean, a.worst) == ("best known", 1.5, 2.0)
    assert b.mean == 1.5
    (bounded,) = summarise([trial("a", "t", 2.0, bound=1.9)])
    assert (bounded.to, bounded.mean) == ("bound", pytest.approx(2.0 / 1.9))


def test_the_paired_interval_is_students():
    ours = [trial("a", f"t{k}", step) for k, step in enumerate((1.0, 1.1, 1.2))]
    theirs = [trial("b", f"t{k}", 1.0) for k in range(3)]
    mean, low, high = paired_ratio(ours, theirs)
    logs = np.log([1.0, 1.1, 1.2])
    assert mean == pytest.approx(np.exp(logs.mean()))
    # 4.303 is Student's 97.5% quantile at two degrees of freedom.
    assert high == pytest.approx(np.exp(logs.mean() + 4.303 * logs.std(ddof=1) / np.sqrt(3)), rel=1e-3)
    assert low < mean < high
    assert all(np.isnan(paired_ratio([trial(step=None)], theirs)))


def test_the_measured_step_is_kept_when_asked_for():
    tasks = {"case": [make_task(12, 3, slack=2.5)]}
    (done,) = compare(tasks, [LargestFirstPlanner(ADDITIVE)], [0.1], ADDITIVE, measure=FusedCost())
    assert done.measured_ms == pytest.approx(float(FusedCost().cost(tasks["case"][0], done.placement).step))
    assert summarise([done])[0].measured == pytest.approx(done.measured_ms)


def test_page_and_json_hold_every_planner_and_the_reason_of_a_failure(tmp_path):
    tasks = {"case": [make_task(12, 3, slack=2.5)]}
    trials = compare(tasks, [*heuristic_planners(), NeverPlanner()], [0.1], ADDITIVE)
    summaries = summarise(trials)
    write_html(tmp_path / "c.html", trials, summaries, "about <this>")
    write_trials(tmp_path / "c.json", trials, summaries)
    page = (tmp_path / "c.html").read_text()
    for planner in heuristic_planners():
        assert planner.name in page
    assert "finds nothing" in page
    assert "about &lt;this&gt;" in page
    assert page.count("data:image/png;base64,") == 1
    assert len(json.loads((tmp_path / "c.json").read_text())["trials"]) == 6
    assert rich_table(summaries).row_count == 6


def test_the_commands_compare_and_certify(tmp_path):
    runner = CliRunner()
    options = ["--suite", "dlrm-20x4", "--tasks", "1", "--budget", "0.1", "--cost-model", "roofline:h100"]
    done = runner.invoke(app, ["compare", *options, "--out", str(tmp_path)])
    assert done.exit_code == 0, done.output
    assert {"compare.html", "compare.json"} <= {path.name for path in tmp_path.iterdir()}
    task = make_task(12, 3, slack=2.5)
    model = RooflineCost()
    placement = LargestFirstPlanner(model).plan(task, 1.0)
    made = Plan(task, (Candidate("largest-first", placement, model.cost(task, placement), 0.1),), "roofline")
    write_plan(tmp_path / "plan.json", made)
    common = [str(tmp_path / "plan.json"), "--cost-model", "roofline:h100"]
    done = runner.invoke(app, ["certify", *common, "--out", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.output
    done = runner.invoke(app, ["certify", *common, "--check", str(tmp_path / "c.json")])
    assert done.exit_code == 0, done.output
    assert "holds" in done.output
    record = json.loads((tmp_path / "c.json").read_text())
    (tmp_path / "c.json").write_text(json.dumps(record | {"step_ms": 1e-3}))
    done = runner.invoke(app, ["certify", *common, "--check", str(tmp_path / "c.json")])
    assert isinstance(done.exception, InputError)


def test_bad_input_is_named():
    tasks = {"case": [make_task(12, 3, slack=2.5)]}
    same = GreedyPlanner("x", lambda task: np.ones(len(task.tables)))
    with pytest.raises(InputError, match="each another name"):
        compare(tasks, [same, same], [0.1], ADDITIVE)
    with pytest.raises(InputError, match="at least one planner"):
        compare(tasks, [], [0.1], ADDITIVE)
    with pytest.raises(InputError, match="no suite 'nonsense'"):
        suite_tasks("nonsense")


def test_a_suite_is_of_held_out_tasks():
    chosen = suite_tasks("quick", 2)
    assert [len(tasks) for tasks in chosen.values()] == [2, 2, 2]
    assert all("/test/" in task.name for tasks in chosen.values() for task in tasks)
    assert list(suite_tasks("dlrm-30x4,tight-20x4", 1)) == ["dlrm-30x4", "tight-20x4"]
