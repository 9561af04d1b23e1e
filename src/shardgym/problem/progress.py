"""How long work tells how far it is."""

from typing import Protocol


class Progress(Protocol):
    """Called by long work as it goes on; the command line draws a bar per stage."""

    def __call__(self, stage: str, done: float, total: float, note: str = "") -> None:
        """Say how far a stage is.

        Args:
            stage: what is being done, such as "measure groups".
            done: so much of it, in the stage's own unit.
            total: all of it.
            note: what else is worth a word.
        """
        ...


def no_progress(stage: str, done: float, total: float, note: str = "") -> None:
    """Say nothing."""
