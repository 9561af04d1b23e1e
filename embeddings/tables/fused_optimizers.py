"""Optimizers that a table runs inside its backward pass, so that no gradient outlives the step."""

from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from shardgym.problem.errors import InputError
from shardgym.problem.faces import public


class FusedOptimizer(Protocol):
    """What a table asks of its optimizer. A state's row k belongs to the weight's row k, so it can follow it.

    `lr` may be set between steps, as a schedule does. `weight_decay` is of the table's rows: a step multiplies every
    row by 1 - lr * weight_decay, however the table holds it. `max_norm` bounds the norm of a table's whole gradient.
    """

    lr: float
    weight_decay: float
    max_norm: float | None

    def new_state(self, weight: Tensor) -> Tensor | None:
        """Fresh state for a weight (rows, ...), first axis rows, or None where the optimizer keeps none."""

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        """One step on the whole weight, in place; `grad` like the weight."""

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        """One step on distinct `rows` (n,) of the weight with `grad` (n, ...), in place."""


def row_decay(optimizer: FusedOptimizer) -> float:
    """What one step's weight decay multiplies a table's rows by (decoupled, as in AdamW, arXiv 1711.05101)."""
    return 1 - optimizer.lr * optimizer.weight_decay


def _require_not_negative(**values: float) -> None:
    for name, value in values.items():
        if not value >= 0:
            raise InputError(f"optimizer: {name} is {value}; give 0 or more")


def _require_max_norm(value: float | None) -> None:
    if value is not None and not value > 0:
        raise InputError(f"optimizer: max_norm is {value}; give a positive bound, or None for none")


@public("shardgym.embeddings")
@dataclass
class SGD:
    """w <- w - lr * g.

    Args:
        lr: learning rate; may be set between steps.
        weight_decay: of the table's rows, times `lr` a step.
        max_norm: bound of a table's gradient norm per step, or None.

    Raises:
        InputError: for a negative rate or decay, or a bound that is not positive.
    """

    lr: float = 0.01
    weight_decay: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _require_not_negative(lr=self.lr, weight_decay=self.weight_decay)
        _require_max_norm(self.max_norm)

    def new_state(self, weight: Tensor) -> Tensor | None:
        """None: nothing is kept."""
        return None

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        """One step on the whole weight (rows, ...), in place."""
        weight.add_(grad.to(weight.dtype), alpha=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        """One step on distinct `rows` (n,) with `grad` (n, ...), in place."""
        weight.index_add_(0, rows, grad.to(weight.dtype), alpha=-self.lr)


@public("shardgym.embeddings")
@dataclass
class Adagrad:
    """s <- s + g^2; w <- w - lr * g / (sqrt(s) + eps), each number alone (Duchi et al., 2011; torch.optim.Adagrad).

    Args:
        lr, weight_decay, max_norm: as of `SGD`.
        eps: added to the root.
        initial_accumulator: first value of s. The state s is float32 for weights of half precision.

    Raises:
        InputError: for a negative argument, or a bound that is not positive.
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _require_not_negative(
            lr=self.lr, eps=self.eps, initial_accumulator=self.initial_accumulator, weight_decay=self.weight_decay
        )
        _require_max_norm(self.max_norm)

    def new_state(self, weight: Tensor) -> Tensor:
        """The sums of squares, like the weight."""
        return torch.full_like(weight, self.initial_accumulator, dtype=_state_dtype(weight), requires_grad=False)

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        """One step on the whole weight (rows, ...), in place."""
        assert state is not None
        grad = grad.to(state.dtype)
        state.addcmul_(grad, grad)
        weight.addcdiv_(grad, state.sqrt().add_(self.eps), value=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        """One step on distinct `rows` (n,) with `grad` (n, ...), in place."""
        assert state is not None
        grad = grad.to(state.dtype)
        squares = state[rows].addcmul_(grad, grad)
        state[rows] = squares
        weight.index_add_(0, rows, (grad / squares.sqrt_().add_(self.eps)).to(weight.dtype), alpha=-self.lr)


@public("shardgym.embeddings")
@dataclass
class RowwiseAdagrad:
    """Adagrad with one number per row, the mean of the row's g^2 (FBGEMM's EXACT_ROWWISE_ADAGRAD).

    A row of a core is its slice for one factor index, shape (r, q, r').

    Args:
        lr, eps, initial_accumulator, weight_decay, max_norm: as of `Adagrad`.

    Raises:
        InputError: for a negative argument, or a bound that is not positive.
    """

    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0
    weight_decay: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _require_not_negative(
            lr=self.lr, eps=self.eps, initial_accumulator=self.initial_accumulator, weight_decay=self.weight_decay
        )
        _require_max_norm(self.max_norm)

    def new_state(self, weight: Tensor) -> Tensor:
        """The sums of mean squares, (rows,)."""
        return torch.full(weight.shape[:1], self.initial_accumulator, dtype=_state_dtype(weight), device=weight.device)

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        """One step on the whole weight (rows, ...), in place."""
        assert state is not None
        grad = grad.to(state.dtype)
        state.add_(_mean_square(grad))
        weight.addcdiv_(grad, _per_row(state.sqrt().add_(self.eps), grad), value=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        """One step on distinct `rows` (n,) with `grad` (n, ...), in place."""
        assert state is not None
        grad = grad.to(state.dtype)
        squares = state[rows].add_(_mean_square(grad))
        state[rows] = squares
        step = grad / _per_row(squares.sqrt_().add_(self.eps), grad)
        weight.index_add_(0, rows, step.to(weight.dtype), alpha=-self.lr)


@public("shardgym.embeddings")
@dataclass
class Adam:
    """Adam (Kingma and Ba, arXiv 1412.6980); rows that get no gradient in a step keep their moments (lazy Adam).

    Args:
        lr, weight_decay, max_norm: as of `SGD`; the decay is AdamW's.
        betas: of the first and the second moment.
        eps: added to the root.

    Raises:
        InputError: for a negative argument, a beta outside [0, 1), or a bound that is not positive.
    """

    lr: float = 0.001
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    weight_decay: float = 0.0
    max_norm: float | None = None

    def __post_init__(self) -> None:
        _require_not_negative(lr=self.lr, eps=self.eps, weight_decay=self.weight_decay)
        _require_max_norm(self.max_norm)
        if not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(f"optimizer: betas are {self.betas}; give two numbers in [0, 1)")

    def new_state(self, weight: Tensor) -> Tensor:
        """Per row: both moments, then the row's steps, (rows, 2 * numbers per row + 1)."""
        numbers = weight[0].numel() if weight.shape[0] else 0
        return torch.zeros(weight.shape[0], 2 * numbers + 1, dtype=_state_dtype(weight), device=weight.device)

    def update(self, weight: Tensor, state: Tensor | None, grad: Tensor) -> None:
        """One step on the whole weight (rows, ...), in place."""
        assert state is not None
        weight.add_(self._step(state, grad).to(weight.dtype), alpha=-self.lr)

    def update_rows(self, weight: Tensor, state: Tensor | None, rows: Tensor, grad: Tensor) -> None:
        """One step on distinct `rows` (n,) with `grad` (n, ...), in place."""
        assert state is not None
        own = state[rows]
        weight.index_add_(0, rows, self._step(own, grad).to(weight.dtype), alpha=-self.lr)
        state[rows] = own

    def _step(self, state: Tensor, grad: Tensor) -> Tensor:
        """Moves the state of some rows on, in place, and gives their steps, like `grad`."""
        flat = grad.flatten(1).to(state.dtype)
        first, second, count = state.split([flat.shape[1], flat.shape[1], 1], dim=1)
        count += 1
        first.lerp_(flat, 1 - self.betas[0])
        second.mul_(self.betas[1]).addcmul_(flat, flat, value=1 - self.betas[1])
        root = (second / (1 - self.betas[1] ** count)).sqrt_().add_(self.eps)
        return (first / (1 - self.betas[0] ** count) / root).view_as(grad)


def _state_dtype(weight: Tensor) -> torch.dtype:
    return torch.float64 if weight.dtype == torch.float64 else torch.float32


def _mean_square(grad: Tensor) -> Tensor:
    return grad.square().flatten(1).mean(1)


def _per_row(values: Tensor, like: Tensor) -> Tensor:
    """values (rows,) with as many axes as `like`."""
    return values.view(-1, *(1,) * (like.dim() - 1))
