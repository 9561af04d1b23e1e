"""What a session log holds: which column is the session, which the time, and which features repeat together."""

import json
from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import read_json, write_text

FORMS = ("exact", "partial", "none")
SCHEMA_FILE = "_schema.json"
"""Name of the schema beside a log's Parquet files; Parquet readers skip names with a leading underscore."""


@public("shardgym.dataio")
@dataclass(frozen=True)
class GroupSpec:
    """List-valued features that are deduplicated together (RecD, arXiv 2211.05239).

    Args:
        name: unique in its schema.
        features: column names; a row repeats another only if all of them agree.
        form: "exact" (unique lists and an inverse), "partial" (sliding windows: offset and length into
            shared values; the features' lists have equal lengths) or "none" (every list is kept).

    Raises:
        InputError: unknown form, no features.
    """

    name: str
    features: tuple[str, ...]
    form: str = "exact"

    def __post_init__(self) -> None:
        if not self.name or not self.features:
            raise InputError(f"group {self.name!r}: give it a name and at least one feature")
        if self.form not in FORMS:
            raise InputError(f"group {self.name!r}: form is {self.form!r}; give one of {', '.join(FORMS)}")


@public("shardgym.dataio")
@dataclass(frozen=True)
class SessionSchema:
    """Roles of a session log's columns.

    Args:
        session: column of session ids (whole numbers or text).
        time: column of timestamps (whole numbers or an Arrow timestamp).
        samples: numeric columns with one value per sample: labels, dense features, item ids.
        groups: the list-valued features, grouped.

    Raises:
        InputError: a column with two roles, or two groups of one name.
    """

    session: str = "session_id"
    time: str = "timestamp"
    samples: tuple[str, ...] = ()
    groups: tuple[GroupSpec, ...] = ()

    def __post_init__(self) -> None:
        self._refuse_twice("column", self.columns)
        self._refuse_twice("group", tuple(group.name for group in self.groups))
        clash = {f"{group.name}.{part}" for group in self.groups for part in ("inverse", "offset", "length")}
        if clash & set(self.columns):
            raise InputError(f"schema: rename column {min(clash & set(self.columns))!r}; clustering writes that name")

    @staticmethod
    def _refuse_twice(what: str, names: tuple[str, ...]) -> None:
        twice = [name for name, count in Counter(names).items() if count > 1]
        if twice:
            raise InputError(f"schema: {what} {twice[0]!r} is named twice; give each one role")

    @property
    def features(self) -> tuple[str, ...]:
        """Every list-valued feature, in group order."""
        return tuple(feature for group in self.groups for feature in group.features)

    @property
    def columns(self) -> tuple[str, ...]:
        """Every column that the schema reads."""
        return (self.session, self.time, *self.samples, *self.features)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, as `from_dict` takes them."""
        return asdict(self)

    @classmethod
    def from_dict(cls, values: dict[str, Any]) -> "SessionSchema":
        """Build a schema from plain values.

        Raises:
            InputError: a field that is missing or unknown.
        """
        try:
            groups = tuple(GroupSpec(**{**group, "features": tuple(group["features"])}) for group in values["groups"])
            return cls(**{**values, "samples": tuple(values.get("samples", ())), "groups": groups})
        except (KeyError, TypeError) as error:
            raise InputError(
                f"schema: {error}; give session, time, samples and groups (each a name, features and a form)"
            ) from None

    def write(self, path: Path) -> None:
        """Write the schema as JSON, whole or not at all."""
        write_text(path, json.dumps(self.to_dict(), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, path: Path) -> "SessionSchema":
        """Read a schema that `write` wrote.

        Raises:
            InputError: names the file when it is absent or is no schema.
        """
        content = read_json(path, "give a schema file, as `shardgym sessions group --out` writes it")
        try:
            return cls.from_dict(content)
        except InputError as error:
            raise InputError(f"{path}: {error}") from None
