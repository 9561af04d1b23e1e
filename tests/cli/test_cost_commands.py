"""The command line: the road over files, bad input in one sentence with exit code 2, nothing lost when killed."""

import json
import random
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
import torch

from shardgym.cli import main as cli
from shardgym.costmodel.learned import LearnedCost
from shardgym.costmodel.measuring.hardware import Hardware
from shardgym.costmodel.measuring.samples import SampleFolder
from shardgym.dataio.tables.synthetic import dlrm_like
from shardgym.dataio.tables.table_files import write_tables
from shardgym.problem.plan_files import read_plan

MEASURE = ["--max-tables", "5", "--batch-size", "128", "--memory", "50MB"]


def run(monkeypatch, *arguments):
    """Run the command in this process; returns its exit code."""
    threads = torch.get_num_threads()
    monkeypatch.setattr(sys, "argv", ["shardgym", *map(str, arguments)])
    try:
        cli.main()
    except SystemExit as end:
        return end.code
    finally:
        torch.set_num_threads(threads)
    return 0


@pytest.fixture
def shardgym(monkeypatch):
    return lambda *arguments: run(monkeypatch, *arguments)


def small_tables(path, count=12, seed=0):
    from dataclasses import replace

    write_tables(path, [replace(t, rows=min(t.rows, 3000)) for t in dlrm_like(count, seed, dims=(4, 8))])
    return path


@pytest.fixture(scope="module")
def road(tmp_path_factory):
    """Every file of the road, made once by the commands themselves."""
    folder = tmp_path_factory.mktemp("road")
    tables = small_tables(folder / "tables.json")
    with pytest.MonkeyPatch.context() as patch:
        for arguments in (
            ["measure", "--tables", tables, "--out", folder / "samples", "--groups", 40, *MEASURE],
            ["fit", folder / "samples", "--out", folder / "model.pt", "--epochs", 30],
            ["train", "--cost-model", folder / "model.pt", "--tables", tables, "--out", folder / "agent.pt",
             "--updates", 3, "--tasks", 4, "--tables-per-task", 8, "--memory", "1MB"],
        ):  # fmt: skip
            assert run(patch, *arguments) == 0
    return folder


def plan(shardgym, road, out, *more):
    return shardgym(
        "plan", "--cost-model", road / "model.pt", "--tables", road / "tables.json", "--agent", road / "agent.pt",
        "--out", out, "--memory", "1MB", *more,
    )  # fmt: skip


def test_plan_and_evaluate_write_what_they_say(shardgym, road, tmp_path, capsys):
    assert plan(shardgym, road, tmp_path / "plan.json", "--report", tmp_path / "report.html") == 0
    planned = read_plan(tmp_path / "plan.json")
    methods = {candidate.method for candidate in planned.candidates}
    assert {"random", "greedy-dim", "greedy-size", "greedy-lookup", "greedy-size-lookup"} < methods
    assert shardgym("evaluate", tmp_path / "plan.json", "--report", tmp_path / "report.html") == 0
    measured = read_plan(tmp_path / "plan.json")
    assert all(candidate.measured.step > 0 for candidate in measured.candidates)
    page = (tmp_path / "report.html").read_text()
    assert "<svg" in page
    assert all(method in page for method in methods)
    assert not re.search(r"(src|href)=.http|@import|<link|<script", page), "the page must be self-contained"
    assert "chosen" in capsys.readouterr().out


def test_the_same_seed_plans_the_same_placement(shardgym, road, tmp_path):
    for name in ("a.json", "b.json"):
        assert plan(shardgym, road, tmp_path / name, "--seed", 3) == 0
    first, second = (read_plan(tmp_path / name) for name in ("a.json", "b.json"))
    assert [c.placement for c in first.candidates] == [c.placement for c in second.candidates]


@pytest.mark.parametrize("command", ["", "tables", "measure", "fit", "train", "plan", "evaluate", "demo"])
def test_help_explains(shardgym, capsys, command):
    assert shardgym(*([command] if command else []), "--help") == 0
    assert "Usage" in capsys.readouterr().out


def negative_rows(folder):
    (folder / "bad.json").write_text('{"tables": [{"name": "clicks", "rows": -5, "dim": 4}]}')
    return ["tables", folder / "bad.json"], "bad.json: table 'clicks': rows is -5; give"


def unknown_dtype(folder):
    (folder / "bad.csv").write_text("name,rows,dim,dtype\nclicks,5,4,fp8\n")
    return ["tables", folder / "bad.csv"], "bad.csv: table 'clicks': dtype is 'fp8'; give one of fp32"


def large_table(folder):
    return ["plan", "--memory", "1KB"], "and the largest device has 1,000; give more device memory"


def large_total(folder):
    tables = json.loads((folder / "tables.json").read_text())["tables"]
    largest = max(table["rows"] * (4 * table["dim"] + 4) for table in tables)
    return ["plan", "--memory", f"{largest}B", "--devices", "1"], "the 1 devices have"


def truncated_part(folder):
    part = next((folder / "samples").glob("part-*"))
    part.write_bytes(part.read_bytes()[:-40])
    return ["fit", folder / "samples"], f"{part.name}: is not a whole Parquet file; delete it"


def other_hardware(folder):
    model = LearnedCost.load(folder / "model.pt")
    model.hardware = Hardware("cpu", "abacus", 1, 1, "torch", "torch 0")
    model.save(folder / "model.pt")
    return ["plan"], "was fitted on abacus (cpu, 1 of 1 threads, torch), and this is"


def not_an_agent(folder):
    (folder / "agent.pt").write_bytes(b"leaves")
    return ["plan"], "agent.pt"


@pytest.mark.parametrize(
    "spoil", [negative_rows, unknown_dtype, large_table, large_total, truncated_part, other_hardware, not_an_agent]
)
def test_bad_input_is_one_sentence_and_touches_nothing(shardgym, road, tmp_path, capsys, spoil):
    import shutil

    folder = tmp_path / "road"
    shutil.copytree(road, folder)
    for name in ("plan.json", "cost_model.pt", "report.html"):
        (folder / name).write_text("as it was")
    arguments, message = spoil(folder)
    if arguments[0] == "plan":
        arguments += ["--cost-model", folder / "model.pt", "--tables", folder / "tables.json", "--agent",
                      folder / "agent.pt", "--out", folder / "plan.json"]  # fmt: skip
    elif arguments[0] == "fit":
        arguments += ["--out", folder / "cost_model.pt"]
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    capsys.readouterr()
    assert shardgym(*arguments) == 2
    complaint = capsys.readouterr().err
    assert complaint.startswith("shardgym: ")
    assert message in complaint
    assert complaint.count("\n") == 1
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


def test_killing_measure_loses_no_finished_sample(tmp_path):
    """Killed at random moments, three times; every sample that was on disk is there, unchanged, at the end."""
    tables, samples = small_tables(tmp_path / "tables.json"), tmp_path / "samples"
    command = [sys.executable, "-c", "from shardgym.cli.main import main; main()", "measure", "--tables", str(tables),
               "--out", str(samples), "--budget", "60s", *MEASURE]  # fmt: skip
    chance = random.Random(0)
    finished: dict[int, object] = {}
    for _ in range(3):
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL)
        wait_for_parts(samples, len(finished) + 3, process)
        time.sleep(chance.uniform(0, 0.3))
        process.send_signal(signal.SIGKILL)
        process.wait()
        now = {sample.index: sample for sample in SampleFolder(samples).read()}
        assert len(now) > len(finished)
        assert all(now[index] == sample for index, sample in finished.items())
        finished = now
    assert sorted(finished) == list(range(len(finished)))


def wait_for_parts(folder: Path, count: int, process: subprocess.Popen, seconds: float = 60) -> None:
    end = time.monotonic() + seconds
    while len(list(folder.glob("part-*.parquet"))) < count:
        assert process.poll() is None, "the command ended by itself"
        assert time.monotonic() < end, "nothing was measured in time"
        time.sleep(0.01)


@pytest.mark.slow
def test_the_demo_runs_whole_and_then_reuses_everything(tmp_path, capsys):
    from shardgym.cli.demo import Demo, Scale

    scale = Scale(groups=40, pool=20, unseen=16, dims=(4,), epochs=5, updates=2)
    first = Demo(tmp_path, scale, seed=0).run()
    made = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    second = Demo(tmp_path, scale, seed=0).run()
    again = {path: path.stat().st_mtime_ns for path in tmp_path.rglob("*") if path.is_file()}
    assert {path for path in made if again[path] != made[path]} == {tmp_path / "report.html"}
    for before, after in zip(first, second):
        assert [c.placement for c in before.candidates] == [c.placement for c in after.candidates]
    assert {path.name for path in tmp_path.iterdir()} == {
        "samples", "cost_model.pt", "agent.pt", "plan.json", "plan-dlrm.json", "report.html", "stages.json",
    }  # fmt: skip
