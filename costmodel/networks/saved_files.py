"""Networks in files: what `torch.save` writes, read without trusting it."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch

from shardgym.costmodel.pricing.features import FEATURE_NAMES
from shardgym.problem.errors import InputError
from shardgym.problem.files import replacing


def write_network_file(path: Path, kind: str, content: Mapping[str, Any]) -> None:
    """Write a file atomically; it remembers its kind and the table features that its networks read.

    Args:
        path: the file.
        kind: what the file is, with its version: "shardgym agent 2".
        content: tensors, numbers and strings.
    """
    with replacing(Path(path)) as partial:
        torch.save({"kind": kind, "features": list(FEATURE_NAMES), **content}, partial)


def read_network_file(path: Path, kind: str, remedy: str) -> dict[str, Any]:
    """The content of a file of `write_network_file`.

    Args:
        path: the file.
        kind: what it must be.
        remedy: how to get such a file, for errors: "run `shardgym fit` first".

    Raises:
        InputError: no such file, another kind or version, or other table features.
    """
    path = Path(path)
    if not path.exists():
        raise InputError(f"{path}: no such file; {remedy}")
    try:
        content = torch.load(path, weights_only=True)
    except Exception as error:  # torch.load raises many kinds for a file that is not its own
        raise InputError(f"{path}: is not a {kind!r} file ({type(error).__name__}); {remedy}") from error
    if not isinstance(content, dict) or content.get("kind") != kind:
        raise InputError(f"{path}: is not a {kind!r} file; {remedy}")
    if content.get("features") != list(FEATURE_NAMES):
        raise InputError(f"{path}: is of other table features; {remedy} with this version")
    return content
