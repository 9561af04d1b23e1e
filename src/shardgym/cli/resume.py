"""Long work in stages, each done once: a stage whose inputs and outputs are as they were is not done again."""

import hashlib
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from shardgym.problem.files import write_text


class Stages:
    """Remembers, in one JSON file of a folder, what each finished stage was made from.

    Args:
        folder: where the outputs and the memory lie.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._file = folder / "stages.json"

    def run(self, name: str, inputs: Any, outputs: list[Path], work: Callable[[], None]) -> bool:
        """Do the stage's work, unless it was finished with these inputs and its outputs are still there.

        Returns:
            Whether it was done now.
        """
        mark = fingerprint(inputs)
        if self.recall(name) == mark and all(path.exists() for path in outputs):
            return False
        work()
        self.remember(name, mark)
        return True

    def remember(self, name: str, value: Any) -> None:
        """Keep a value under a name."""
        write_text(self._file, json.dumps(self._memory() | {name: value}, indent=1) + "\n")

    def recall(self, name: str) -> Any:
        """The value under a name, or None."""
        return self._memory().get(name)

    def _memory(self) -> dict[str, Any]:
        try:
            return json.loads(self._file.read_text(encoding="utf-8"))
        except (FileNotFoundError, json.JSONDecodeError):
            return {}  # Nothing to reuse: every stage is done again.


def fingerprint(inputs: Any) -> str:
    """A short digest of anything that prints the same when it is the same."""
    return hashlib.sha256(repr(inputs).encode()).hexdigest()[:16]
