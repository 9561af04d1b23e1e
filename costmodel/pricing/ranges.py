"""Which inputs a fitted model has seen: what lies outside is flagged, not silently extrapolated."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass

from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

SLACK = 1.05
"""How far beyond the measured ends is still within: a drawn design stops a little short of the ends of its space."""


@public("shardgym.costmodel")
class OutOfRangeWarning(UserWarning):
    """A cost was asked for that lies outside of what the model was fitted on."""


@dataclass(frozen=True)
class Ranges:
    """Least and most of each number, and the formats, over the tables that a model was fitted on.

    Args:
        rows, dim, pooling, batch_size: (least, most).
        formats: names of `table_format`.
    """

    rows: tuple[float, float]
    dim: tuple[float, float]
    pooling: tuple[float, float]
    batch_size: tuple[float, float]
    formats: tuple[str, ...]

    @classmethod
    def over(cls, groups: Sequence[tuple[Sequence[TableSpec], int]]) -> "Ranges":
        """The ranges of measured groups, as (tables, batch size)."""
        tables = [table for group, _ in groups for table in group]
        spans = {name: _span([getattr(table, name) for table in tables]) for name in ("rows", "dim", "pooling")}
        batch_size = _span([batch_size for _, batch_size in groups])
        return cls(**spans, batch_size=batch_size, formats=tuple(sorted({table_format(table) for table in tables})))

    def outside(self, tables: Sequence[TableSpec], batch_size: int) -> list[str]:
        """What is out of range, one sentence for each number or format; empty when all is within."""
        found = []
        for name in ("rows", "dim", "pooling"):
            low, high = getattr(self, name)
            out = [table for table in tables if not low / SLACK <= getattr(table, name) <= high * SLACK]
            if out:
                found.append(
                    f"{name} {getattr(out[0], name):g} of table {out[0].name!r} ({len(out)} of {len(tables)} tables) "
                    f"is outside the measured {low:g} to {high:g}"
                )
        low, high = self.batch_size
        if not low / SLACK <= batch_size <= high * SLACK:
            found.append(f"batch size {batch_size} is outside the measured {low:g} to {high:g}")
        for kind in sorted({table_format(table) for table in tables} - set(self.formats)):
            found.append(f"format {kind} was not measured (only {', '.join(self.formats)})")
        return found

    def to_record(self) -> dict:
        """Plain numbers, as `from_record` reads them."""
        return asdict(self)

    @classmethod
    def from_record(cls, record: dict) -> "Ranges":
        """The inverse of `to_record`."""
        return cls(**{name: tuple(value) for name, value in record.items()})


def table_format(table: TableSpec) -> str:
    """A table's format as one word: its dtype, "tt" with "+cache", and "+dedup" where its lists repeat."""
    kind = table.dtype
    if table.tensor_train is not None:
        kind = "tt+cache" if table.tensor_train.cached_rows else "tt"
    return f"{kind}+dedup" if table.dedup.factor() > 1 else kind


def _span(numbers: Sequence[float]) -> tuple[float, float]:
    return float(min(numbers)), float(max(numbers))
