"""What an episode is worth, and what an illegal action does."""

import numpy as np
from numpy.typing import NDArray

from shardgym.problem.faces import public

REWARD_PER_MS = -0.01
"""Reward of a millisecond of predicted step latency: a plan of 100 ms returns -1."""


def failed_ms(worst_ms: NDArray[np.float64] | float, unplaced_share: NDArray[np.float64] | float) -> NDArray | float:
    """Ms (...,) that a failed episode counts as: more than any plan takes, and the more the earlier it failed."""
    return worst_ms * (1 + unplaced_share)


@public("shardgym.envs")
class IllegalActionError(ValueError):
    """An action that the mask forbids, under `strict=True`.

    Args:
        action: what was asked for.
        mask: (A,) int8, the actions that were legal.
    """

    def __init__(self, action: int, mask: NDArray[np.int8]) -> None:
        super().__init__(f"action {action} is not legal now; choose one of {np.flatnonzero(mask).tolist()}")
        self.action, self.mask = action, mask

    def __reduce__(self) -> tuple:
        return type(self), (self.action, self.mask)
