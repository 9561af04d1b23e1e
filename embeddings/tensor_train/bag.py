"""TTEmbeddingBag: an embedding table as tensor-train cores (TT-Rec, arXiv 2101.11714), used like nn.EmbeddingBag."""

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.kernels.tt_reference import TTTable, three_cores, tt_rows, visit_key
from shardgym.embeddings.tables.bag_table import BagTable
from shardgym.embeddings.tables.fused_optimizers import FusedOptimizer
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule, CacheStats, HotRows
from shardgym.embeddings.tensor_train.init import init_cores
from shardgym.embeddings.tensor_train.lookup import lookup
from shardgym.embeddings.tensor_train.row_order import check_order
from shardgym.embeddings.tensor_train.shapes import choose_dim_shape, choose_format, choose_row_shape
from shardgym.embeddings.tensor_train.svd import tt_svd
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TensorTrainFormat


@public("shardgym.embeddings")
class TTEmbeddingBag(BagTable):
    """Bags of rows of a tensor-train table: call it with (indices, offsets, per_sample_weights), as nn.EmbeddingBag.

    Same inputs give the same outputs and gradients, bit by bit, at an unchanged number of threads.

    Args:
        num_embeddings, embedding_dim: rows N and numbers a row D of the table.
        ranks: inner ranks, one number for all, or one fewer than the cores.
        row_shape, dim_shape: factors p (product >= N) and q (product >= D); chosen by `choose_format` where left out.
        mode, include_last_offset, padding_idx: as of `BagTable`.
        optimizer: `SGD`, `Adagrad` or `RowwiseAdagrad` of `fused_optimizers`, run inside backward; None leaves dense
            gradients in `.grad` for an ordinary optimizer.
        cache_rows: rows kept uncompressed at most (see `hot_rows`).
        cache_schedule: when a table in training fills its cache; None leaves that to `cache_populate`.
        row_order: (N,) a position for each id (see `row_order`); ids stay the caller's own.
        init: "sampled_gaussian" or "gaussian" (see `tt_init`).
        init_std: of the reconstructed entries; 1 / sqrt(3 N) where left out, as U(-1/sqrt(N), 1/sqrt(N)) has.
        generator: of the first values.
        kernel: "auto", "compiled" or "torch".

    Shapes and errors are those of `BagTable`.
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
        super().__init__(num_embeddings, embedding_dim, mode, include_last_offset, padding_idx)
        self.format = _resolve_format(num_embeddings, embedding_dim, ranks, row_shape, dim_shape, cache_rows)
        self.kernel = kernel
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

    def prepare(self, bags: Bags) -> Bags:
        """As `BagTable.prepare`, with positions for ids, and the cache's count of them."""
        bags = super().prepare(bags)
        bags = Bags(self.positions(bags.indices), bags.offsets, bags.weights)
        if self.cache is not None and self.training:
            self._run_cache(bags.indices)
        return bags

    def pool(self, bags: Bags) -> Tensor:
        """Weighted sums of the rows at prepared positions."""
        return lookup([self], bags, self.kernel)

    @property
    def compute_dtype(self) -> torch.dtype:
        """float64 for float64 cores, else float32."""
        return torch.float64 if self.cores[0].dtype == torch.float64 else torch.float32

    def positions(self, ids: Tensor) -> Tensor:
        """Where ids (n,) are held, (n,) int64."""
        return ids if self.row_order is None else self.row_order[ids].long()

    def _run_cache(self, positions: Tensor) -> None:
        assert self.cache is not None
        self.cache.steps += 1
        schedule = self.cache_schedule or CacheSchedule()
        # While the cache is empty every step is tracked; then one in so many is enough to follow drift.
        if not self.cache.used or schedule.tracks(self.cache.steps):
            self.cache.observe(positions)
        if self.cache_schedule is not None and schedule.fills(self.cache.steps):
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
        first, second, third = three_cores([core.detach().to(self.compute_dtype) for core in self.cores])
        return first.contiguous(), second.contiguous(), third.contiguous()

    @torch.no_grad()
    def _train_rows(self, positions: Tensor) -> Tensor:
        return tt_rows(self._three_cores(), positions, self.embedding_dim)

    def weights(self) -> list[Tensor]:
        """The cores, then the hot rows where there is a cache."""
        return [*self.cores, *([] if self.cache is None else [self.cache.rows])]

    def kernel_table(self) -> TTTable:
        """The table in the form that kernels take."""
        cores = self._three_cores()
        if self.cache is None or not self.cache.used:
            return TTTable(cores, self.embedding_dim)
        hot = self.cache.rows.detach().to(cores[0].dtype)
        return TTTable(cores, self.embedding_dim, hot, self.cache.keys, self.cache.slots)

    def takes_fused_steps(self) -> bool:
        """Whether backward runs the optimizer: there is one, and the cores are not frozen."""
        return self.optimizer is not None and self.cores[0].requires_grad

    @torch.no_grad()
    def step(self, core_gradients: Sequence[Tensor], hot_slots: Tensor | None, hot_grad: Tensor | None) -> None:
        """One fused optimizer step on the cores and on the hot rows `hot_slots` (n,), in place."""
        assert self.optimizer is not None
        for k, (core, grad) in enumerate(zip(self.cores, core_gradients)):
            self.optimizer.update(core, getattr(self, f"core_state_{k}"), grad)
        if self.cache is not None and hot_slots is not None and hot_grad is not None:
            self.optimizer.update_rows(self.cache.rows, self.cache.state, hot_slots, hot_grad)

    def _single(self, ids: Tensor) -> Bags:
        return super()._single(self.positions(ids))

    @property
    def compression_ratio(self) -> float:
        """Numbers of the dense table over the numbers trained here: cores, padding included, and cached rows."""
        held = self.format.parameters() + self.format.cached_rows * self.embedding_dim
        return self.num_embeddings * self.embedding_dim / held

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


def _index_loaded_cache(table: nn.Module, keys: Any) -> None:
    del keys  # torch's list of keys that did not fit
    if isinstance(table, TTEmbeddingBag) and table.cache is not None:
        table.cache.index(table._keys_of)
