"""The autograd operation under tensor-train bags: kernels below, plain gradients or fused updates above."""

from collections.abc import Sequence
from types import ModuleType
from typing import Any, Protocol

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from shardgym.embeddings.kernels import tt_cpu, tt_reference
from shardgym.embeddings.kernels.bags import Bags
from shardgym.embeddings.kernels.tt_reference import TableGradients, TTTable, three_cores
from shardgym.embeddings.tensor_train.hot_rows import HotRows, OpenLookup
from shardgym.problem.errors import InputError

KERNELS = ("auto", "compiled", "torch")


class Trainable(Protocol):
    """What the operation asks of a table module."""

    cores: Any
    cache: HotRows | None

    def weights(self) -> list[Tensor]:
        """The cores, then the hot rows where there is a cache."""

    def kernel_table(self) -> TTTable:
        """The table in the form that kernels take."""

    def takes_fused_steps(self) -> bool:
        """Whether `step` updates the weights inside backward: there is an optimizer, and not all are frozen."""

    def step(self, core_gradients: Sequence[Tensor], hot_slots: Tensor | None, hot_grad: Tensor | None) -> None:
        """One optimizer step, in place."""


def pick_kernel(name: str, tables: Sequence[TTTable]) -> ModuleType:
    """The module that runs the look-up: compiled on the CPU in float32 and float64, else torch.

    Raises:
        InputError: when "compiled" is asked for and cannot run.
    """
    if name not in KERNELS:
        raise InputError(f"kernel: {name!r} is unknown; give one of {', '.join(KERNELS)}")
    if name == "torch":
        return tt_reference
    if tt_cpu.runs(tables):
        return tt_cpu
    if name == "compiled":
        raise InputError("kernel: 'compiled' needs a C++ compiler, and float32 or float64 on the CPU; give 'auto'")
    return tt_reference


def lookup(tables: Sequence[Trainable], bags: Bags, kernel: str = "auto") -> Tensor:
    """Pooled rows of every table side by side, (batch, sum of dims), differentiable.

    Args:
        tables: T tables.
        bags: table-major, T * batch bags; weights already hold the mean's shares.
        kernel: "auto", "compiled" or "torch".
    """
    if not torch.is_grad_enabled():
        views = [table.kernel_table() for table in tables]
        pooled, _ = pick_kernel(kernel, views).forward(views, bags)
        return pooled.to(tables[0].weights()[0].dtype)
    parameters, anchor = [], None
    for table in tables:
        weights = table.weights()
        if table.takes_fused_steps():
            # autograd would fill a gradient of zeros for weights that get none; an empty tensor keeps backward running.
            anchor = torch.empty(0, requires_grad=True)
            weights = [weight.detach() for weight in weights]
        parameters += weights
    return _Lookup.apply(tables, bags, kernel, bags.weights, anchor, *parameters)


class _Lookup(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, tables: Sequence[Trainable], bags: Bags, kernel: str, weights: Tensor | None,
                anchor: Tensor | None, *parameters: Tensor) -> Tensor:  # fmt: skip
        views = [table.kernel_table() for table in tables]
        ctx.kernel = pick_kernel(kernel, views)
        pooled, ctx.saved = ctx.kernel.forward(views, bags)
        ctx.tables, ctx.bags = tables, bags
        # Saved for torch's check that nothing changed them since, beside the use.
        ctx.save_for_backward(*parameters)
        ctx.open = OpenLookup()
        if any(ctx.needs_input_grad):
            for table in tables:
                if table.cache is not None:
                    table.cache.open(ctx.open)
        return pooled.to(parameters[0].dtype)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Tensor) -> tuple[Any, ...]:
        try:
            parameters: tuple[Tensor, ...] = ctx.saved_tensors
        except RuntimeError as error:
            raise RuntimeError(
                "a tensor-train table changed between its look-up and that look-up's backward; with a fused optimizer "
                "look a table up once a step (put the bags together), or use optimizer=None"
            ) from error
        views = [table.kernel_table() for table in ctx.tables]
        grad = grads[0].to(views[0].cores[0].dtype)
        want_weights = ctx.needs_input_grad[3]
        found, weight_grad = ctx.kernel.backward(views, ctx.bags, ctx.saved, grad, want_weights)
        given: list[Tensor | None] = []
        for table, gradients in zip(ctx.tables, found):
            if table.cache is not None:
                table.cache.close(ctx.open)
            weights = table.weights()
            cores = parameters[len(given) : len(given) + len(table.cores)]
            core_gradients = own_gradients(cores, gradients)
            if table.takes_fused_steps():
                table.step(core_gradients, gradients.hot_slots, gradients.hot_grad)
                given += [None] * len(weights)
                continue
            given += core_gradients
            given += [hot_gradient(weight, gradients) for weight in weights[len(cores) :]]
        return None, None, None, weight_grad, None, *given


def own_gradients(cores: Sequence[Tensor], gradients: TableGradients) -> list[Tensor]:
    """From the gradients of the three cores that kernels see to those of the two, three or four that are held."""
    if len(cores) == 3:
        return [grad.to(core.dtype) for core, grad in zip(cores, gradients.cores)]
    if len(cores) == 2:
        return [grad.to(core.dtype) for core, grad in zip(cores, gradients.cores[1:])]
    with torch.enable_grad():
        leaves = [core.detach().to(gradients.cores[0].dtype).requires_grad_() for core in cores]
        found = torch.autograd.grad(three_cores(leaves), leaves, gradients.cores)
    return [grad.to(core.dtype) for core, grad in zip(cores, found)]


def hot_gradient(rows: Tensor, gradients: TableGradients) -> Tensor | None:
    """The dense gradient of all slots, or None where the cache is still empty."""
    if gradients.hot_slots is None or gradients.hot_grad is None:
        return None
    return torch.zeros_like(rows).index_copy_(0, gradients.hot_slots.long(), gradients.hot_grad.to(rows.dtype))
