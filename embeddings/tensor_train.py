"""TTEmbeddingBag: an embedding table as tensor-train cores (TT-Rec, arXiv 2101.11714), used like nn.EmbeddingBag."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.bag_inputs import Bags, check_ids, drop_padding, mean_weights, read_bags
from shardgym.embeddings.errors import InputError
from shardgym.embeddings.fused_optimizers import FusedOptimizer
from shardgym.embeddings.hot_rows import CacheSchedule, CacheStats, HotRows
from shardgym.embeddings.kernels.tt_reference import TrainTable, three_cores, train_rows, visit_key
from shardgym.embeddings.row_order import check_order
from shardgym.embeddings.tables import TensorTrainFormat
from shardgym.embeddings.tt_init import init_cores
from shardgym.embeddings.tt_lookup import lookup
from shardgym.embeddings.tt_shapes import choose_dim_shape, choose_format, choose_row_shape
from shardgym.embeddings.tt_svd import tt_svd

MODES = ("sum", "mean")
ROWS_AT_ONCE = 65536
"""Rows that `to_dense` rebuilds in one piece, to bound its memory."""


class TTEmbeddingBag(nn.Module):
    """Bags of rows of a tensor-train table: call it with (indices, offsets, per_sample_weights), as nn.EmbeddingBag.

    Same inputs give the same outputs and gradients, bit by bit, at an unchanged number of threads.

    Args:
        num_embeddings, embedding_dim: rows N and numbers a row D of the table.
        ranks: inner ranks, one number for all, or one fewer than the cores.
        row_shape, dim_shape: factors p (product >= N) and q (product >= D); chosen by `choose_format` where left out.
        mode: "sum" or "mean" of a bag; an empty bag gives zeros.
        include_last_offset: offsets are (bags + 1,), the last being the number of indices.
        padding_idx: an id whose look-ups count for nothing.
        optimizer: `SGD`, `Adagrad` or `RowwiseAdagrad` of `fused_optimizers`, run inside backward; None leaves dense
            gradients in `.grad` for an ordinary optimizer.
        cache_rows: rows kept uncompressed at most (see `hot_rows`).
        cache_schedule: when a table in training fills its cache; None leaves it to `cache_populate`.
        row_order: (N,) a position for each id (see `row_order`); ids stay the caller's own.
        init: "sampled_gaussian" or "gaussian" (see `tt_init`).
        init_std: of the reconstructed entries; 1 / sqrt(3 N) where left out, as U(-1/sqrt(N), 1/sqrt(N)) has.
        generator: of the first values.
        kernel: "auto", "compiled" or "torch".

    Shape:
        indices (L,) with offsets (bags,) or (bags + 1,), or indices (bags, n); int32 or int64. Output (bags, D).

    Raises:
        InputError: in construction for arguments that do not fit; in a call for ids outside the table, malformed
            offsets and weights that are not finite, before anything is changed.
    """

    row_order: Tensor | None

    def __init__(
        self,
        num_embeddings: int,
        embedding_dim: int,
        ranks: int | Sequence[int],
        row_shape: Sequence[int] | None = None,
        dim_shape: Sequence[int] | None = None,
        mode: str = "sum",
        include_last_offset: bool = False,
        padding_idx: int | None = None,
        optimizer: FusedOptimizer | None = None,
        cache_rows: int = 0,
        cache_schedule: CacheSchedule | None = None,
        row_order: Tensor | None = None,
        init: str = "sampled_gaussian",
        init_std: float | None = None,
        generator: torch.Generator | None = None,
        dtype: torch.dtype = torch.float32,
        device: torch.device | str | None = None,
        kernel: str = "auto",
    ) -> None:
        super().__init__()
        self.num_embeddings, self.embedding_dim = num_embeddings, embedding_dim
        self.format = _resolve_format(num_embeddings, embedding_dim, ranks, row_shape, dim_shape, cache_rows)
        if mode not in MODES:
            raise InputError(f"mode: {mode!r} is unknown; give 'sum' or 'mean'")
        if padding_idx is not None and not -num_embeddings <= padding_idx < num_embeddings:
            raise InputError(f"padding_idx: {padding_idx} is outside the {num_embeddings} rows; give one of the ids")
        self.mode, self.include_last_offset, self.kernel = mode, include_last_offset, kernel
        self.padding_idx = None if padding_idx is None else padding_idx % num_embeddings
        self.optimizer, self.cache_schedule = optimizer, cache_schedule
        std = (3 * num_embeddings) ** -0.5 if init_std is None else init_std
        cores = init_cores(self.format, std, init, generator)
        self.cores = nn.ParameterList([nn.Parameter(core.to(dtype=dtype, device=device)) for core in cores])
        order = None if row_order is None else check_order(row_order, num_embeddings).to(device=device)
        if order is not None and num_embeddings < 2**31:
            order = order.to(torch.int32)
        self.register_buffer("row_order", order)
        self._keep_optimizer_state()
        self.cache = HotRows(cache_rows, embedding_dim, optimizer, dtype, device) if cache_rows else None
        self.register_load_state_dict_post_hook(_index_loaded_cache)

    def _keep_optimizer_state(self) -> None:
        for k, core in enumerate(self.cores):
            state = None if self.optimizer is None else self.optimizer.new_state(core.detach())
            self.register_buffer(f"core_state_{k}", state)

    @classmethod
    def from_format(
        cls, num_embeddings: int, embedding_dim: int, form: TensorTrainFormat, **options: Any
    ) -> "TTEmbeddingBag":
        """A table in a format as `TableSpec.tensor_train` holds it; options as of the class."""
        return cls(
            num_embeddings, embedding_dim, form.ranks, form.row_shape, form.dim_shape,
            cache_rows=form.cached_rows, **options,
        )  # fmt: skip

    @classmethod
    def from_dense(cls, weight: Tensor, ranks: int | Sequence[int], **options: Any) -> "TTEmbeddingBag":
        """The table nearest to `weight` (N, D) that TT-SVD finds (Oseledets, 2011); options as of the class.

        The error is within sqrt(cores - 1) of the best at these ranks, in the Frobenius norm.
        """
        if weight.dim() != 2:
            raise InputError(f"weight: {weight.dim()}-D; give (rows, dim)")
        options.setdefault("dtype", weight.dtype)
        table = cls(weight.shape[0], weight.shape[1], ranks, **options)
        held = weight.detach()
        if table.row_order is not None:
            held = torch.empty_like(held).index_copy_(0, table.row_order.long(), held)
        with torch.no_grad():
            for core, found in zip(table.cores, tt_svd(held, table.format)):
                core.copy_(found)
        return table

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Pooled rows (bags, D); see the class for shapes and errors."""
        bags = read_bags(indices, offsets, per_sample_weights, self.include_last_offset)
        self.check(bags)
        return lookup([self], self.prepare(bags), self.kernel)

    def check(self, bags: Bags) -> None:
        """Raise InputError for ids outside the table, and for weights that the mode does not take."""
        check_ids(bags.indices, self.num_embeddings)
        if self.mode == "mean" and bags.weights is not None:
            raise InputError("per_sample_weights: only mode 'sum' takes them; leave them out or sum")

    def prepare(self, bags: Bags) -> Bags:
        """Checked bags as kernels take them: padding dropped, positions for ids, weights for means, ids tracked."""
        if self.padding_idx is not None:
            bags = drop_padding(bags, self.padding_idx)
        bags = Bags(self.positions(bags.indices), bags.offsets, bags.weights)
        if self.mode == "mean":
            bags = mean_weights(bags, _compute_dtype(self.cores[0].dtype))
        if self.cache is not None and self.training:
            self._run_cache(bags.indices)
        return bags

    def positions(self, ids: Tensor) -> Tensor:
        """Where ids (n,) are held, (n,) int64."""
        return ids if self.row_order is None else self.row_order[ids].long()

    def _run_cache(self, positions: Tensor) -> None:
        assert self.cache is not None
        schedule = self.cache_schedule
        self.cache.steps += 1
        if schedule is None or schedule.tracks(self.cache.steps):
            self.cache.observe(positions)
        if schedule is not None and schedule.fills(self.cache.steps):
            share = 1.0 if self.cache.used else schedule.first_fill
            self.cache_populate(math.ceil(share * self.cache.capacity))

    def cache_populate(self, most: int | None = None) -> int:
        """Move the hottest tracked rows without a slot into free slots of the cache; rows already there stay.

        Args:
            most: rows to admit at most; all free slots where left out.

        Returns:
            The number of rows admitted. Their optimizer state starts fresh.
        """
        if self.cache is None:
            raise InputError("cache_populate: the table has no cache; build it with cache_rows of at least 1")
        free = self.cache.capacity - self.cache.used
        newcomers = self.cache.newcomers(free if most is None else min(most, free))
        if newcomers.numel():
            self.cache.admit(newcomers, self._train_rows(newcomers), self._keys_of)
        return newcomers.numel()

    def cache_stats(self) -> CacheStats:
        """Slots used, slots in all, and the hit rate since the last fill."""
        if self.cache is None:
            return CacheStats(0, 0, 0.0)
        return self.cache.stats()

    def _keys_of(self, positions: Tensor) -> Tensor:
        return visit_key(positions, self._three_cores())

    def _three_cores(self) -> tuple[Tensor, Tensor, Tensor]:
        kind = _compute_dtype(self.cores[0].dtype)
        first, second, third = three_cores([core.detach().to(kind) for core in self.cores])
        return first.contiguous(), second.contiguous(), third.contiguous()

    @torch.no_grad()
    def _train_rows(self, positions: Tensor) -> Tensor:
        return train_rows(self._three_cores(), positions, self.embedding_dim)

    def weights(self) -> list[Tensor]:
        """The cores, then the hot rows where there is a cache."""
        return [*self.cores, *([] if self.cache is None else [self.cache.rows])]

    def kernel_table(self) -> TrainTable:
        """The table in the form that kernels take."""
        cores = self._three_cores()
        if self.cache is None or not self.cache.used:
            return TrainTable(cores, self.embedding_dim)
        hot = self.cache.rows.detach().to(cores[0].dtype)
        return TrainTable(cores, self.embedding_dim, hot, self.cache.keys, self.cache.slots)

    def takes_fused_steps(self) -> bool:
        """Whether backward runs the optimizer."""
        return self.optimizer is not None

    @torch.no_grad()
    def step(self, core_gradients: Sequence[Tensor], hot_slots: Tensor | None, hot_grad: Tensor | None) -> None:
        """One fused optimizer step on the cores and on the hot rows `hot_slots` (n,), in place."""
        assert self.optimizer is not None
        for k, (core, grad) in enumerate(zip(self.cores, core_gradients)):
            self.optimizer.update(core, getattr(self, f"core_state_{k}"), grad)
        if self.cache is not None and hot_slots is not None and hot_grad is not None:
            self.optimizer.update_rows(self.cache.rows, self.cache.state, hot_slots, hot_grad)

    @torch.no_grad()
    def rows(self, ids: Tensor) -> Tensor:
        """Rows of ids (n,) as they stand, cached or not, (n, D)."""
        check_ids(ids, self.num_embeddings)
        positions = self.positions(ids.long())
        starts = torch.arange(positions.numel() + 1, device=positions.device)
        pieces = [
            lookup([self], Bags(part, starts[: part.numel() + 1], None), self.kernel)
            for part in positions.split(ROWS_AT_ONCE)
        ]
        return torch.cat(pieces) if pieces else self.cores[0].new_zeros(0, self.embedding_dim)

    def to_dense(self) -> Tensor:
        """The whole table (N, D), rows in the caller's ids."""
        return self.rows(torch.arange(self.num_embeddings, device=self.cores[0].device))

    @property
    def compression_ratio(self) -> float:
        """Numbers of the dense table over the numbers trained here: cores, padding included, and cached rows."""
        held = self.format.parameters() + self.format.cached_rows * self.embedding_dim
        return self.num_embeddings * self.embedding_dim / held

    def memory_bytes(self) -> int:
        """All bytes held: weights, optimizer state, the cache's ids and index, and the row order."""
        return sum(t.numel() * t.element_size() for t in (*self.parameters(), *self.buffers()))

    def extra_repr(self) -> str:
        form = self.format
        return (
            f"{self.num_embeddings}, {self.embedding_dim}, ranks={form.ranks}, row_shape={form.row_shape}, "
            f"dim_shape={form.dim_shape}, mode={self.mode!r}, compression={self.compression_ratio:.1f}x"
        )


def _resolve_format(
    rows: int, dim: int, ranks: int | Sequence[int], row_shape: Sequence[int] | None, dim_shape: Sequence[int] | None,
    cached_rows: int,
) -> TensorTrainFormat:  # fmt: skip
    given = row_shape or dim_shape
    if given is None:
        return choose_format(rows, dim, ranks, cached_rows=cached_rows)
    inner = (ranks,) * (len(given) - 1) if isinstance(ranks, int) else tuple(ranks)
    q = tuple(dim_shape) if dim_shape else choose_dim_shape(dim, len(given))
    p = tuple(row_shape) if row_shape else choose_row_shape(rows, q, inner)
    form = TensorTrainFormat(inner, p, q, cached_rows)
    if rows < 1 or dim < 1 or math.prod(p) < rows or math.prod(q) < dim:
        raise InputError(f"tensor_train: row_shape {p} and dim_shape {q} do not reach rows {rows} and dim {dim}")
    return form


def _compute_dtype(dtype: torch.dtype) -> torch.dtype:
    return torch.float64 if dtype == torch.float64 else torch.float32


def _index_loaded_cache(table: nn.Module, keys: Any) -> None:
    del keys  # torch's list of keys that did not fit
    if isinstance(table, TTEmbeddingBag) and table.cache is not None:
        table.cache.index(table._keys_of)
