"""A table as a JSON object and back: what table, task and plan files hold of it."""

from collections.abc import Mapping
from dataclasses import asdict, fields
from typing import Any

from shardgym.problem.errors import InputError
from shardgym.problem.tables import Dedup, TableSpec, TensorTrainFormat


def table_to_record(table: TableSpec) -> dict[str, Any]:
    """The table as a JSON object; `table_from_record` reads it back."""
    return asdict(table)


def table_from_record(record: Mapping[str, Any], default_dim: int | None = None) -> TableSpec:
    """Make a table of a JSON object.

    Raises:
        InputError: names an unknown, missing or ill-typed field.
    """
    values = dict(record)
    name = values.get("name", "?")
    unknown = sorted(set(values) - {f.name for f in fields(TableSpec)})
    if unknown:
        raise InputError(f"table {name!r}: field {unknown[0]!r} is unknown; remove it or see the table file's schema")
    if default_dim is not None:
        values.setdefault("dim", default_dim)
    for needed in ("name", "rows", "dim"):
        if values.get(needed) is None:
            raise InputError(f"table {name!r}: field {needed!r} is missing; add it")
    for part, kind in (("tensor_train", TensorTrainFormat), ("dedup", Dedup)):
        if isinstance(values.get(part), Mapping):
            values[part] = _part(kind, values[part], f"table {name!r}: {part}")
    if "reuse_bins" in values:
        values["reuse_bins"] = tuple(values["reuse_bins"])
    try:
        return TableSpec(**values)
    except TypeError as error:
        raise InputError(
            f"table {name!r}: a field has the wrong type ({error}); see the table file's schema"
        ) from error


def _part(kind: type, values: Mapping[str, Any], where: str) -> Any:
    """A nested data class of an object whose lists become tuples."""
    try:
        return kind(**{key: tuple(value) if isinstance(value, list) else value for key, value in values.items()})
    except TypeError as error:
        raise InputError(f"{where} has missing or unknown fields ({error}); see the table file's schema") from error
