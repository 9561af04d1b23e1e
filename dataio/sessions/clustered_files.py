"""The files of a clustered log: nested Parquet parts, and a manifest that appears when all of them are whole."""

import json
import zlib
from collections.abc import Iterable
from dataclasses import asdict, dataclass
from importlib.metadata import version
from itertools import chain
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from shardgym.dataio.sessions.column_encodings import smallest_encodings
from shardgym.dataio.sessions.schema import SessionSchema
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.files import read_json, replacing, write_text

MANIFEST = "_manifest.json"
FORMAT_VERSION = 2
_FOOTER_KEY = "shardgym.sessions"


@dataclass(frozen=True)
class Part:
    """One Parquet file of a clustered log.

    Args:
        name: of the file.
        sessions: session rows of each row group.
        samples: samples of each row group.
        null_sessions: samples without a session id.
        bytes: of the file.
        footer_crc: CRC-32 of the footer, which no page's checksum covers.
    """

    name: str
    sessions: tuple[int, ...]
    samples: tuple[int, ...]
    null_sessions: int
    bytes: int
    footer_crc: int


@public("shardgym.dataio")
@dataclass(frozen=True)
class Manifest:
    """What a clustered log holds.

    Args:
        schema: roles of the columns, as in the raw log.
        parts: the files, by name.
        notes: what was handled on the way and should be said.
        plan: settings and inputs that the log was clustered with.
        versions: of shardgym, pyarrow and this format.
    """

    schema: SessionSchema
    parts: tuple[Part, ...]
    notes: tuple[str, ...]
    plan: dict[str, Any]
    versions: dict[str, Any]

    @property
    def samples(self) -> int:
        """Samples in all parts."""
        return sum(sum(part.samples) for part in self.parts)

    @property
    def sessions(self) -> int:
        """Rows in all parts: sessions, those over the longest cut in several."""
        return sum(sum(part.sessions) for part in self.parts)

    def write(self, folder: Path) -> None:
        """Write the manifest, whole or not at all."""
        write_text(folder / MANIFEST, json.dumps(asdict(self), indent=1, ensure_ascii=False) + "\n")

    @classmethod
    def read(cls, folder: Path) -> "Manifest":
        """Read and check a folder's manifest.

        Raises:
            InputError: the folder is no finished clustered log, or of a version that is not known here.
        """
        path = folder / MANIFEST
        if not path.is_file():
            raise InputError(
                f"{folder}: no {MANIFEST} here; run `shardgym sessions cluster` (again, if it was cut off)"
            )
        content = read_json(path, "cluster the log again")
        try:
            known = content["versions"]["format"] == FORMAT_VERSION
            if known:
                parts = tuple(
                    Part(**{**part, "sessions": tuple(part["sessions"]), "samples": tuple(part["samples"])})
                    for part in content["parts"]
                )
                return cls(
                    SessionSchema.from_dict(content["schema"]),
                    parts,
                    tuple(content["notes"]),
                    content["plan"],
                    content["versions"],
                )
        except (KeyError, TypeError) as error:
            raise InputError(f"{path}: cannot be read ({error!r}); cluster the log again") from None
        raise InputError(
            f"{path}: format {content['versions']['format']} is not {FORMAT_VERSION}; cluster the log again, "
            f"or read it with shardgym {content['versions'].get('shardgym')}"
        )


def current_versions() -> dict[str, Any]:
    """Versions that a manifest records."""
    return {"format": FORMAT_VERSION, "shardgym": version("shardgym"), "pyarrow": pa.__version__}


def write_part(path: Path, arrow: pa.Schema, tables: Iterable[pa.Table], schema: SessionSchema, level: int) -> None:
    """Write nested tables as the row groups of one part; the file appears whole or not at all.

    Args:
        path: the part; rows and samples of its row groups are kept in its footer.
        arrow: the nested tables' schema.
        tables: one per row group.
        schema: roles of the columns.
        level: zstd level.
    """
    sessions, samples, nulls = [], [], 0
    tables = iter(tables)
    first = next(tables, None)
    # The first row group stands for the part: it says which encodings suit the columns.
    writing = smallest_encodings(arrow.empty_table() if first is None else first, level)
    with (
        replacing(path) as partial,
        pq.ParquetWriter(
            partial, arrow, write_statistics=[schema.session], write_page_checksum=True, **writing
        ) as writer,
    ):
        for table in [] if first is None else chain([first], tables):
            writer.write_table(table, row_group_size=max(1, table.num_rows))
            sessions.append(table.num_rows)
            samples.append(len(table.column(schema.time).combine_chunks().flatten()))
            nulls += table.column(schema.session).null_count
        footer = {"sessions": sessions, "samples": samples, "null_sessions": nulls}
        writer.add_key_value_metadata({_FOOTER_KEY: json.dumps(footer)})


def read_part(path: Path) -> Part:
    """What the footer of a part says.

    Raises:
        InputError: the file is not a whole part.
    """
    try:
        with pq.ParquetFile(path) as file:
            footer = json.loads(file.metadata.metadata[_FOOTER_KEY.encode()])
    except (pa.ArrowException, OSError, KeyError, TypeError) as error:
        raise InputError(f"{path}: not a whole part of a clustered log ({error}); cluster the log again") from None
    return Part(
        path.name,
        tuple(footer["sessions"]),
        tuple(footer["samples"]),
        footer["null_sessions"],
        path.stat().st_size,
        footer_checksum(path),
    )


def footer_checksum(path: Path) -> int:
    """CRC-32 of a Parquet file's footer, its length and the magic number included."""
    with open(path, "rb") as file:
        file.seek(-min(8, path.stat().st_size), 2)
        length = int.from_bytes(file.read(8)[:4], "little")
        file.seek(-min(length + 8, path.stat().st_size), 2)
        return zlib.crc32(file.read())


def open_part(folder: Path, part: Part) -> pq.ParquetFile:
    """A part of a clustered log; its footer is verified here, its pages as they are read.

    Raises:
        InputError: the file is missing, or not as it was written.
    """
    path = folder / part.name
    try:
        if footer_checksum(path) == part.footer_crc:
            return pq.ParquetFile(path, pre_buffer=False, page_checksum_verification=True)
        reason = "the footer has another checksum"
    except (pa.ArrowException, OSError) as error:
        reason = str(error)
    raise InputError(f"{path}: not as it was written ({reason}); copy the part again, or cluster the log again")
