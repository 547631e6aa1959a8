"""The summands of a loss, and the gradient of each."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, trace
from theta0._trace.operations import Operation, operation_of


@dataclass(frozen=True, eq=False)
class Term:
    """One summand of a loss.

    Attributes:
        operation: the operation that makes it.
        tensor: the summand, before a factor that multiplies it.
        value: its value.
    """

    operation: Operation
    tensor: Tensor
    value: float


def terms_handler() -> Handler:
    """A handler that follows sums of numbers: its note on the loss is the tuple of its `Term`s.

    Factors, quotients by constants and changes of sign belong to a summand; `torch.stack([...]).sum()` is a sum too.
    """

    def after(step: Step, result: Any) -> tuple[Term, ...] | None:
        if not isinstance(result, Tensor) or not result.is_floating_point() or not result.numel():
            return None
        role = step.spec.role if step.spec is not None else ""
        if role in ("add", "subtract") and result.numel() == 1:
            return tuple(term for t in step.tensors for term in own(step, t))
        if role == "join" and all(t.numel() == 1 for t in step.tensors):
            return tuple(term for t in step.tensors for term in own(step, t))
        notes = step.notes(handler)
        passes = role in ("multiply", "divide", "negate", "positive") and len(notes) == 1
        if passes and (result.numel() == 1 or len(notes[0][1]) > 1):
            others = [t for t in step.tensors if t is not notes[0][0]]
            if not any(t.requires_grad for t in others) and notes[0][0] is step.tensors[0]:
                return tuple(notes[0][1])
            if role == "multiply" and not any(t.requires_grad for t in others):
                return tuple(notes[0][1])
        return (made(step, result),) if result.numel() == 1 else None

    def own(step: Step, tensor: Tensor) -> tuple[Term, ...]:
        known = step.note(tensor, handler)
        return tuple(known) if known else ()

    def made(step: Step, result: Tensor) -> Term:
        return Term(operation_of(step), result, float(result.detach()))

    handler = Handler(after=after)
    return handler


def count_handler() -> Handler:
    """A handler that only counts the summands: its note on the loss is how many there are; it keeps no tensor."""

    def after(step: Step, result: Any) -> int | None:
        if not isinstance(result, Tensor) or result.numel() > 64 or not result.is_floating_point():
            return None
        role = step.spec.role if step.spec is not None else ""
        known = [step.note(t, handler) or int(t.numel() == 1) for t in step.tensors]
        if role in ("add", "subtract", "join") and (role == "join" or result.numel() == 1):
            return sum(known)
        if role in ("multiply", "divide", "negate", "positive") and step.tensors:
            return int(max(known)) or None
        return 1 if result.numel() == 1 else None

    handler = Handler(after=after)
    return handler


def constants_handler(found: list[tuple[float, Operation]]) -> Handler:
    """A handler that finds numbers without a gradient that are added to what may be the loss; it notes nothing.

    Args:
        found: each number and the sum are written there.
    """

    def after(step: Step, result: Any) -> None:
        role = step.spec.role if step.spec is not None else ""
        sums = role in ("add", "subtract") and isinstance(result, Tensor) and result.numel() == 1
        if not sums or not result.requires_grad or step.path:
            return
        for value in step.arguments[:2]:
            loose = isinstance(value, float) or (isinstance(value, Tensor) and not value.requires_grad)
            if loose and float(value) != 0.0:
                found.append((float(value), operation_of(step)))

    return Handler(after=after)


def loose_summand(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> Operation | None:
    """Where a number that no parameter changes, and that differs from batch to batch, is added to the loss.

    Two forward passes; the model is left bit-identical.

    Returns:
        The sum; None where there is none, or there is one batch only.
    """
    seen: list[list[tuple[float, Operation]]] = []
    for batch in batches[:2]:
        seen.append([])
        with preserve_state(model), torch.enable_grad(), trace(model, constants_handler(seen[-1])):
            loss_of(model, batch, loss)
    if len(seen) < 2 or len(seen[0]) != len(seen[1]):
        return None
    return next((place for (a, place), (b, _) in zip(*seen, strict=True) if a != b), None)


def scaled_norms(value: Tensor, terms: Sequence[Term], parameters: Sequence[Tensor]) -> list[float | None]:
    """The norm of each summand's share of the loss's gradient; the graph is kept.

    Returns:
        One number per summand; None for a summand that needs no gradient, and for a single one.
    """
    found: list[float | None] = []
    if len(terms) < 2:
        return [None] * len(terms)
    for term in terms:
        if not term.tensor.requires_grad or not value.requires_grad:
            found.append(None)
            continue
        factors: tuple[Tensor | None, ...] = torch.autograd.grad(
            value, term.tensor, retain_graph=True, allow_unused=True
        )
        factor = factors[0]
        if factor is None:
            found.append(None)
            continue
        gradients = torch.autograd.grad(term.tensor, parameters, factor, retain_graph=True, allow_unused=True)
        norms = [float(torch.linalg.vector_norm(g.detach().double())) for g in gradients if g is not None]
        found.append(math.hypot(*norms) if norms else None)
    return found
