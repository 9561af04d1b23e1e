"""The page on session storage runs as it stands."""

import re
from pathlib import Path

import pytest

pytest.importorskip("duckdb", reason="clustering needs the extra `sessions`")


def test_the_snippets_of_the_page_run(tmp_path, monkeypatch, capsys):
    page = (Path(__file__).resolve().parent.parent.parent / "docs" / "session_storage.md").read_text()
    monkeypatch.chdir(tmp_path)
    for snippet in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
        exec(compile(snippet, "session_storage.md", "exec"), {})
    assert "values for each one held" in capsys.readouterr().out
