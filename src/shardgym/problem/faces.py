"""Public classes carry the name that users import them by."""

from collections.abc import Callable
from typing import TypeVar

Class = TypeVar("Class", bound=type)


def public(face: str) -> Callable[[Class], Class]:
    """Mark a class as imported from a face, such as `shardgym.agents`.

    Pickles, saved models and dotted paths then hold the face, and outlive a move of the module behind it.
    """

    def mark(cls: Class) -> Class:
        cls.__module__ = face
        return cls

    return mark
