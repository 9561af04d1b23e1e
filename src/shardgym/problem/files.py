"""Files appear whole or not at all, and JSON is read in one way."""

import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from shardgym.problem.errors import InputError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """Yield a temporary path beside `path`, and rename it to `path` when the block ends well.

    An error or interrupt in the block leaves an existing file as it was and no temporary file behind.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        yield partial
        os.replace(partial, path)
    finally:
        partial.unlink(missing_ok=True)


def write_text(path: Path, text: str) -> None:
    """Write a whole text file atomically."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")


def write_json(path: Path, content: Any) -> None:
    """Write a JSON file atomically."""
    write_text(path, json.dumps(content, indent=1) + "\n")


def read_json(path: Path, remedy: str) -> Any:
    """The content of a JSON file.

    Args:
        path: the file.
        remedy: what to do about a missing or damaged file, for the error: "run `shardgym plan` first".

    Raises:
        InputError: no such file, it cannot be read, or it is not JSON in UTF-8.
    """
    try:
        return json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError as error:
        raise InputError(f"{path}: no such file; {remedy}") from error
    except OSError as error:
        raise InputError(f"{path}: cannot be read ({error.strerror}); {remedy}") from error
    except (ValueError, RecursionError) as error:
        raise InputError(f"{path}: is not valid JSON ({error}); {remedy}") from error
