"""Optimizers that a table runs inside its backward pass, so that no gradient outlives the step."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


class FusedOptimizer(Protocol):
    """What a table asks of its optimizer. A state's row k belongs to the weight's row k, so it can follow it."""

    lr: float

    def new_state(self, weight: Tensor) -> Tensor | None:
        """Fresh state for a weight, or None where the optimizer keeps none."""

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        """One step on the whole weight, in place."""

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        """One step on distinct `rows` (n,) of the weight with `grad` (n, ...), in place."""


def _require_positive(name: str, value: float) -> None:
    if not value >= 0:
        raise InputError(f"optimizer: {name} is {value}; give 0 or more")


@public("shardgym.embeddings")
@dataclass(frozen=True)
class SGD:
    """w <- w - lr * g."""

    lr: float = 0.01

    def __post_init__(self) -> None:
        _require_positive("lr", self.lr)

    def new_state(self, weight: Tensor) -> Tensor | None:
        return None

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        weight.add_(grad.to(weight.dtype), alpha=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        weight.index_add_(0, rows, grad.to(weight.dtype), alpha=-self.lr)


@public("shardgym.embeddings")
@dataclass(frozen=True)
class Adagrad:
    """s <- s + g^2; w <- w - lr * g / (sqrt(s) + eps), each number alone (Duchi et al., 2011; torch.optim.Adagrad)."""

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _require_positive("lr", self.lr)
        _require_positive("eps", self.eps)

    def new_state(self, weight: Tensor) -> Tensor:
        return torch.full_like(weight, self.initial_accumulator, dtype=_state_dtype(weight), requires_grad=False)

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        assert state is not None
        grad = grad.to(state.dtype)
        state.addcmul_(grad, grad)
        weight.addcdiv_(grad, state.sqrt().add_(self.eps), value=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        assert state is not None
        grad = grad.to(state.dtype)
        kept = state[rows].addcmul_(grad, grad)
        state[rows] = kept
        weight.index_add_(0, rows, (grad / kept.sqrt_().add_(self.eps)).to(weight.dtype), alpha=-self.lr)


@public("shardgym.embeddings")
@dataclass(frozen=True)
class RowwiseAdagrad:
    """Adagrad with one number a row, the mean of the row's g^2 (FBGEMM's EXACT_ROWWISE_ADAGRAD).

    A row of a core is its slice for one factor index, shape (r, q, r').
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def __post_init__(self) -> None:
        _require_positive("lr", self.lr)
        _require_positive("eps", self.eps)

    def new_state(self, weight: Tensor) -> Tensor:
        return torch.full(weight.shape[:1], self.initial_accumulator, dtype=_state_dtype(weight), device=weight.device)

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        assert state is not None
        grad = grad.to(state.dtype)
        state.add_(_mean_square(grad))
        weight.addcdiv_(grad, _spread(state.sqrt().add_(self.eps), grad), value=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        assert state is not None
        grad = grad.to(state.dtype)
        kept = state[rows].add_(_mean_square(grad))
        state[rows] = kept
        step = grad / _spread(kept.sqrt_().add_(self.eps), grad)
        weight.index_add_(0, rows, step.to(weight.dtype), alpha=-self.lr)


def _state_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def _mean_square(grad: Tensor) -> Tensor:
    return grad.square().flatten(1).mean(1)


def _spread(per_row: Tensor, like: Tensor) -> Tensor:
    return per_row.view(-1, *(1,) * (like.dim() - 1))
