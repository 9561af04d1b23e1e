"""What the README says can be pasted and run."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

README = (Path(__file__).resolve().parent.parent.parent / "README.md").read_text()


def test_python_examples_run_as_pasted():
    examples = re.findall(r"```python\n(.*?)```", README, flags=re.DOTALL)
    assert examples
    for example in examples:
        done = subprocess.run([sys.executable, "-c", example], capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
        assert done.stdout


@pytest.mark.parametrize("line", re.findall(r"`(shardgym [^`]*)`", README))
def test_commands_have_the_options_they_are_shown_with(line, monkeypatch, capsys):
    from shardgym.cli import main as cli

    _, command, *words = line.split()
    monkeypatch.setattr(sys, "argv", ["shardgym", command, "--help"])
    monkeypatch.setenv("COLUMNS", "200")
    with pytest.raises(SystemExit) as end:
        cli.main()
    assert end.value.code == 0
    explained = capsys.readouterr().out
    assert all(word in explained for word in words if word.startswith("--"))
