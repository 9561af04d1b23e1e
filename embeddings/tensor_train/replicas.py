"""Copies of one table on several processes (torch's DistributedDataParallel): what keeps them equal.

DDP averages the gradients that autograd hands out. It does not see fused steps, which hand out none, nor the counts by
which a hot-row cache chooses its rows: both are combined here, over the process group of the DDP module that the
look-up runs in.
"""

from collections.abc import Sequence

import torch
import torch.distributed as dist
from torch import Tensor
from torch.nn.parallel import DistributedDataParallel


class Replicas:
    """The processes that hold a copy of a table; a copied or saved table forgets them."""

    def __init__(self, group: "dist.ProcessGroup") -> None:
        self.group = group

    def __deepcopy__(self, memo: object) -> None:
        return None

    def __reduce__(self) -> tuple:
        return (type(None), ())

    def average(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Each gradient's mean over the processes, as DDP forms it; all in one exchange."""
        flat = torch.cat([gradient.reshape(-1) for gradient in gradients])
        dist.all_reduce(flat, group=self.group)
        parts = (flat / dist.get_world_size(self.group)).split([gradient.numel() for gradient in gradients])
        return [part.view_as(gradient) for part, gradient in zip(parts, gradients)]

    def average_rows(self, rows: Tensor, gradient: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Rows (n',) that have a gradient on any process, and their mean gradients (n', dim).

        Args:
            rows: (n,) distinct rows that have one here, of `count`.
            gradient: (n, dim).
        """
        whole = gradient.new_zeros(count, gradient.shape[1] + 1)  # the last column counts the processes
        whole[rows, :-1] = gradient
        whole[rows, -1] = 1
        dist.all_reduce(whole, group=self.group)
        touched = torch.nonzero(whole[:, -1]).squeeze(1)
        return touched, whole[touched, :-1] / dist.get_world_size(self.group)

    def gather(self, ids: Tensor, counts: Tensor) -> list[tuple[Tensor, Tensor]]:
        """The ids (n,) and counts (n,) of every process, in the order of their ranks."""
        parts: list[tuple[Tensor, Tensor] | None] = [None] * dist.get_world_size(self.group)
        dist.all_gather_object(parts, (ids, counts), group=self.group)
        return [part for part in parts if part is not None]


def active_replicas() -> Replicas | None:
    """The processes of the DDP module whose forward is running, where there are several."""
    if not (dist.is_available() and dist.is_initialized()):
        return None
    ddp = DistributedDataParallel._active_ddp_module
    if ddp is None or dist.get_world_size(ddp.process_group) == 1:
        return None
    return Replicas(ddp.process_group)
