"""A loader over a clustered log that knows which batches were handed out."""

from collections.abc import Iterator, Mapping
from typing import Any

from torch.utils.data import DataLoader

from shardgym.dataio.sessions.batch import SessionBatch
from shardgym.dataio.sessions.reader import SessionDataset
from shardgym.problem.faces import public


@public("shardgym.dataio")
class SessionLoader:
    """A DataLoader over a `SessionDataset` that knows which batches were handed out.

    Epochs follow each other by themselves, and a state saved between two batches goes on under any number of workers
    and ranks.

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
        self.dataset.finish()

    def __len__(self) -> int:
        """Batches of the pass to come, or of the one that goes on."""
        return len(self.dataset)

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
