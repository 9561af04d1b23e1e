"""The house keeps its order: rooms import only downwards, files stay small, packages are listed, faces are used."""

import ast
import configparser
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

ROOMS_FROM_BELOW = (
    "problem",
    "embeddings.kernels", "embeddings.jagged", "embeddings.tables", "embeddings.tensor_train", "embeddings.models",
    "embeddings",
    "dataio.tables", "dataio.sessions", "dataio",
    "costmodel.pricing", "costmodel.measuring", "costmodel.networks", "costmodel.learned", "costmodel.shipped",
    "costmodel",
    "envs",
    "agents.planners", "agents.learning", "agents.judging", "agents",
    "workflow",
    "cli",
)  # fmt: skip
"""A file belongs to the longest of these names that it lies under, and imports from its own room and those before."""

ABOVE_ALL = ("registration", "version")
"""Modules that import nothing of the package, so that anything may import them."""

FACES = {
    "shardgym": "src/shardgym",
    "shardgym.embeddings": "embeddings",
    "shardgym.dataio": "dataio",
    "shardgym.costmodel": "costmodel",
    "shardgym.envs": "envs",
    "shardgym.agents": "agents",
}
FOLDERS = [folder for folder in FACES.values() if folder != "src/shardgym"]

LONGEST_FILE = 350

HEAVY = ("torch", "scipy.stats", "matplotlib", "duckdb", "ray")


def tracked_files(pattern: str) -> list[Path]:
    names = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", pattern],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    ).stdout.split()
    return [ROOT / name for name in names if (ROOT / name).exists()]


def module_of(path: Path) -> str:
    """Dotted name below `shardgym`: `costmodel.pricing.summed`."""
    name = str(path.relative_to(ROOT).with_suffix("")).removeprefix("src/shardgym/").replace("/", ".")
    return name.removesuffix(".__init__")


def package_files() -> list[Path]:
    return [path for folder in FACES.values() for path in tracked_files(f"{folder}/*.py")]


def imported(tree: ast.AST) -> set[str]:
    """Everything that a file imports; `from a import b` counts as `a.b`."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return names


def room_of(module: str) -> int:
    """Place of a module in `ROOMS_FROM_BELOW`."""
    holding = [room for room in ROOMS_FROM_BELOW if module == room or module.startswith(f"{room}.")]
    assert holding, f"{module} lies in no room of ROOMS_FROM_BELOW; add one"
    return ROOMS_FROM_BELOW.index(max(holding, key=len))


@pytest.mark.parametrize("path", package_files(), ids=lambda path: str(path.relative_to(ROOT)))
def test_a_file_imports_only_from_its_own_room_and_those_below(path):
    module = module_of(path)
    if module in (*ABOVE_ALL, "src.shardgym", "__init__", "__main__"):
        return
    here = room_of(module)
    for name in imported(ast.parse(path.read_text())):
        if not name.startswith("shardgym."):
            continue
        below = name.removeprefix("shardgym.")
        if not below.startswith(ABOVE_ALL):
            assert room_of(below) <= here, f"{module} imports {name} from above it"


def test_nothing_imports_past_the_package_name():
    for path in tracked_files("*.py"):
        bare = {name for name in imported(ast.parse(path.read_text())) if name.split(".")[0] in FOLDERS}
        assert not bare, f"{path.relative_to(ROOT)} imports {sorted(bare)} without shardgym."


def test_files_stay_small():
    lengths = {str(path.relative_to(ROOT)): len(path.read_text().splitlines()) for path in tracked_files("*.py")}
    long = {name: lines for name, lines in lengths.items() if lines > LONGEST_FILE}
    assert not long, f"longer than {LONGEST_FILE} lines: {long}"


def test_setup_cfg_lists_every_package():
    config = configparser.ConfigParser()
    config.read(ROOT / "setup.cfg")
    listed = set(config["options"]["packages"].split())
    found = {path.parent for path in package_files() if path.name == "__init__.py"}
    assert listed == {f"shardgym.{module_of(folder / '__init__.py')}".removesuffix(".__init__") for folder in found}


def face_names(face: str) -> dict[str, str]:
    """Public name to the module that holds it, as the face's stub says."""
    tree = ast.parse((ROOT / FACES[face] / "__init__.pyi").read_text())
    return {
        alias.name: f"{face}.{node.module}"
        for node in tree.body
        if isinstance(node, ast.ImportFrom)
        for alias in node.names
    }


@pytest.mark.parametrize("face", FACES)
def test_a_face_names_what_it_holds(face):
    module = __import__(face, fromlist=["*"])
    for name in face_names(face):
        value = getattr(module, name)
        assert name in module.__all__
        assert re.search(rf"\b{name}\b", module.__doc__) or name == "__version__", f"{face} does not explain {name}"
        if isinstance(value, type):
            homes = {other for other in FACES if name in face_names(other)}
            assert value.__module__ in homes, f"{name} says it is of {value.__module__}, not of its face"


def test_docs_and_examples_import_from_faces_only():
    sources = {str(path): path.read_text() for path in tracked_files("examples/*.py")}
    for path in [ROOT / "README.md", *tracked_files("docs/*.md")]:
        for k, block in enumerate(re.findall(r"```python\n(.*?)```", path.read_text(), re.DOTALL)):
            sources[f"{path} block {k}"] = block
    for where, source in sources.items():
        for node in ast.walk(ast.parse(source)):
            if isinstance(node, ast.ImportFrom) and (node.module or "").startswith("shardgym"):
                assert node.module in FACES, f"{where} imports from {node.module}, which is no face"


@pytest.mark.parametrize(
    "run",
    [
        "import shardgym",
        "import shardgym.problem.plan_files, shardgym.problem.task_files, shardgym.problem.costs",
        "import shardgym.dataio.tables.sources",
        *(
            f"import sys; sys.argv[1:] = {command.split()!r} + ['--help']\n"
            "from shardgym.cli.main import main\ntry: main()\nexcept SystemExit: pass"
            for command in ("", "tables", "measure", "fit", "train", "plan", "evaluate", "compare", "certify", "demo")
            + ("sessions", "sessions cluster", "sessions group", "sessions inspect", "sessions generate")
        ),
    ],
    ids=lambda run: run.replace("import ", "").split("]")[0].split("= [")[-1],
)
def test_the_ground_and_every_help_load_nothing_heavy(run):
    code = f"{run}\nimport sys\nprint([name for name in {HEAVY!r} if name in sys.modules])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip().splitlines()[-1] == "[]"
