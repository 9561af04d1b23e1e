"""Where the public data lies: `SHARDGYM_DATA`, or `shared/data` beside the repository. Tests use it too."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def public_data(name: str) -> Path | None:
    """Path of one public file, or None where the folder is absent."""
    folder = Path(os.environ.get("SHARDGYM_DATA", ROOT.parent / "shared" / "data"))
    path = folder / name
    return path if path.exists() else None
