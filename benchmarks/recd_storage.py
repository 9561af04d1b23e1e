"""RecD's storage, reading and preprocessing (O1, O2, O4): interleaved log against clustered, deduplicated log."""

import atexit
import functools
import shutil
import tempfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch

from benchmarks.public_data import public_data
from benchmarks.recd_logs import KUAIRAND, SPEC, kuairand_log
from benchmarks.recd_timing import medians, speedup
from shardgym.dataio.sessions.batch import SessionBatch
from shardgym.dataio.sessions.cluster import ClusterSettings, cluster
from shardgym.dataio.sessions.column_encodings import leaf_path, smallest_encodings
from shardgym.dataio.sessions.decode import tensor_of
from shardgym.dataio.sessions.grouping import propose_groups
from shardgym.dataio.sessions.log import open_log
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.dataio.sessions.route import partition_of
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.synthetic import LogSpec, StayingGroup, write_log
from shardgym.dataio.sessions.transforms import Bucketize, Clamp, HashIds, Truncate, transformed
from shardgym.embeddings.jagged.keyed import KeyedJaggedTensor

LEVEL = 3
BATCH = 4096
ROW_GROUP = 32_768
SHARDS = 64
FORMATS = ("dictionary", "plain", "split", "smallest")


@functools.cache
def folder() -> Path:
    """Where the logs of this run lie; removed at its end."""
    path = Path(tempfile.mkdtemp(prefix="recd-storage-"))
    atexit.register(shutil.rmtree, path)
    return path


def write_flat(table: pa.Table, path: Path, form: str) -> int:
    """One row per sample, at the same zstd level, with dictionaries, plain, split bytes, or each column's smallest.

    Returns:
        Bytes written.
    """
    options: dict[str, Any] = {
        "compression": "zstd",
        "compression_level": LEVEL,
        "use_dictionary": form == "dictionary",
    }
    if form == "split":
        wide = [leaf for leaf, kind in map(leaf_path, table.schema) if kind.bit_width >= 32]
        options["column_encoding"] = dict.fromkeys(wide, "BYTE_STREAM_SPLIT")
    if form == "smallest":
        options = smallest_encodings(table.slice(0, ROW_GROUP), LEVEL)
    pq.write_table(table, path, row_group_size=ROW_GROUP, **options)
    return path.stat().st_size


def smallest_flat(table: pa.Table, name: str) -> int:
    """Bytes of the smallest of the forms: the clustered log is compared with the best that a flat one can do."""
    return min(write_flat(table, folder() / f"{name}-{form}.parquet", form) for form in FORMATS)


@functools.cache
def generated() -> tuple[pa.Table, Path]:
    """The generated log in time order, and its clustered form."""
    raw = write_log(SPEC, folder() / "raw")
    out = folder() / "clustered"
    # Memory for row groups as large as the flat log's.
    cluster(raw, out, settings=ClusterSettings(4 << 30, 1, ROW_GROUP, compression_level=LEVEL))
    return pq.read_table(raw, columns=list(SPEC.schema.columns)), out


def size_of(clustered: Path) -> int:
    """Bytes of a clustered log's parts."""
    return sum(path.stat().st_size for path in clustered.glob("part-*.parquet"))


def storage() -> dict[str, Any]:
    """Bytes interleaved (its smallest form) over bytes clustered and deduplicated, the whole log.

    `kuairand_histories` counts the histories alone, with their offsets and lengths: the other columns of KuaiRand's
    events repeat in neither form, and take half of the flat log.
    """
    table, out = generated()
    ratios = {"generated": smallest_flat(table, "interleaved") / size_of(out)}
    events = public_data("kuairand_events.parquet")
    if events is not None:
        flat, out = kuairand_log(events), folder() / "kuairand"
        pq.write_table(flat, folder() / "kuairand.parquet")
        settings = ClusterSettings(partitions=1, compression_level=LEVEL)
        cluster(folder() / "kuairand.parquet", out, KUAIRAND, settings)
        ratios["kuairand"] = smallest_flat(flat, "flat") / size_of(out)
        histories = smallest_flat(flat.select(KUAIRAND.features), "flat-histories")
        ratios["kuairand_histories"] = histories / history_bytes(out)
    return {"storage": ratios}


def history_bytes(clustered: Path) -> int:
    """Bytes of the histories' columns in a clustered log."""
    names = (*KUAIRAND.features, *(group.name for group in KUAIRAND.groups))
    footers = [pq.read_metadata(path) for path in clustered.glob("part-*.parquet")]
    chunks = (f.row_group(g).column(c) for f in footers for g in range(f.num_row_groups) for c in range(f.num_columns))
    return sum(chunk.total_compressed_size for chunk in chunks if chunk.path_in_schema.split(".")[0] in names)


def flat_batches(path: Path, schema: SessionSchema, batch: int = BATCH) -> Iterator[SessionBatch]:
    """Interleaved Parquet -> KJT, one thread, nothing hashed or copied twice."""
    file = pq.ParquetFile(path, pre_buffer=False)
    for number in range(file.num_row_groups):
        table = file.read_row_group(number, columns=[*schema.samples, *schema.features], use_threads=False)
        columns = {name: table.column(name).combine_chunks() for name in table.column_names}
        for start in range(0, table.num_rows - batch + 1, batch):
            lists = [columns[feature].slice(start, batch) for feature in schema.features]
            kjt = KeyedJaggedTensor(
                schema.features,
                torch.cat([tensor_of(each.flatten()) for each in lists]),
                lengths=torch.from_numpy(np.concatenate([np.diff(each.offsets.to_numpy()) for each in lists])).int(),
                stride=batch,
                validate=False,
            )
            samples = {name: tensor_of(columns[name].slice(start, batch)) for name in schema.samples}
            yield SessionBatch(kjt, samples)


def read_through(batches: Iterable[SessionBatch]) -> None:
    """Take every batch, on one thread."""
    torch.set_num_threads(1)
    for _ in batches:
        pass


def reading() -> dict[str, Any]:
    """Samples per second and bytes per batch: clustered -> deduplicated against interleaved -> KJT, one thread."""
    table, out = generated()
    clustered = SessionDataset(out, BATCH)
    steps: dict[str, Callable[[], object]] = {"clustered": lambda: read_through(clustered)}
    for form in FORMATS:
        path = folder() / f"interleaved-{form}.parquet"
        if not path.exists():
            write_flat(table, path, form)
        steps[form] = functools.partial(lambda path: read_through(flat_batches(path, SPEC.schema)), path)
    samples = {"clustered": BATCH * len(clustered)}
    samples |= {form: table.num_rows // ROW_GROUP * ROW_GROUP for form in FORMATS}  # noqa: C420
    threads = torch.get_num_threads()
    taken = medians(steps, rounds=5)
    rates = {name: samples[name] / taken[name] for name in steps}
    torch.set_num_threads(threads)
    plain = [batch.size_in_bytes() for batch in flat_batches(folder() / "interleaved-split.parquet", SPEC.schema)]
    ours = [batch.size_in_bytes() for batch in clustered]
    return {
        "reader_samples_per_s": rates["clustered"] / max(rates[form] for form in FORMATS),
        "batch_bytes": float(np.mean(plain) / np.mean(ours)),
    }


def preprocess() -> dict[str, Any]:
    """Truncation, hashing, clamping and bucketising of every list against unique lists, at factor 5."""
    S, factor = 16.0, 5.0
    stay = 1 - (S / factor - 1) / (S - 1)
    spec = LogSpec(
        sessions=2_000,
        samples_per_session=S,
        groups=tuple(StayingGroup(GroupSpec(f"g{n}", (f"f{n}",)), stay, length=50) for n in range(4)),
        seed=2,
    )
    out = folder() / "factor-5"
    cluster(write_log(spec, folder() / "factor-5-raw"), out, settings=ClusterSettings(partitions=1))
    batches = [batch.features for batch in SessionDataset(out, BATCH)][:4]
    plain = [batch.to_kjt() for batch in batches]
    pipeline = [Truncate(30), HashIds(1 << 20), Clamp(16, 1 << 19), Bucketize(tuple(range(0, 1 << 19, 1 << 13)))]
    transforms = dict.fromkeys(spec.schema.features, pipeline)
    gain = speedup(
        lambda: [transformed(kjt, transforms) for kjt in plain],
        lambda: [transformed(batch, transforms) for batch in batches],
    )
    return {"preprocess": gain, "ablation": {"O4": gain}}


def grouping_error() -> dict[str, Any]:
    """The largest error of a predicted factor on held-out sessions: generated log, and KuaiRand's where it lies."""
    raw = write_log(replace(SPEC, sessions=40_000, seed=3), folder() / "grouping")
    errors = [propose_groups(open_log(raw), samples=320_000).error]
    events = public_data("kuairand_events.parquet")
    if events is not None:
        path = folder() / "kuairand-grouping.parquet"
        pq.write_table(kuairand_log(events), path)
        errors.append(propose_groups(open_log(path, KUAIRAND), samples=120_000).error)
    return {"grouping_error": max(errors)}


def ablation() -> dict[str, Any]:
    """Storage of the generated log with the steps on the way: sharded by session in time order, then clustered."""
    table, _ = generated()
    interleaved = smallest_flat(table, "interleaved")
    shard = partition_of(table.column("session_id").combine_chunks(), SHARDS, np.arange(table.num_rows))
    sharded = sum(smallest_flat(table.filter(pa.array(shard == at)), "shard") for at in range(SHARDS))
    ordered = table.sort_by([("session_id", "ascending"), ("timestamp", "ascending")])
    clustered = smallest_flat(ordered, "ordered")
    return {
        "ablation": {
            "O1": interleaved / sharded,
            "O2": interleaved / clustered,
        }
    }


SECTIONS: dict[str, Callable[[], dict[str, Any]]] = {
    "storage": storage,
    "reading": reading,
    "preprocess": preprocess,
    "grouping": grouping_error,
    "ablation_storage": ablation,
}
