"""Reading a clustered log as deduplicated batches, over workers and ranks, resumable to the batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.distributed
from torch.utils.data import DataLoader, IterableDataset, get_worker_info

from shardgym.dataio.sessions.batch import SessionBatch
from shardgym.dataio.sessions.clustered_files import Manifest
from shardgym.dataio.sessions.decode import SampleStream
from shardgym.dataio.sessions.order import ReadOrder, RowGroup, served
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.transforms import Transform, transformed
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public

STATE_VERSION = 1


@public("shardgym.dataio")
class SessionDataset(IterableDataset[SessionBatch]):
    """Deduplicated batches of a clustered log (RecD's O3, without hashing).

    Row groups are shared out over ranks and, inside a rank, over workers. Iterate it through `SessionLoader`,
    or as it is in one process.

    Args:
        folder: what `cluster` wrote.
        batch_size: samples B per batch; sessions are cut at its edges.
        rank, world_size: of this process; by default torch.distributed's, or 0 of 1.
        shuffle: a new order of row groups and sessions every epoch; repeats stay together.
        shuffle_window: batches whose samples are shuffled together, 1 for none. Mixes samples of a session
            with others' at the cost of deduplication: a session is spread over that many batches.
        seed: of the shuffles.
        drop_last: whole batches only and as many on every rank; False gives every sample exactly once.
        features: names to read, by default all.
        samples: sample columns to read, the time among them if wanted; by default all but the time.
        transforms: for each feature, what its unique lists pass through.

    Raises:
        InputError: the folder is not whole, or a name or number does not fit.
    """

    def __init__(
        self,
        folder: str | Path,
        batch_size: int,
        *,
        rank: int | None = None,
        world_size: int | None = None,
        shuffle: bool = False,
        shuffle_window: int = 1,
        seed: int = 0,
        drop_last: bool = True,
        features: Sequence[str] | None = None,
        samples: Sequence[str] | None = None,
        transforms: Mapping[str, Sequence[Transform]] | None = None,
    ) -> None:
        super().__init__()
        self.folder = Path(folder)
        manifest = Manifest.read(self.folder)
        self.rank, world = _place(rank, world_size)
        for name, value in (("batch_size", batch_size), ("shuffle_window", shuffle_window)):
            if value < 1:
                raise InputError(f"{name} is {value}; give 1 or more")
        self.parts = _checked_parts(self.folder, manifest)
        self.schema = _with_features(manifest.schema, features)
        self.samples = _known("sample column", samples, manifest.schema.samples, (manifest.schema.time,))
        self.transforms = dict(transforms or {})
        unknown = set(self.transforms) - set(self.schema.features)
        if unknown:
            raise InputError(
                f"transforms: no feature {min(unknown)!r} is read; the features are {self.schema.features}"
            )
        row_groups = tuple(
            RowGroup(part, number, count)
            for part, content in enumerate(manifest.parts)
            for number, count in enumerate(content.samples)
        )
        if max(1, len(row_groups)) < world:
            raise InputError(
                f"{folder}: {len(row_groups)} row groups cannot be shared by {world} ranks; "
                "cluster with a smaller row_group_samples"
            )
        self.order = ReadOrder(row_groups, batch_size, shuffle_window, world, seed, shuffle, drop_last)
        # Shared memory, so that workers that are kept alive see where the next pass is to start.
        self._start = torch.zeros(2, dtype=torch.int64).share_memory_()
        self.epoch, self.consumed, self.workers = 0, 0, 1
        self._resume, self._total = 0, 0

    def set_epoch(self, epoch: int) -> None:
        """Read this epoch next, from its start. Without it, epochs follow each other.

        Setting the epoch at which a loaded state stands keeps its place.
        """
        if epoch != self.epoch:
            self.epoch, self.consumed, self._resume = epoch, 0, 0

    def batches(self, workers: int = 1) -> int:
        """Batches of this rank in the current epoch, when so many workers read."""
        return sum(self.order.batches(self.epoch, self.rank, workers))

    def __len__(self) -> int:
        return self.batches(self.workers)

    def begin(self, workers: int) -> int:
        """Set out on a pass by so many workers; the number of batches that it passes over, having been loaded.

        Raises:
            InputError: a loaded state was saved with another number of workers.
        """
        if self._resume and workers != self.workers:
            raise InputError(
                f"the state was saved amid an epoch with {self.workers} workers, not {workers}; resume with as many"
            )
        self.workers, self.consumed, self._resume = workers, self._resume, 0
        self._total = self.batches(workers)
        self._start[:] = torch.tensor([self.epoch, self.consumed])
        return self.consumed

    def record(self, consumed: int) -> None:
        """Note how many of a pass's batches have been handed out; after the last comes the next epoch."""
        self.consumed = consumed
        if consumed >= self._total:
            self.epoch, self.consumed = self.epoch + 1, 0

    def __iter__(self) -> Iterator[SessionBatch]:
        info = get_worker_info()
        if info is not None:
            epoch, start = self._start.tolist()
            yield from self._stream(epoch, start, info.id, info.num_workers)
            return
        start = self.begin(1)
        for count, batch in enumerate(self._stream(self.epoch, start, 0, 1), start + 1):
            self.record(count)
            yield batch
        if not self._total:
            self.record(0)

    def _stream(self, epoch: int, consumed: int, place: int, workers: int) -> Iterator[SessionBatch]:
        """Batches of the worker in this place of the turn; after a resume the turn starts where it had stopped."""
        counts = self.order.batches(epoch, self.rank, workers)
        done, turn = served(counts, consumed)
        worker = (place + turn) % workers
        shard = self.order.shard(epoch, self.rank, worker, workers)
        stream = SampleStream(self.parts, self.schema, self.samples, self.order, epoch, shard)
        stretch = self.order.window
        rows: range | np.ndarray | None = None
        for number in range(done[worker], counts[worker]):
            window, at = divmod(number, stretch)
            if rows is None or at == 0:
                rows = self.order.window_rows(epoch, self.rank, worker, window, stream.samples)
            B = self.order.batch_size
            run = stream.take(rows[at * B : (at + 1) * B], window * stretch * B)
            features = transformed(run.features, self.transforms) if self.transforms else run.features
            yield SessionBatch(features, run.samples)

    def state_dict(self) -> dict[str, Any]:
        """Where the reading stands: how many batches of which epoch were handed out, and what they depend on."""
        here = {"version": STATE_VERSION, "epoch": self.epoch, "consumed": self.consumed, "workers": self.workers}
        return {**here, **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; the next batch is the one that would have followed.

        Raises:
            InputError: names what differs from the reading that was saved.
        """
        if state.get("version") != STATE_VERSION:
            raise InputError(
                f"reader state: version {state.get('version')} is not {STATE_VERSION}; start the epoch again"
            )
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(f"reader state: {name} was {state.get(name)} and is {value}; read as before to go on")
        self.epoch, self.workers = state["epoch"], state["workers"]
        self.consumed = self._resume = state["consumed"]

    def _identity(self) -> dict[str, Any]:
        order = self.order
        return {
            "samples": sum(group.samples for group in order.row_groups),
            "row_groups": len(order.row_groups),
            "batch_size": order.batch_size,
            "shuffle_window": order.window,
            "shuffle": order.shuffle,
            "drop_last": order.drop_last,
            "seed": order.seed,
            "world_size": order.world_size,
            "rank": self.rank,
        }


@public("shardgym.dataio")
class SessionLoader:
    """A DataLoader over a `SessionDataset` that knows which batches were handed out.

    Args:
        dataset: what to read.
        num_workers: processes that read; 0 reads in this one.
        pin_memory: whether batches come in page-locked memory.
        prefetch_factor: batches that each worker reads ahead.
        persistent_workers: keep the workers between epochs.
    """

    def __init__(
        self,
        dataset: SessionDataset,
        num_workers: int = 0,
        pin_memory: bool = False,
        prefetch_factor: int = 2,
        persistent_workers: bool = True,
    ) -> None:
        self.dataset = dataset
        self._workers = num_workers
        self._loader: DataLoader = DataLoader(
            dataset,
            batch_size=None,
            num_workers=num_workers,
            collate_fn=_as_is,
            pin_memory=pin_memory,
            prefetch_factor=prefetch_factor if num_workers else None,
            persistent_workers=persistent_workers and num_workers > 0,
        )

    def __iter__(self) -> Iterator[SessionBatch]:
        if not self._workers:
            yield from self._loader
            return
        start = self.dataset.begin(self._workers)
        for count, batch in enumerate(self._loader, start + 1):
            self.dataset.record(count)
            yield batch
        if not len(self):
            self.dataset.record(0)

    def __len__(self) -> int:
        return self.dataset.batches(max(1, self._workers))

    def state_dict(self) -> dict[str, Any]:
        """Where the reading stands, exact to the batch that was last handed out."""
        return self.dataset.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved, in the next pass over this loader.

        Raises:
            InputError: names what differs from the reading that was saved.
        """
        self.dataset.load_state_dict(state)


def _as_is(batch: Any) -> Any:
    return batch


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if started else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if started else 1
    if not 0 <= rank < world_size:
        raise InputError(f"rank is {rank} of world_size {world_size}; give a rank from 0 to world_size - 1")
    return rank, world_size


def _checked_parts(folder: Path, manifest: Manifest) -> list[Path]:
    parts = [folder / part.name for part in manifest.parts]
    for path, part in zip(parts, manifest.parts):
        size = path.stat().st_size if path.exists() else None
        if size != part.bytes:
            wrong = "is missing" if size is None else f"has {size} bytes where {part.bytes} were written"
            raise InputError(f"{path}: {wrong}; copy the part again, or cluster the log again")
    return parts


def _known(kind: str, asked: Sequence[str] | None, known: Sequence[str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """The names asked for, by default all the known ones; `more` may be asked for too."""
    asked = known if asked is None else asked
    for name in asked:
        if name not in (*known, *more):
            raise InputError(f"{kind} {name!r} is not in the log; give some of {', '.join((*known, *more))}")
    return tuple(asked)


def _with_features(schema: SessionSchema, features: Sequence[str] | None) -> SessionSchema:
    features = _known("feature", features, schema.features)
    chosen = [(group, tuple(feature for feature in group.features if feature in features)) for group in schema.groups]
    groups = tuple(GroupSpec(group.name, names, group.form) for group, names in chosen if names)
    return replace(schema, groups=groups)
