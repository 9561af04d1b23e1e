"""TTEmbeddingBag: an embedding table as tensor-train cores (TT-Rec, arXiv 2101.11714), used like nn.EmbeddingBag."""

import logging
import math
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.kernels.tt_reference import TTTable
from shardgym.embeddings.tables.bag_inputs import arrange_bags
from shardgym.embeddings.tables.fused_optimizers import FusedOptimizer
from shardgym.embeddings.tensor_train import ops
from shardgym.embeddings.tensor_train.cached_table import CachedTable
from shardgym.embeddings.tensor_train.checkpoint import adapt_to_table
from shardgym.embeddings.tensor_train.fused_step import fused_step
from shardgym.embeddings.tensor_train.hot_rows import CacheSchedule, HotRows
from shardgym.embeddings.tensor_train.init import init_cores
from shardgym.embeddings.tensor_train.lookup import lookup
from shardgym.embeddings.tensor_train.replicas import active_replicas
from shardgym.embeddings.tensor_train.row_order import check_order
from shardgym.embeddings.tensor_train.shapes import cap_ranks, choose_dim_shape, choose_format, choose_row_shape
from shardgym.embeddings.tensor_train.svd import fit_cores
from shardgym.problem.errors import InputError
from shardgym.problem.faces import public
from shardgym.problem.tables import TensorTrainFormat

log = logging.getLogger(__name__)


@public("shardgym.embeddings")
class TTEmbeddingBag(CachedTable):
    """Bags of rows of a tensor-train table: call it with (indices, offsets, per_sample_weights), as nn.EmbeddingBag.

    Same inputs give the same outputs and gradients, bit by bit, at an unchanged number of threads. Gradients are of the
    first order only. Under torch.compile and torch.export a look-up is one operator of the graph; with a fused
    optimizer, or a cache in training, it runs between graphs.

    Under DistributedDataParallel fused steps average their gradients over the processes themselves, and cache fills
    choose rows by the counts of all; give DDP `find_unused_parameters=True` with fused steps: it sees no gradient then.

    Args:
        num_embeddings, embedding_dim: rows N and numbers per row D of the table.
        ranks: inner ranks, one number for all, or one fewer than the cores; cut to what the shapes can use.
        row_shape, dim_shape: factors p (product >= N) and q (product >= D); chosen by `choose_format` where left out.
        mode: "sum", "mean" or "max".
        include_last_offset, padding_idx: as of `BagTable`.
        optimizer: `SGD`, `Adagrad`, `RowwiseAdagrad` or `Adam` of this package, run inside backward; None leaves dense
            gradients in `.grad` for an ordinary optimizer. Its weight decay acts on the rows.
        cache_rows: rows kept uncompressed at most (see `hot_rows`).
        cache_schedule: when a table in training fills its cache; None leaves that to `cache_populate`.
        row_order: (N,) a position for each id (see `row_order`); ids stay the caller's own.
        init: "sampled_gaussian" or "gaussian" (see `init`).
        init_std: of the reconstructed entries; 1 / sqrt(3 N) where left out, as U(-1/sqrt(N), 1/sqrt(N)) has.
        generator: of the first values.
        dtype, device: torch's defaults where left out; "meta" holds shapes alone until `reset_parameters`.
        kernel: "auto", "compiled" or "torch".
        name: what errors call the table.

    Shapes are those of `BagTable`.

    Raises:
        InputError: as `BagTable`; for shapes that do not reach the table, and a cache_schedule without cache_rows.
    """

    modes = ("sum", "mean", "max")
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
        dtype: torch.dtype | None = None,
        device: torch.device | str | None = None,
        kernel: str = "auto",
        name: str = "table",
    ) -> None:
        super().__init__(num_embeddings, embedding_dim, mode, include_last_offset, padding_idx)
        if cache_schedule is not None and not cache_rows:
            raise InputError(f"{name}: cache_schedule is given but cache_rows is 0; give cache_rows of at least 1")
        self.format = _resolve_format(num_embeddings, embedding_dim, ranks, row_shape, dim_shape, cache_rows)
        self.kernel, self.name = kernel, name
        self.optimizer, self.cache_schedule = optimizer, cache_schedule
        self.init = init
        self.init_std = (3 * num_embeddings) ** -0.5 if init_std is None else init_std
        dtype = torch.get_default_dtype() if dtype is None else dtype
        device = torch.get_default_device() if device is None else torch.device(device)
        shapes = self.format.core_shapes()
        self.cores = nn.ParameterList(nn.Parameter(torch.empty(s, dtype=dtype, device=device)) for s in shapes)
        order = None if row_order is None else check_order(row_order, num_embeddings).to(device=device)
        if order is not None and num_embeddings < 2**31:
            order = order.to(torch.int32)
        self.register_buffer("row_order", order)
        self._keep_optimizer_state()
        self.cache = HotRows(cache_rows, embedding_dim, optimizer, dtype, device) if cache_rows else None
        self._draw(generator)
        self.replicas = None
        self.register_load_state_dict_post_hook(_index_loaded_cache)
        if self.compression_ratio < 1:
            log.warning(
                "%s: cores of ranks %s take %.1f times the dense %d x %d table; lower the ranks, or keep it dense",
                name, self.format.ranks, 1 / self.compression_ratio, num_embeddings, embedding_dim,
            )  # fmt: skip

    @torch.no_grad()
    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the first values anew; the cache and the optimizer's state become empty."""
        self._draw(generator)
        self._keep_optimizer_state()
        if self.cache is not None:
            self.cache.clear(self.optimizer)

    @torch.no_grad()
    def _draw(self, generator: torch.Generator | None) -> None:
        drawn = init_cores(self.format, self.init_std, self.init, generator)
        for core, values in zip(self.cores, drawn):
            core.copy_(values)

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

        The error is within sqrt(cores - 1) of the best at these ranks, in the Frobenius norm, where nothing is padded;
        a table that is itself a tensor train of these shapes and ranks is recovered, padded or not. The cores' entries
        are of one size, so that a first step of any optimizer moves all of them alike.

        Raises:
            InputError: for a weight that is not 2-D.
        """
        if weight.dim() != 2:
            raise InputError(f"weight: {weight.dim()}-D; give (rows, dim)")
        options.setdefault("dtype", weight.dtype)
        table = cls(weight.shape[0], weight.shape[1], ranks, **options)
        placed = weight.detach()
        if table.row_order is not None:
            placed = torch.empty_like(placed).index_copy_(0, table.row_order.long(), placed)
        with torch.no_grad():
            for core, found in zip(table.cores, fit_cores(placed, table.format)):
                core.copy_(found)
        return table

    def forward(
        self, indices: Tensor, offsets: Tensor | None = None, per_sample_weights: Tensor | None = None
    ) -> Tensor:
        """Pooled rows (bags, D); see the class for shapes and errors."""
        if not ops.is_traced(indices):
            return super().forward(indices, offsets, per_sample_weights)
        if self.runs_between_graphs():
            return self._forward_eagerly(indices, offsets, per_sample_weights)
        bags = arrange_bags(indices, offsets, per_sample_weights, self.include_last_offset)
        return ops.traced_lookup([self], bags, self.kernel)

    @torch.compiler.disable
    def _forward_eagerly(self, indices: Tensor, offsets: Tensor | None, per_sample_weights: Tensor | None) -> Tensor:
        return super().forward(indices, offsets, per_sample_weights)

    def runs_between_graphs(self) -> bool:
        """Whether a look-up does more than compute: steps in backward, counts for the cache, or takes maxima."""
        if self.mode == "max":
            return True
        if not torch.is_grad_enabled() or torch.compiler.is_exporting():
            return False
        return self.takes_fused_steps() or (self.cache is not None and self.training)

    def prepare(self, bags: Bags) -> Bags:
        """As `BagTable.prepare`, with positions for ids, and the cache's count of them."""
        bags = super().prepare(bags)
        bags = Bags(self.positions(bags.indices), bags.offsets, bags.weights)
        if self.cache is not None and self.training and torch.is_grad_enabled():
            self.run_cache(bags.indices)
        return bags

    def pool(self, bags: Bags) -> Tensor:
        """Weighted sums, or maxima, of the rows at prepared positions."""
        self.replicas = active_replicas() or self.replicas
        return self._pool_maxima(bags) if self.mode == "max" else lookup([self], bags, self.kernel)

    def _pool_maxima(self, bags: Bags) -> Tensor:
        distinct, place = torch.unique(bags.indices, return_inverse=True)
        rows = lookup([self], self._single(distinct), self.kernel)[place]  # (L, D)
        lengths = bags.lengths()
        if not rows.shape[0]:
            return rows.new_zeros(lengths.numel(), self.embedding_dim)
        maxima = torch.segment_reduce(rows[:, :], "max", lengths=lengths[lengths > 0], axis=0)
        return maxima.new_zeros(lengths.numel(), self.embedding_dim).index_put((lengths > 0,), maxima)

    def positions(self, ids: Tensor) -> Tensor:
        """Where ids (n,) are held, (n,) int64."""
        return ids if self.row_order is None else self.row_order[ids].long()

    def weights(self) -> list[Tensor]:
        """The cores, then the hot rows where there is a cache."""
        return [*self.core_list(), *([] if self.cache is None else [self.cache.rows])]

    def kernel_table(self) -> TTTable:
        """The table in the form that kernels take."""
        cores = self.three_cores()
        if self.cache is None or not self.cache.used:
            return TTTable(cores, self.embedding_dim)
        hot = self.cache.rows.detach().to(cores[0].dtype)
        return TTTable(cores, self.embedding_dim, hot, self.cache.keys, self.cache.slots)

    def takes_fused_steps(self) -> bool:
        """Whether backward runs the optimizer: there is one, and not all weights are frozen."""
        return self.optimizer is not None and any(weight.requires_grad for weight in self.weights())

    def step(self, core_gradients: Sequence[Tensor], hot_slots: Tensor | None, hot_grad: Tensor | None) -> None:
        """One fused optimizer step (see `fused_step`)."""
        fused_step(self, core_gradients, hot_slots, hot_grad)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> "TTEmbeddingBag":
        """As of nn.Module; the optimizer's state keeps its own precision when the weights change theirs."""
        states: list[tuple[nn.Module, str]] = [(self, f"core_state_{k}") for k in range(len(self.cores))]
        states += [] if self.cache is None else [(self.cache, "state")]
        before = [(owner, name, getattr(owner, name)) for owner, name in states if getattr(owner, name) is not None]
        super()._apply(fn, recurse)
        for owner, name, state in before:
            after = getattr(owner, name)
            if after.dtype != state.dtype and not (after.dtype == torch.float64 or state.dtype == torch.float64):
                setattr(owner, name, (after if state.is_meta else state).to(dtype=state.dtype, device=after.device))
        return self

    def _load_from_state_dict(self, state_dict: dict[str, Any], prefix: str, *rest: Any) -> None:
        adapt_to_table(state_dict, prefix, self)
        super()._load_from_state_dict(state_dict, prefix, *rest)

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
    form = cap_ranks(TensorTrainFormat(inner, p, q, cached_rows))
    if rows < 1 or dim < 1 or math.prod(p) < rows or math.prod(q) < dim:
        raise InputError(f"tensor_train: row_shape {p} and dim_shape {q} do not reach rows {rows} and dim {dim}")
    return form


def _index_loaded_cache(table: nn.Module, keys: Any) -> None:
    del keys  # torch's list of keys that did not fit
    if isinstance(table, TTEmbeddingBag) and table.cache is not None:
        table.cache.index(table.keys_of)
