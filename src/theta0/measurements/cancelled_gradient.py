"""A gradient that is rounding: its terms cancel, and other last digits of the data make another one."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils._pytree import tree_map

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import deterministic, preserve_state
from theta0._trace.interpreter import Handler, Step, trace
from theta0._trace.operations import Operation, operation_of

GRADIENTS = 2  # that it costs
CHANGE = 16.0  # of a number, in units of its rounding: what other last digits are
_CANCELS = 64.0  # a sum of terms that are larger than it by 1 / (64 units of rounding)
_SUMS = frozenset(("sum", "mean", "add", "sub", "dot", "matmul", "mm", "einsum"))


@dataclass(frozen=True, eq=False)
class CancelledGradient:
    """How much of a gradient is rounding.

    Attributes:
        change: the norm of the difference that other last digits of the data make, over the gradient's norm.
        operation: the last sum of the step that is zero but for rounding; None where there is none.
    """

    change: float
    operation: Operation | None


def cancelled_gradient(model: nn.Module, batch: Batch, loss: Loss) -> CancelledGradient | None:
    """Change the floating-point numbers of a batch by their last digits, and compare the gradients.

    A gradient that is determined by the data changes by about as much as these, ``1e-6`` of itself in single precision;
    one whose terms cancel to rounding becomes another one. The model is left bit-identical. Cost: two gradients.

    Returns:
        The change; None where the batch has no floating-point numbers, or a gradient is zero or not finite.
    """
    parameters = [p for p in model.parameters() if p.requires_grad]
    generator, changed = torch.Generator().manual_seed(0), 0

    def other(leaf: Any) -> Any:
        nonlocal changed
        if not isinstance(leaf, Tensor) or not leaf.dtype.is_floating_point or leaf.layout is not torch.strided:
            return leaf
        changed += 1
        size = CHANGE * torch.finfo(leaf.dtype).eps
        return leaf * (1 + size * torch.randn(leaf.shape, generator=generator).to(leaf))

    again = replace(batch, inputs=tree_map(other, batch.inputs), targets=tree_map(other, batch.targets))
    if not changed or not parameters:
        return None
    last: list[Operation] = []
    first = _gradient(model, batch, loss, parameters, _cancelling(last))
    second = _gradient(model, again, loss, parameters)
    size = max(_norm(first), _norm(second))
    difference = _norm([a - b for a, b in zip(first, second, strict=True)])
    if not size or not math.isfinite(difference / size):
        return None
    return CancelledGradient(difference / size, last[-1] if last else None)


def _gradient(
    model: nn.Module, batch: Batch, loss: Loss, parameters: Sequence[Tensor], *handlers: Handler
) -> list[Tensor]:
    with preserve_state(model), torch.enable_grad(), deterministic(model), trace(model, *handlers):
        value, _ = loss_of(model, batch, loss)
        found = torch.autograd.grad(value, parameters, allow_unused=True)
    return [g for g in (torch.zeros(()) if g is None else g.detach() for g in found) if g.layout is torch.strided]


def _norm(tensors: Sequence[Tensor]) -> float:
    return math.hypot(*(float(torch.linalg.vector_norm(t.double())) for t in tensors))


def _cancelling(found: list[Operation]) -> Handler:
    """Collects sums to one number that are zero but for rounding, while their terms are not."""

    def after(step: Step, result: Any) -> None:
        sums = step.name.strip("_") in _SUMS and isinstance(result, Tensor) and result.numel() == 1
        if not sums or not result.dtype.is_floating_point:
            return
        terms = [t for t in step.tensors if t.dtype.is_floating_point]
        size = max((float(t.detach().abs().mean()) for t in terms), default=0.0)
        if size and abs(float(result.detach())) <= _CANCELS * torch.finfo(result.dtype).eps * size:
            found.append(operation_of(step))

    return Handler(after=after)
