"""The compiled tensor-train look-up (tt_cpu.cpp): float32 and float64 on the CPU. Same contract as tt_reference."""

import ctypes
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.kernels.build import load_c_kernel
from shardgym.embeddings.kernels.tt_reference import TableGradients, TTTable

MOST_ROOM = 32 * 2**20
"""Bytes that a thread keeps between calls for rows, at most."""

_room = threading.local()

SUFFIX = {torch.float32: "float32", torch.float64: "float64"}
_SIZES = ("p1", "p2", "p3", "q1", "q2", "q3", "r1", "r2", "dim", "column", "begin", "end")


class _Table(ctypes.Structure):
    """Mirrors `Table` in tt_cpu.cpp, field by field."""

    _fields_ = [
        *((name, ctypes.c_int64) for name in _SIZES),
        *((name, ctypes.c_void_p) for name in ("g1", "g2", "g3", "hot_rows", "hot_keys", "hot_slots")),
        ("hot_count", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("order", "segment", "factor", "slot")),
        ("distinct", ctypes.c_int64),
        ("hot_distinct", ctypes.c_int64),
        ("rows", ctypes.c_void_p),
        ("summed", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("d1", "d2", "d3", "hot_grad", "hot_used")),
    ]  # fmt: skip


@dataclass(frozen=True)
class _Saved:
    """What forward leaves to backward: the filled tables, and the tensors that own what they point at."""

    tables: Any
    inverse: Tensor
    bag_of: Tensor
    plans: list[Tensor]
    rows: Tensor | None


def runs(tables: Sequence[TTTable]) -> bool:
    """Whether this kernel can take the tables: on the CPU, float32 or float64, and built."""
    cores = [core for table in tables for core in table.cores]
    fits = all(core.device.type == "cpu" and core.dtype == cores[0].dtype for core in cores)
    return fits and cores[0].dtype in SUFFIX and load_c_kernel("tt_cpu") is not None


def _function(name: str, dtype: torch.dtype | None = None) -> Any:
    library = load_c_kernel("tt_cpu")
    assert library is not None
    return getattr(library, name if dtype is None else f"{name}_{SUFFIX[dtype]}")


def _pointer(tensor: Tensor | None) -> ctypes.c_void_p:
    return ctypes.c_void_p(None if tensor is None else tensor.data_ptr())


def _describe(tables: Sequence[TTTable], bounds: Sequence[int]) -> tuple[Any, list[Tensor]]:
    """The C tables with room for their plans, and the tensors that hold those."""
    described = (_Table * len(tables))()
    owners: list[Tensor] = []
    column = 0
    for c, table, begin, end in zip(described, tables, bounds, bounds[1:]):
        (c.p1, _, c.q1, c.r1), (c.p2, _, c.q2, c.r2), (c.p3, _, c.q3, _) = (core.shape for core in table.cores)
        c.dim, c.column, c.begin, c.end = table.dim, column, begin, end
        column += table.dim
        # order, slot: (n,); segment: (n + 1,); factor: (3, n).
        count = end - begin
        plan = torch.empty(6 * count + 1, dtype=torch.int32)
        owners.append(plan)
        start = plan.data_ptr()
        c.order, c.slot, c.factor, c.segment = (start + 4 * skip * count for skip in (0, 1, 2, 5))
        if table.hot_keys is not None:
            c.hot_count = table.hot_keys.numel()
    return described, owners


def _point_at_weights(described: Any, tables: Sequence[TTTable]) -> None:
    for c, table in zip(described, tables):
        c.g1, c.g2, c.g3 = (core.data_ptr() for core in table.cores)
        for name in ("hot_rows", "hot_keys", "hot_slots"):
            tensor = getattr(table, name)
            setattr(c, name, None if tensor is None else tensor.data_ptr())


def _weights(bags: Bags, dtype: torch.dtype) -> Tensor | None:
    return None if bags.weights is None else bags.weights.detach().to(dtype).contiguous()


def _wants_rows(bags: Bags) -> bool:
    """Rows are needed after forward only for the weights' gradient."""
    return bags.weights is not None and bags.weights.requires_grad


def _rows(count: int, dtype: torch.dtype, keep: bool) -> Tensor:
    """Room for `count` numbers; the thread's own room where nobody keeps it, as fresh pages cost a tenth of a step."""
    if keep:
        return torch.empty(count, dtype=dtype)
    room = getattr(_room, "rows", None)
    if room is None or room.numel() * room.element_size() < count * dtype.itemsize:
        room = _room.rows = torch.empty(count * dtype.itemsize, dtype=torch.uint8)
        if room.numel() > MOST_ROOM:
            _room.rows = None
    return room[: count * dtype.itemsize].view(dtype)


def _room_for_rows(described: Any, batch: int, threads: int, dtype: torch.dtype, keep: bool) -> Tensor:
    """Room for every table's rows: one per distinct id, or one sum per bag and chunk of work where those are fewer."""
    chunks = 2 * threads if threads > 1 else 1  # as `chunks_for` in tt_cpu.cpp
    sizes = []
    for c in described:
        c.summed = not keep and chunks * batch <= c.distinct
        sizes.append((chunks * batch if c.summed else c.distinct) * c.dim)
    rows = _rows(sum(sizes), dtype, keep)
    at = rows.data_ptr()
    for c, size in zip(described, sizes):
        c.rows = at
        at += size * dtype.itemsize
    return rows


def forward(tables: Sequence[TTTable], bags: Bags) -> tuple[Tensor, _Saved]:
    """As `tt_reference.forward`."""
    count, dtype = len(tables), tables[0].cores[0].dtype
    batch = (bags.offsets.numel() - 1) // count
    bounds = bags.offsets[::batch].tolist() if batch else [0] * (count + 1)
    described, plans = _describe(tables, bounds)
    _point_at_weights(described, tables)
    indices, offsets, weights = bags.indices.contiguous(), bags.offsets.contiguous(), _weights(bags, dtype)
    inverse = torch.empty(indices.numel(), dtype=torch.int32)
    bag_of = torch.empty(indices.numel(), dtype=torch.int32)
    threads = ctypes.c_int(torch.get_num_threads())
    c_batch = ctypes.c_int64(batch)
    _function("tt_plan")(
        described, count, c_batch, _pointer(indices), _pointer(offsets), _pointer(inverse), _pointer(bag_of), threads
    )
    rows = _room_for_rows(described, batch, torch.get_num_threads(), dtype, keep=_wants_rows(bags))
    out = torch.empty(batch, sum(table.dim for table in tables), dtype=dtype)
    _function("tt_forward", dtype)(
        described, count, c_batch, _pointer(offsets), _pointer(inverse), _pointer(bag_of), _pointer(weights),
        _pointer(out),
        ctypes.c_int64(out.shape[1]), threads,
    )  # fmt: skip
    return out, _Saved(described, inverse, bag_of, plans, rows if _wants_rows(bags) else None)


def backward(
    tables: Sequence[TTTable], bags: Bags, saved: _Saved, grad: Tensor, want_weights: bool
) -> tuple[list[TableGradients], Tensor | None]:
    """As `tt_reference.backward`."""
    dtype, described = tables[0].cores[0].dtype, saved.tables
    grad, weights = grad.contiguous(), _weights(bags, dtype)
    _point_at_weights(described, tables)
    found = [_room_for_gradients(c, table) for c, table in zip(described, tables)]
    threads, row = ctypes.c_int(torch.get_num_threads()), ctypes.c_int64(grad.shape[1])
    count = len(tables)
    _function("tt_backward", dtype)(
        described, count, _pointer(saved.bag_of), _pointer(weights), _pointer(grad), row, threads
    )
    if not want_weights:
        return found, None
    weight_grad = torch.empty(bags.indices.numel(), dtype=dtype)
    _function("tt_weight_gradients", dtype)(
        described, count, _pointer(saved.inverse), _pointer(saved.bag_of), _pointer(grad), row, _pointer(weight_grad),
        threads,
    )  # fmt: skip
    return found, weight_grad


def _room_for_gradients(c: Any, table: TTTable) -> TableGradients:
    first, second, third = table.cores
    cores = (torch.empty_like(first), torch.empty_like(second), torch.empty_like(third))
    c.d1, c.d2, c.d3 = (core.data_ptr() for core in cores)
    if table.hot_rows is None:
        return TableGradients(cores, None, None)
    hot_grad = torch.empty(c.hot_distinct, c.dim, dtype=first.dtype)
    hot_used = torch.empty(c.hot_distinct, dtype=torch.int64)
    c.hot_grad, c.hot_used = hot_grad.data_ptr(), hot_used.data_ptr()
    return TableGradients(cores, hot_used, hot_grad)
