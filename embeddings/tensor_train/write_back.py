"""Writing rows back into tensor-train cores: what a row learned in the cache is not lost when it leaves."""

from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from shardgym.embeddings.kernels.tt_reference import three_cores, tt_rows

STEPS = 8


@torch.no_grad()
def write_back(cores: Sequence[Tensor], positions: Tensor, rows: Tensor, steps: int = STEPS) -> list[Tensor]:
    """Cores near the given ones whose rows at some positions are near the given rows.

    A few steepest-descent steps on sum |row - target|^2, each to the minimum along its line of the linearised rows:
    they move the cores' slices of these positions alone, and little beyond what the rows need, since many other rows
    share the slices. A step that does not bring the rows nearer is halved, and then given up.

    Args:
        cores: two to four, (p_k, r_k, q_k, r_(k+1)).
        positions: (n,) distinct, int64.
        rows: (n, dim) targets.
        steps: at most.

    Returns:
        New cores, of the same shapes.
    """
    dim = rows.shape[1]

    def rows_of(*given: Tensor) -> Tensor:
        return tt_rows(three_cores(given), positions, dim)

    present = [core.clone() for core in cores]
    error = rows - rows_of(*present)
    for _ in range(steps):
        directions = _gradients(rows_of, present, error)
        square = sum(float(direction.square().sum()) for direction in directions)
        moved = torch.func.jvp(rows_of, tuple(present), tuple(directions))[1]
        length = square / max(float(moved.square().sum()), 1e-300)
        for _ in range(4):
            tried = [core + length * direction for core, direction in zip(present, directions)]
            left = rows - rows_of(*tried)
            if left.square().sum() < error.square().sum():
                break
            length /= 2
        else:
            break
        present, error = tried, left
    return present


def _gradients(rows_of: Callable[..., Tensor], cores: Sequence[Tensor], error: Tensor) -> list[Tensor]:
    """Of the inner product of the rows with the error, for each core."""
    with torch.enable_grad():
        leaves = [core.detach().requires_grad_() for core in cores]
        return list(torch.autograd.grad(rows_of(*leaves), leaves, error))
