"""The house keeps its order: folders import only downwards, files stay small, packages are all listed."""

import ast
import configparser
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
FOLDERS_FROM_BELOW = ["embeddings", "dataio", "costmodel", "envs", "agents"]
LONGEST_FILE = 350


def tracked_python_files() -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "*.py"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).exists()]


def imported_modules(path: Path) -> set[str]:
    modules = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            modules.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            modules.add(node.module or "")
            modules.update(f"{node.module}.{alias.name}" for alias in node.names)
    return modules


@pytest.mark.parametrize("folder", FOLDERS_FROM_BELOW)
def test_folder_imports_only_from_folders_below(folder):
    above = FOLDERS_FROM_BELOW[FOLDERS_FROM_BELOW.index(folder) + 1 :] + ["cli"]
    forbidden = tuple(f"shardgym.{name}" for name in above)
    for path in sorted((ROOT / folder).rglob("*.py")):
        upward = {module for module in imported_modules(path) if module.startswith(forbidden)}
        assert not upward, f"{path.relative_to(ROOT)} imports from above it: {sorted(upward)}"


def test_nothing_imports_past_the_package_name():
    for path in tracked_python_files():
        bare = {module for module in imported_modules(path) if module.split(".")[0] in FOLDERS_FROM_BELOW}
        assert not bare, f"{path.relative_to(ROOT)} imports {sorted(bare)} without shardgym."


def test_files_stay_small():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in tracked_python_files()}
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}
    assert not long, f"longer than {LONGEST_FILE} lines: {long}"


def test_setup_cfg_lists_every_package():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {"shardgym"} | {
        f"shardgym.{path.parent.relative_to(ROOT)}".replace("/", ".")
        for folder in FOLDERS_FROM_BELOW
        for path in (ROOT / folder).rglob("__init__.py")
    }
    assert listed == found
