"""What a step of the user's own stretches against each other on the way from the model's outputs to the loss."""

import math
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from theta0._trace.interpreter import Handler, Step, tensors_in
from theta0._trace.operations import operation_of
from theta0.measurements.attainable_loss import Broadcast

_PAIRING = frozenset(("add", "subtract", "multiply", "divide", "compare", "choose"))
# Elementwise functions of two tensors that the table of functions does not know.
_OTHERS = frozenset(
    (
        "maximum", "minimum", "fmax", "fmin", "pow", "rpow", "float_power", "rtruediv", "rdiv",
        "atan2", "arctan2", "hypot", "logaddexp", "logaddexp2", "xlogy", "ne", "lt", "le",
        "gt", "ge", "not_equal", "less", "greater", "less_equal", "greater_equal", "lerp", "addcmul",
        "addcdiv", "dist", "broadcast_tensors",
    )
)  # fmt: skip
_LOSSES = frozenset((F.poisson_nll_loss, F.gaussian_nll_loss, F.kl_div, F.soft_margin_loss, F.hinge_embedding_loss))


@dataclass(frozen=True)
class FromOutputs:
    """What is noted of a tensor that the model made, or that was made from one.

    Attributes:
        pairs: what was stretched against each other on the way to it.
        inside: what the model itself stretched, which counts where the result is compared with fewer targets.
    """

    pairs: tuple[Broadcast, ...] = ()
    inside: tuple[Broadcast, ...] = ()


def pairs_handler() -> Handler:
    """A handler that follows what a model puts out to the loss; its note is `FromOutputs`.

    A pair counts where an elementwise function outside of the model, or a loss, gets two tensors of as many entries and
    different numbers of axes, as (N, 1) and (N,), that make more entries than either has: one from the outputs, not
    both with a gradient, neither a parameter. Differences between all outputs of a batch, as contrastive losses take,
    have gradients on both sides; pairs that are meant have axes of length one on both sides. What the model itself
    makes of (N, 1) and (N,), of two tensors that are no views of one, counts where N targets are compared with it.
    """

    def after(step: Step, result: Any) -> FromOutputs | None:
        owners = step.interpreter.owners
        inside = owners is not None and owners.inside_model
        known = [note for _, note in step.notes(handler)]
        if not known and not inside:
            return None
        pairs = [pair for note in known for pair in note.pairs]
        own = [pair for note in known for pair in note.inside]
        if inside and _elementwise(step):
            own += [pair for pair in (_made(step, a, b) for a, b in combinations(step.tensors, 2)) if pair]
        elif known and _pairs_entries(step, inside):
            pairs += [
                pair for pair in (_stretched(step, a, b, handler) for a, b in combinations(step.tensors, 2)) if pair
            ]
            pairs += [pair for pair in own if any(_fewer(step, t, pair, handler) for t in step.tensors)]
        noted = FromOutputs(tuple(dict.fromkeys(pairs)), tuple(dict.fromkeys(own)))
        return noted if tensors_in((result,), {}) or result is None else None

    handler = Handler(after=after)
    return handler


def _pairs_entries(step: Step, inside: bool) -> bool:
    role, kind = (step.spec.role, step.spec.kind) if step.spec is not None else ("", "")
    if (role == "loss" and kind == "difference") or step.function in _LOSSES:
        return True
    return not inside and _elementwise(step)


def _elementwise(step: Step) -> bool:
    role = step.spec.role if step.spec is not None else ""
    return role in _PAIRING or (step.spec is None and step.name.strip("_") in _OTHERS)


def _made(step: Step, a: Tensor, b: Tensor) -> Broadcast | None:
    """What a model makes of a column and of a row of as many entries, both with a gradient."""
    column, row = (a, b) if a.dim() > b.dim() else (b, a)
    if row.dim() != 1 or tuple(column.shape) != (len(row), 1) or len(row) < 2:
        return None
    if not (a.requires_grad and b.requires_grad) or isinstance(a, nn.Parameter) or isinstance(b, nn.Parameter):
        return None
    if column.untyped_storage().data_ptr() == row.untyped_storage().data_ptr():
        return None  # all pairs of the same numbers, as distances are computed
    return Broadcast(tuple(column.shape), tuple(row.shape), len(row) ** 2, operation_of(step).line, of_model=True)


def _fewer(step: Step, tensor: Tensor, pair: Broadcast, handler: Handler) -> bool:
    """Whether a tensor that the model did not make has an entry a sample, and is compared with one for each pair."""
    pairs = any(step.note(t, handler) is not None and t.numel() == pair.terms for t in step.tensors)
    data = step.note(tensor, handler) is None and not tensor.requires_grad
    return pairs and data and tensor.numel() ** 2 == pair.terms


def _stretched(step: Step, a: Tensor, b: Tensor, handler: Handler) -> Broadcast | None:
    """The two as outputs and targets, where they are stretched against each other."""
    if a.dim() == b.dim() or a.numel() != b.numel() or not a.dim() or not b.dim():
        return None
    if (a.requires_grad and b.requires_grad) or isinstance(a, nn.Parameter) or isinstance(b, nn.Parameter):
        return None
    of_model = [t for t in (a, b) if step.note(t, handler) is not None]
    if not of_model:
        return None
    try:
        terms = math.prod(torch.broadcast_shapes(a.shape, b.shape))  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    if terms <= a.numel():
        return None
    output = next((t for t in of_model if t.requires_grad), of_model[0])
    target = b if output is a else a
    return Broadcast(tuple(output.shape), tuple(target.shape), terms, operation_of(step).line)
