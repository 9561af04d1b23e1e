"""The look-up as one operator of a graph: what torch.compile, torch.export, torch.func and AOT see of it.

`shardgym::tt_bags` takes weights, buffers and raw bags as tensors, and all else about the tables in a string, so that
an exported program stands for itself (importing this module registers the operator). It checks
the values of its inputs when it runs.
"""

import functools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Protocol

import torch
from torch import Tensor

from shardgym.embeddings.kernels.bags import Bags, join_bags, table_bags
from shardgym.embeddings.kernels.tt_reference import TTTable, three_cores
from shardgym.embeddings.tables.bag_inputs import check_ids, check_values, drop_padding, mean_weights
from shardgym.embeddings.tensor_train.lookup import hot_gradient, own_gradients, pick_kernel
from shardgym.problem.errors import InputError

FIELD, TABLE = "\x1f", "\x1e"
"""What separates the fields of a layout's text, and the texts of several tables: no name holds these."""


@dataclass(frozen=True)
class Layout:
    """What the operator knows of one table beside its tensors.

    Its tensors stand in this order: `cores` cores, then, where there is a cache, its rows, keys and slots, then the row
    order where there is one. `padding_idx` is -1 for none.
    """

    rows: int
    dim: int
    cores: int
    padding_idx: int
    cached: int
    ordered: int
    mode: str
    kernel: str
    name: str

    @property
    def tensors(self) -> int:
        """How many tensors the table has."""
        return self.cores + 3 * self.cached + self.ordered

    def text(self) -> str:
        """As the operator takes it; `read_layouts` reads it."""
        numbers = (self.rows, self.dim, self.cores, self.padding_idx, self.cached, self.ordered)
        return FIELD.join([*[str(number) for number in numbers], self.mode, self.kernel, self.name])


@functools.lru_cache(maxsize=256)
def read_layouts(text: str) -> list[Layout]:
    """The layouts of all tables."""
    layouts = []
    for part in text.split(TABLE):
        rows, dim, cores, padding, cached, ordered, mode, kernel, name = part.split(FIELD)
        numbers = (int(rows), int(dim), int(cores), int(padding), int(cached), int(ordered))
        layouts.append(Layout(*numbers, mode, kernel, name))
    return layouts


class TracedTable(Protocol):
    """What the operator asks of a table module, a `TTEmbeddingBag`."""

    name: str
    num_embeddings: int
    embedding_dim: int
    mode: str
    padding_idx: int | None
    row_order: Tensor | None
    cores: Any
    cache: Any


def is_traced(tensor: Tensor) -> bool:
    """Whether a graph is being recorded, or a function transformed, rather than numbers computed."""
    return (
        torch.compiler.is_compiling()
        or torch._C._len_torch_dispatch_stack() > 0
        or torch._C._functorch.peek_interpreter_stack() is not None
        or type(tensor) is not Tensor
    )


def traced_lookup(tables: Sequence[TracedTable], bags: Bags, kernel: str) -> Tensor:
    """Pooled rows of every table side by side, (batch, sum of dims), as one operator of the graph.

    Args:
        tables: T tables, of modes "sum" and "mean".
        bags: table-major, T * batch bags whose values were not looked at yet.
        kernel: "auto", "compiled" or "torch".
    """
    tensors: list[Tensor] = []
    layouts = []
    for k, table in enumerate(tables):
        if table.mode != "sum" and bags.weights is not None:
            raise InputError(f"{table.name}: per_sample_weights: only mode 'sum' takes them; leave them out or sum")
        cached = table.cache is not None and table.cache.used > 0
        own = [*table.cores]
        own += [table.cache.rows, table.cache.keys, table.cache.slots] if cached else []
        own += [] if table.row_order is None else [table.row_order]
        tensors += own
        name = f"table {k}" if table.name == "table" and len(tables) > 1 else table.name
        padding = -1 if table.padding_idx is None else table.padding_idx
        layout = Layout(table.num_embeddings, table.embedding_dim, len(table.cores), padding, int(cached),
                        int(table.row_order is not None), table.mode, kernel, name)  # fmt: skip
        layouts.append(layout.text())
    text = TABLE.join(layouts)
    if not torch.compiler.is_compiling() and torch._C._functorch.peek_interpreter_stack() is not None:
        return _FunctionalLookup.apply(text, bags.indices, bags.offsets, bags.weights, *tensors)
    return tt_bags(tensors, bags.indices, bags.offsets, bags.weights, text)


def _split(layouts: Sequence[Layout], tensors: Sequence[Tensor]) -> list[list[Tensor]]:
    """Each table's own tensors."""
    parts, start = [], 0
    for layout in layouts:
        parts.append(list(tensors[start : start + layout.tensors]))
        start += layout.tensors
    return parts


def _view(layout: Layout, own: Sequence[Tensor]) -> TTTable:
    """The table in the form that kernels take."""
    dtype = torch.float64 if own[0].dtype == torch.float64 else torch.float32
    first, second, third = three_cores([core.detach().to(dtype) for core in own[: layout.cores]])
    cores = (first.contiguous(), second.contiguous(), third.contiguous())
    if not layout.cached:
        return TTTable(cores, layout.dim)
    rows, keys, slots = own[layout.cores : layout.cores + 3]
    return TTTable(cores, layout.dim, rows.detach().to(dtype), keys, slots)


@dataclass(frozen=True)
class _Prepared:
    """Bags at the kernels' positions, and which look-ups they come from, None where those are all."""

    bags: Bags
    kept: Tensor | None


def _prepare(layouts: Sequence[Layout], parts: Sequence[Sequence[Tensor]], bags: Bags) -> _Prepared:
    check_values(bags)
    prepared, kept = [], []
    for layout, own, part in zip(layouts, parts, table_bags(bags, len(layouts))):
        check_ids(part.indices, layout.rows, layout.name)
        keep = torch.ones_like(part.indices, dtype=torch.bool)
        if layout.padding_idx >= 0:
            keep = part.indices != layout.padding_idx
            part = drop_padding(part, layout.padding_idx)
        if layout.mode == "mean":
            part = mean_weights(part, torch.float64 if own[0].dtype == torch.float64 else torch.float32)
        if layout.ordered:
            part = Bags(own[-1][part.indices].long(), part.offsets, part.weights)
        prepared.append(part)
        kept.append(keep)
    whole = torch.cat(kept)
    return _Prepared(join_bags(prepared), None if bool(whole.all()) else whole)


@torch.library.custom_op("shardgym::tt_bags", mutates_args=())
def tt_bags(tensors: list[Tensor], indices: Tensor, offsets: Tensor, weights: Tensor | None, layout: str) -> Tensor:
    """Pooled rows (batch, sum of dims) of tensor-train tables.

    Args:
        tensors: of all tables, as `Layout` orders them.
        indices: (L,) int64 ids, table-major.
        offsets: (T * batch + 1,) int64.
        weights: (L,) or None.
        layout: the texts of the tables' `Layout`s.

    Raises:
        InputError: for ids outside a table, malformed offsets and weights that are not finite.
    """
    layouts = read_layouts(layout)
    parts = _split(layouts, tensors)
    views = [_view(*pair) for pair in zip(layouts, parts)]
    prepared = _prepare(layouts, parts, Bags(indices, offsets, weights))
    pooled, _ = pick_kernel(layouts[0].kernel, views).forward(views, prepared.bags)
    return pooled.to(tensors[0].dtype)


@tt_bags.register_fake
def _(tensors: list[Tensor], indices: Tensor, offsets: Tensor, weights: Tensor | None, layout: str) -> Tensor:
    layouts = read_layouts(layout)
    batch = (offsets.shape[0] - 1) // len(layouts)
    return tensors[0].new_empty(batch, sum(each.dim for each in layouts))


@contextmanager
def _autograd_inside_an_operator() -> Iterator[None]:
    """Operators run below autograd; the plain kernels differentiate by it."""
    below = torch._C._dispatch_tls_local_exclude_set()
    for key in (
        torch._C.DispatchKey.AutogradCPU,
        torch._C.DispatchKey.AutogradCUDA,
        torch._C.DispatchKey.ADInplaceOrView,
    ):
        below = below.remove(key)
    with torch._C._ForceDispatchKeyGuard(torch._C._dispatch_tls_local_include_set(), below):
        yield


@torch.library.custom_op("shardgym::tt_bags_backward", mutates_args=())
def tt_bags_backward(
    grad: Tensor, tensors: list[Tensor], indices: Tensor, offsets: Tensor, weights: Tensor | None, layout: str
) -> list[Tensor]:
    """Gradients of the cores and hot rows of every table, in their order, and last of the weights where given.

    The plan of the batch is made again: nothing of the forward is kept in the graph.
    """
    layouts = read_layouts(layout)
    parts = _split(layouts, tensors)
    views = [_view(*pair) for pair in zip(layouts, parts)]
    prepared = _prepare(layouts, parts, Bags(indices, offsets, weights))
    bags = prepared.bags
    if weights is not None and bags.weights is not None:
        bags = Bags(bags.indices, bags.offsets, bags.weights.detach().requires_grad_())
    kernel = pick_kernel(layouts[0].kernel, views)
    dtype = views[0].cores[0].dtype
    given: list[Tensor] = []
    with _autograd_inside_an_operator():
        _, saved = kernel.forward(views, bags)
        found, weight_grad = kernel.backward(views, bags, saved, grad.detach().to(dtype), weights is not None)
        for each, own, gradients in zip(layouts, parts, found):
            given += own_gradients(own[: each.cores], gradients)
            if each.cached:
                rows = hot_gradient(own[each.cores], gradients)
                given.append(torch.zeros_like(own[each.cores]) if rows is None else rows)
    if weights is not None:
        assert weight_grad is not None
        whole = weight_grad.to(weights.dtype)
        if prepared.kept is not None:
            whole = torch.zeros_like(weights).masked_scatter_(prepared.kept, whole)
        given.append(whole)
    return given


@tt_bags_backward.register_fake
def _(
    grad: Tensor, tensors: list[Tensor], indices: Tensor, offsets: Tensor, weights: Tensor | None, layout: str
) -> list[Tensor]:
    layouts = read_layouts(layout)
    given = []
    for each, own in zip(layouts, _split(layouts, tensors)):
        given += [torch.empty_like(tensor) for tensor in own[: each.cores + each.cached]]
    return given if weights is None else [*given, torch.empty_like(weights)]


def _keep_inputs(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
    tensors, indices, offsets, weights, ctx.layout = inputs
    ctx.weighted = weights is not None
    ctx.save_for_backward(*tensors, indices, offsets, *([weights] if ctx.weighted else []))


def _differentiate(
    ctx: Any, grad: Tensor, backward: Callable[..., Sequence[Tensor]] = tt_bags_backward
) -> tuple[Any, ...]:
    saved = list(ctx.saved_tensors)
    weights = saved.pop() if ctx.weighted else None
    *tensors, indices, offsets = saved
    found = list(backward(grad.contiguous(), tensors, indices, offsets, weights, ctx.layout))
    weight_grad = found.pop() if ctx.weighted else None
    layouts = read_layouts(ctx.layout)
    given: list[Tensor | None] = []
    for each in layouts:
        own = each.cores + each.cached
        given += [*found[:own], *[None] * (each.tensors - own)]
        found = found[own:]
    return given, None, None, weight_grad, None


tt_bags.register_autograd(_differentiate, setup_context=_keep_inputs)


class _FunctionalLookup(torch.autograd.Function):
    """The operator as torch.func's transforms take it (they do not look inside registered operators)."""

    @staticmethod
    def forward(layout: str, indices: Tensor, offsets: Tensor, weights: Tensor | None, *tensors: Tensor) -> Tensor:
        return tt_bags(list(tensors), indices, offsets, weights, layout)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        layout, indices, offsets, weights, *tensors = inputs
        _keep_inputs(ctx, (tensors, indices, offsets, weights, layout), output)

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        given, _, _, weight_grad, _ = _differentiate(ctx, grads[0], _FunctionalGradients.apply)
        return None, None, None, weight_grad, *given


class _FunctionalGradients(torch.autograd.Function):
    """The gradients' operator for torch.func's transforms; it has no gradient itself."""

    @staticmethod
    def forward(
        grad: Tensor, tensors: list[Tensor], indices: Tensor, offsets: Tensor, weights: Tensor | None, layout: str
    ) -> tuple[Tensor, ...]:
        return tuple(tt_bags_backward(grad, tensors, indices, offsets, weights, layout))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        pass

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        raise RuntimeError("a tensor-train look-up has first-order gradients only")
