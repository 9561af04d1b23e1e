"""Dense tables of one device, looked up and updated by one fused op.

`TableBatchedBags` runs FBGEMM's SplitTableBatchedEmbeddingBags where that is installed, and the plain torch op of
`TorchBags` otherwise: the same layout and the same update, slower.
"""

from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TableSpec

try:
    # The package registers its operators on import; without it everything below still works.
    import fbgemm_gpu  # noqa: F401
    from fbgemm_gpu.split_embedding_configs import EmbOptimType, SparseType
    from fbgemm_gpu.split_table_batched_embeddings_ops_common import ComputeDevice, EmbeddingLocation
    from fbgemm_gpu.split_table_batched_embeddings_ops_training import SplitTableBatchedEmbeddingBagsCodegen

    FBGEMM_AVAILABLE = True
except (ImportError, OSError):
    FBGEMM_AVAILABLE = False

TORCH_DTYPES = {"fp32": torch.float32, "fp16": torch.float16}
EPSILON = 1.0e-8


@public("shardgym.embeddings")
class TableBatchedBags(nn.Module):
    """Sum-pooled bags over several dense tables, with row-wise Adagrad fused into the backward.

    Args:
        tables: dense fp32 or fp16 tables, all of one dtype.
        learning_rate: of the fused update.
        memory: where weights and optimizer state are laid; fresh memory of its own when None.
        device: "cpu" or "cuda".

    Raises:
        InputError: when the tables are of several or unsupported dtypes.
    """

    def __init__(
        self,
        tables: Sequence[TableSpec],
        learning_rate: float = 0.01,
        memory: "ReusedMemory | None" = None,
        device: str = "cpu",
    ) -> None:
        super().__init__()
        self.tables = tuple(tables)
        dtype = TORCH_DTYPES[dense_dtype(self.tables)]
        memory = memory or ReusedMemory(device)
        weights = memory.take("weights", dtype, sum(table.rows * table.dim for table in self.tables))
        states = memory.take("states", torch.float32, sum(table.rows for table in self.tables))
        make = fbgemm_bags if FBGEMM_AVAILABLE else TorchBags
        self.op = make(self.tables, weights, states, learning_rate)

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """Look up and pool.

        Args:
            indices: (N,) int64, the ids of table 0's B bags, then those of table 1, ...
            offsets: (tables * B + 1,) int64, where each bag begins, and the end.

        Returns:
            (B, sum of dims) float32, the tables side by side.
        """
        return self.op(indices, offsets)

    def weights(self) -> list[Tensor]:
        """The tables' weights (rows, dim), which share memory with the op."""
        split: Callable[[], list[Tensor]] = self.op.split_embedding_weights  # type: ignore[assignment]
        return split()


def dense_dtype(tables: Sequence[TableSpec]) -> str:
    """The one dtype of dense tables.

    Raises:
        InputError: says what is mixed, or that there are none.
    """
    if not tables:
        raise InputError("tables: none given; a fused op needs at least one table")
    compressed = [table.name for table in tables if table.tensor_train is not None]
    dtypes = {table.dtype for table in tables}
    if compressed or len(dtypes) > 1 or not dtypes <= set(TORCH_DTYPES):
        raise InputError(
            f"tables: one fused op holds dense tables of one dtype (fp32 or fp16), not {sorted(dtypes)} with "
            f"{len(compressed)} tensor-train tables; hold each format in an op of its own"
        )
    return dtypes.pop()


class ReusedMemory:
    """Buffers that outlive the ops laid in them.

    Measuring many groups of large tables would spend most of its time on paging in fresh memory; one buffer for each
    purpose and dtype is grown as needed and handed out again. Numbers left by one op are valid numbers to the next.
    """

    def __init__(self, device: str = "cpu") -> None:
        self.device = torch.device(device)
        self._buffers: dict[tuple[str, torch.dtype], Tensor] = {}

    def take(self, purpose: str, dtype: torch.dtype, size: int) -> Tensor:
        """A flat tensor of `size` numbers, shared with everyone who takes the same purpose and dtype."""
        buffer = self._buffers.get((purpose, dtype))
        if buffer is None or len(buffer) < size:
            self._buffers.pop((purpose, dtype), None)
            del buffer  # let the smaller buffer go before the larger one comes
            self._buffers[purpose, dtype] = torch.zeros(size, dtype=dtype, device=self.device)
        return self._buffers[purpose, dtype][:size]


def fbgemm_bags(tables: Sequence[TableSpec], weights: Tensor, states: Tensor, learning_rate: float) -> nn.Module:
    """FBGEMM's fused op over the tables, laid in flat weights and row states where it lets us (on CPU)."""
    on_cpu = weights.device.type == "cpu"
    location = EmbeddingLocation.HOST if on_cpu else EmbeddingLocation.DEVICE
    where = ComputeDevice.CPU if on_cpu else ComputeDevice.CUDA
    buffers = {"weights": weights, "momentum1": states} if on_cpu else None
    return SplitTableBatchedEmbeddingBagsCodegen(
        [(table.rows, table.dim, location, where) for table in tables],
        optimizer=EmbOptimType.EXACT_ROWWISE_ADAGRAD,
        learning_rate=learning_rate,
        eps=EPSILON,
        weights_precision=SparseType.FP32 if weights.dtype == torch.float32 else SparseType.FP16,
        device=weights.device,
        preallocated_host_buffers=buffers,
    )


class TorchBags(nn.Module):
    """The same op on torch alone: one embedding_bag per table, row-wise Adagrad in the backward."""

    def __init__(self, tables: Sequence[TableSpec], weights: Tensor, states: Tensor, learning_rate: float) -> None:
        super().__init__()
        self.learning_rate = learning_rate
        self.tables = list(tables)
        self.flat: Tensor
        self.row_states: Tensor
        self.register_buffer("flat", weights)
        self.register_buffer("row_states", states)
        # The backward reads this to run at all: the weights themselves carry no gradient.
        self.anchor = nn.Parameter(torch.zeros((), device=weights.device))

    def split_embedding_weights(self) -> list[Tensor]:
        """Each table's weights (rows, dim), views of the flat ones."""
        parts = self.flat.split([table.rows * table.dim for table in self.tables])
        return [part.view(table.rows, table.dim) for part, table in zip(parts, self.tables)]

    def split_states(self) -> list[Tensor]:
        """Each table's Adagrad states (rows,), views of the flat ones."""
        return list(self.row_states.split([table.rows for table in self.tables]))

    def forward(self, indices: Tensor, offsets: Tensor) -> Tensor:
        """As `TableBatchedBags.forward`."""
        return _FusedRowwiseAdagrad.apply(self.anchor, self, indices, offsets)


class _FusedRowwiseAdagrad(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, anchor: Tensor, bags: TorchBags, indices: Tensor, offsets: Tensor) -> Tensor:
        ctx.bags = bags
        ctx.save_for_backward(indices, offsets)
        pooled = [
            F.embedding_bag(ids, weight.float() if weight.dtype != torch.float32 else weight, starts, mode="sum")
            for weight, (ids, starts) in zip(bags.split_embedding_weights(), _per_table(indices, offsets, bags))
        ]
        return torch.cat(pooled, dim=1)  # (B, sum of dims)

    @staticmethod
    def backward(ctx: Any, grad: Tensor) -> tuple[Tensor, None, None, None]:
        indices, offsets = ctx.saved_tensors
        bags: TorchBags = ctx.bags
        grads = grad.split([table.dim for table in bags.tables], dim=1)
        weights, states = bags.split_embedding_weights(), bags.split_states()
        for weight, state, table_grad, (ids, starts) in zip(weights, states, grads, _per_table(indices, offsets, bags)):
            ends = torch.cat([starts[1:], starts.new_tensor([len(ids)])])
            bag_of_id = torch.repeat_interleave(torch.arange(len(starts), device=ids.device), ends - starts)
            rows, row_of_id = torch.unique(ids, return_inverse=True)
            row_grad = table_grad.new_zeros(len(rows), table_grad.shape[1]).index_add_(
                0, row_of_id, table_grad[bag_of_id]
            )  # (unique rows, dim)
            state[rows] += row_grad.square().mean(dim=1)
            step = bags.learning_rate / (state[rows].sqrt() + EPSILON)
            weight[rows] = (weight[rows].float() - step[:, None] * row_grad).to(weight.dtype)
        return grad.new_zeros(()), None, None, None


def _per_table(indices: Tensor, offsets: Tensor, bags: TorchBags) -> list[tuple[Tensor, Tensor]]:
    """Each table's ids (n,) and bag starts (B,) counted from its own first id."""
    tables = len(bags.tables)
    batch = (len(offsets) - 1) // tables
    edges = offsets[:: max(batch, 1)].tolist()[: tables + 1]
    starts = offsets[:-1].view(tables, batch)  # (tables, B)
    return [(indices[begin:end], starts[t] - begin) for t, (begin, end) in enumerate(pairwise(edges))]
