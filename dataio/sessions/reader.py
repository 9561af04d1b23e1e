"""Reading a clustered log as deduplicated batches, over workers and ranks, resumable to the batch."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.distributed
from torch.utils.data import IterableDataset, get_worker_info

from shardgym.dataio.sessions.batch import SessionBatch
from shardgym.dataio.sessions.clustered_files import Manifest
from shardgym.dataio.sessions.order import Lane, ReadOrder, RowGroup, served
from shardgym.dataio.sessions.place import ReadPlace, SharedPlace
from shardgym.dataio.sessions.schema import GroupSpec, SessionSchema
from shardgym.dataio.sessions.stream import SampleStream
from shardgym.dataio.sessions.transforms import Transform, transformed
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


@public("shardgym.dataio")
class SessionDataset(IterableDataset[SessionBatch]):
    """Deduplicated batches of a clustered log (RecD's O3, without hashing).

    An epoch is one order of all samples; ranks, and inside a rank workers, take runs of whole batches of it. Iterate
    it through `SessionLoader`, in one process as it is, or through torch's DataLoader or torchdata's
    StatefulDataLoader (`batch_size=None`); those two need `set_epoch` before each pass.

    Args:
        folder: what `cluster` wrote.
        batch_size: samples B per batch; sessions are cut at its edges.
        rank, world_size: of this process; by default torch.distributed's, or 0 of 1.
        shuffle: a new order of row groups and sessions every epoch; repeats stay together.
        shuffle_window: batches whose samples are shuffled together, 1 for none. Mixes samples of a session
            with others' at the cost of deduplication: a session is spread over that many batches.
        seed: of the shuffles.
        drop_last: whole batches only and as many on every rank, so that less than one batch per rank is left out;
            False gives every sample exactly once, in as many batches on every rank as far as the samples go.
        features: names to read, by default all.
        samples: sample columns to read, the time and the session among them if wanted; by default all but these. Text
            session ids come as a 64-bit hash (the first bytes of BLAKE2b).
        transforms: for each feature, what its unique lists pass through.

    Raises:
        InputError: the folder is not whole, a name or number does not fit, or the samples fill no batch on each rank.
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
        self.rank, self.world_size = _place(rank, world_size)
        for name, value in (("batch_size", batch_size), ("shuffle_window", shuffle_window)):
            if value < 1:
                raise InputError(f"{name} is {value}; give 1 or more")
        _check_parts(self.folder, manifest)
        self.parts = manifest.parts
        self.schema = _with_features(manifest.schema, features)
        self.samples = _known("sample column", samples, manifest.schema.samples, _also(manifest))
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
        self.order = ReadOrder(row_groups, batch_size, shuffle_window, seed, shuffle, drop_last)
        if drop_last and 0 < self.order.samples < batch_size * self.world_size:
            raise InputError(
                f"{folder}: {self.order.samples} samples are no batch of {batch_size} on each of {self.world_size} "
                "ranks; give a smaller batch_size, or drop_last=False"
            )
        self._shared = SharedPlace()
        self._loaded, self._now = ReadPlace(), ReadPlace()
        self._skipped = 0
        self._total = self._batches_of(self._now)
        # In a worker: the state of its own lane, for loaders that save one per worker.
        self._lane: dict[str, Any] | None = None
        self._lane_loaded = False

    @property
    def epoch(self) -> int:
        """The epoch that is read, or comes next."""
        return self._now.epoch

    def set_epoch(self, epoch: int) -> None:
        """Read this epoch next, from its start. `SessionLoader` does without: its epochs follow each other.

        Setting the epoch at which a loaded state stands keeps its place.
        """
        if epoch != self._now.epoch:
            self._loaded = self._now = ReadPlace(epoch)
            self._skipped, self._total = 0, self._batches_of(self._now)
        self._shared.set(self._loaded)

    def __len__(self) -> int:
        """Batches of this rank in the pass to come, or in the one that goes on, for any number of workers.

        What a loaded state passes over does not count.
        """
        return self._total - self._skipped

    def _batches_of(self, place: ReadPlace) -> int:
        """Batches of this rank in a place's stretch; their number does not depend on the workers."""
        stretches = place.stretches
        workers = stretches[-1].workers if stretches and stretches[-1].world_size == self.world_size else 1
        return self.order.batches(place.under(self.world_size, workers).stretches, self.rank)

    def begin(self, workers: int) -> int:
        """Set out on a pass by so many workers; the number of batches that it passes over, having been loaded."""
        self._now = self._loaded.under(self.world_size, workers)
        self._loaded = replace(self._loaded, stretches=())
        self._skipped = self._now.consumed
        self._total = self.order.batches(self._now.stretches, self.rank)
        self._shared.set(self._now)
        return self._skipped

    def record(self, consumed: int) -> None:
        """Note how many of a pass's batches have been handed out; after the last comes the next epoch."""
        if consumed >= self._total:
            self._turn_epoch()
        else:
            self._now = self._now.after(consumed)

    def finish(self) -> None:
        """Note that a pass has ended, also one without a batch."""
        if self._now.stretches:
            self._turn_epoch()

    def _turn_epoch(self) -> None:
        self._loaded = self._now = ReadPlace(self._now.epoch + 1)
        self._skipped, self._total = 0, self._batches_of(self._now)
        self._shared.set(self._loaded)

    def __iter__(self) -> Iterator[SessionBatch]:
        info = get_worker_info()
        return self._own_pass() if info is None else self._worker_pass(info.id, info.num_workers)

    def _own_pass(self) -> Iterator[SessionBatch]:
        start = self.begin(1)
        place = self._now
        return self._counted(self._batches(place.epoch, self._lanes(place)[0], start), start)

    def _counted(self, batches: Iterator[SessionBatch], start: int) -> Iterator[SessionBatch]:
        for count, batch in enumerate(batches, start + 1):
            self.record(count)
            yield batch
        self.finish()

    def _lanes(self, place: ReadPlace) -> list[Lane]:
        """What each of this rank's workers reads."""
        return self.order.lanes(place.stretches)[self.rank]

    def _worker_pass(self, number: int, workers: int) -> Iterator[SessionBatch]:
        """A worker's batches; after a resume the turn starts with the worker at which it had stopped."""
        if self._lane_loaded and self._lane is not None:
            return self._lane_pass(workers)
        place = self._shared.read(number, self.order.shuffle).under(self.world_size, workers)
        lanes = self._lanes(place)
        done, turn = served([lane.batches for lane in lanes], place.consumed)
        worker = (number + turn) % workers
        self._lane = {**place.to_dict(), "workers": workers, "worker": worker, "done": done[worker]}
        return self._noted(self._batches(place.epoch, lanes[worker], done[worker]))

    def _lane_pass(self, workers: int) -> Iterator[SessionBatch]:
        assert self._lane is not None
        if self._lane["workers"] != workers:
            raise InputError(
                f"the state was saved with {self._lane['workers']} workers, not {workers}; resume with as many, "
                "or save through SessionLoader, whose states go on under any number"
            )
        self._lane_loaded = False
        place = ReadPlace.from_dict(self._lane).under(self.world_size, workers)
        lane = self._lanes(place)[self._lane["worker"]]
        return self._noted(self._batches(place.epoch, lane, self._lane["done"]))

    def _noted(self, batches: Iterator[SessionBatch]) -> Iterator[SessionBatch]:
        for batch in batches:
            assert self._lane is not None
            self._lane = {**self._lane, "done": self._lane["done"] + 1}
            yield batch

    def _batches(self, epoch: int, lane: Lane, done: int) -> Iterator[SessionBatch]:
        """Batches of one lane, the first ones passed over."""
        stream = SampleStream(self.folder, self.parts, self.schema, self.samples, self.order, epoch)
        for number in range(done, lane.batches):
            run = stream.take(lane.batch(number))
            features = transformed(run.features, self.transforms) if self.transforms else run.features
            yield SessionBatch(features, run.samples)

    def state_dict(self) -> dict[str, Any]:
        """Where the reading stands: how many batches of which epoch were handed out, and what they depend on.

        The same on every rank. Inside a loader's worker, the state of that worker alone.

        Raises:
            InputError: the workers of a loader that tells the data set nothing have read amid an epoch.
        """
        if get_worker_info() is not None and self._lane is not None:
            return {**self._lane, **self._identity()}
        if not self._now.stretches and self._shared.was_read():
            raise InputError(
                "the batches that another loader's workers hand out are not known here; save the state of torchdata's "
                "StatefulDataLoader, or read through SessionLoader"
            )
        return {**self._now.to_dict(), **self._identity()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on where a state was saved; no sample of the epoch is read twice, none is lost.

        With the ranks and workers of the state, the next batch is the one that would have followed; with others, the
        samples that are left are split anew. The state of any rank serves all.

        Raises:
            InputError: names what differs from the reading that was saved.
        """
        place = ReadPlace.from_dict(state)
        for name, value in self._identity().items():
            if state.get(name) != value:
                raise InputError(f"reader state: {name} was {state.get(name)} and is {value}; read as before to go on")
        if "worker" in state:
            self._lane, self._lane_loaded = {name: state[name] for name in _LANE_FIELDS}, True
            return
        self._loaded = self._now = place
        self._skipped = place.under(self.world_size, place.stretches[-1].workers).consumed if place.stretches else 0
        self._total = self._batches_of(place)
        self._shared.set(place)

    def _identity(self) -> dict[str, Any]:
        order = self.order
        return {
            "samples": order.samples,
            "row_groups": len(order.row_groups),
            "batch_size": order.batch_size,
            "shuffle_window": order.window,
            "shuffle": order.shuffle,
            "drop_last": order.drop_last,
            "seed": order.seed,
        }


_LANE_FIELDS = ("version", "epoch", "stretches", "workers", "worker", "done")


def _place(rank: int | None, world_size: int | None) -> tuple[int, int]:
    started = torch.distributed.is_available() and torch.distributed.is_initialized()
    if rank is None:
        rank = torch.distributed.get_rank() if started else 0
    if world_size is None:
        world_size = torch.distributed.get_world_size() if started else 1
    if not 0 <= rank < world_size:
        raise InputError(f"rank is {rank} of world_size {world_size}; give a rank from 0 to world_size - 1")
    return rank, world_size


def _check_parts(folder: Path, manifest: Manifest) -> None:
    for part in manifest.parts:
        path = folder / part.name
        size = path.stat().st_size if path.exists() else None
        if size != part.bytes:
            wrong = "is missing" if size is None else f"has {size} bytes where {part.bytes} were written"
            raise InputError(f"{path}: {wrong}; copy the part again, or cluster the log again")


def _known(kind: str, asked: Sequence[str] | None, known: Sequence[str], more: Sequence[str] = ()) -> tuple[str, ...]:
    """The names asked for, by default all the known ones; `more` may be asked for too."""
    asked = known if asked is None else asked
    for name in asked:
        if name not in (*known, *more):
            raise InputError(f"{kind} {name!r} is not in the log; give some of {', '.join((*known, *more))}")
    return tuple(asked)


def _also(manifest: Manifest) -> tuple[str, str]:
    """Columns that are read where they are asked for."""
    return manifest.schema.time, manifest.schema.session


def _with_features(schema: SessionSchema, features: Sequence[str] | None) -> SessionSchema:
    features = _known("feature", features, schema.features)
    chosen = [(group, tuple(feature for feature in group.features if feature in features)) for group in schema.groups]
    groups = tuple(GroupSpec(group.name, names, group.form) for group, names in chosen if names)
    return replace(schema, groups=groups)
