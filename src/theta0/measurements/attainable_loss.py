"""The loss that the outputs can attain, given the interval to which the last operations confine them."""

import math
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F
from torch.utils._pytree import tree_leaves

from theta0._trace.interpreter import Handler, Interpreter, Step, tensors_in
from theta0._trace.operations import operation_of
from theta0.measurements.intervals import Interval, interval_of, unit_after_division


@dataclass(frozen=True)
class AttainableLoss:
    """How low a standard loss can get with outputs in an interval.

    Attributes:
        kind: cross_entropy, bce, nll or difference (squared and absolute errors, by their squares).
        interval: where the outputs lie.
        best: the least loss, were every output chosen freely within it.
        floor: the least loss of unconfined outputs.
        scale: the loss of the best constant prediction, which makes the gap a share.
        pairs: whether the classes are the samples of the batch, one each, as of a contrastive loss.
    """

    kind: str
    interval: Interval
    best: float
    floor: float
    scale: float
    pairs: bool = False

    @property
    def gap(self) -> float:
        """What cannot be reached, as a share of the loss of a constant prediction."""
        return (self.best - self.floor) / self.scale if self.scale > 0 else 0.0


def attainable_loss(kind: str, outputs: Tensor, targets: Tensor, interval: Interval) -> AttainableLoss | None:
    """The least loss within an interval, in closed form.

    Cross-entropy over C classes: log(1 + (C-1) exp(low - high)); of inner products of unit vectors, whose other
    classes cannot all lie opposite, low is -high/(C-1) (the simplex). Binary cross-entropy and squared error: the best
    output for each target is the unconfined best, clamped to the interval.

    Returns:
        The loss; None where targets and outputs do not match.
    """
    low, high = interval.low, interval.high
    if kind in ("cross_entropy", "nll"):
        classes = outputs.shape[1 if outputs.dim() > 1 else 0]
        if classes < 2:
            return None
        if kind == "nll":
            return AttainableLoss(kind, interval, -high, 0.0, math.log(classes))
        low = max(low, -high / (classes - 1)) if interval.cosine or interval.length else low
        best = math.log1p((classes - 1) * math.exp(low - high)) if math.isfinite(high - low) else 0.0
        pairs = not targets.is_floating_point() and 1 < targets.numel() == len(torch.unique(targets))
        return AttainableLoss(kind, interval, best, 0.0, math.log(classes), pairs)
    if targets.shape != outputs.shape or not targets.numel():
        return None
    t = targets.detach().double()
    if kind == "bce":
        chosen = torch.logit(t.clamp(0, 1)).clamp(max(low, -1e4), min(high, 1e4))
        best = float(F.binary_cross_entropy_with_logits(chosen, t.clamp(0, 1)))
        floor = float((torch.special.entr(t.clamp(0, 1)) + torch.special.entr(1 - t.clamp(0, 1))).mean())
        return AttainableLoss(kind, interval, best, floor, math.log(2))
    best = float((t.clamp(low, high) - t).square().mean())
    return AttainableLoss("difference", interval, best, 0.0, float(t.reshape(len(t), -1).var(0, correction=0).mean()))


@dataclass(frozen=True)
class Broadcast:
    """Outputs and targets that do not match, stretched against each other.

    Attributes:
        output: the outputs' shape.
        target: the targets'.
        terms: how many terms result.
        line: the user's source line; "" where none is known.
        of_model: whether both are the model's own, which it puts together before the loss.
    """

    output: tuple[int, ...]
    target: tuple[int, ...]
    terms: int
    line: str = ""
    of_model: bool = False


@dataclass(frozen=True)
class Known:
    """What is noted of a tensor.

    Attributes:
        interval: where its entries lie.
        side: "output" or "target" where it is made from those; a loss compares the two.
        difference: of a step of the user's own, what it is the difference of.
    """

    interval: Interval | None
    side: str
    difference: tuple[Tensor, Tensor] | None = None


@dataclass
class Compared:  # grows during a pass; a plain accumulator
    """What a loss compares.

    Attributes:
        losses: how low each of its terms can get.
        broadcasts: outputs and targets of unlike shapes.
        has_sides: whether outputs and targets were marked.
    """

    losses: list[AttainableLoss] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)
    has_sides: bool = False


_NOTHING = Known(None, "")
_PAIRING = frozenset(("add", "subtract", "multiply", "divide", "compare", "choose"))
_SIZES = frozenset(("square", "pow", "abs", "absolute"))  # of a difference: the terms of an error written by hand


def comparison_handler(compared: Compared) -> Handler:
    """A handler that follows intervals through a forward pass and its loss, and finds what the loss compares.

    Args:
        compared: what is found is written there.

    Returns:
        The handler; its note on a tensor is `Known`.
    """

    def known(step: Step, value: Any) -> Known:
        return (step.note(value, handler) or _NOTHING) if isinstance(value, Tensor) else _NOTHING

    def before(step: Step) -> None:
        if not compared.has_sides and step.name.strip("_") in _SIZES and step.tensors:
            one_and_other = known(step, step.tensors[0]).difference or ()
            sides = [(value, known(step, value)) for value in one_and_other]
            if sides:
                _compare(step, compared, "difference", *sides)
        if step.spec is None:
            return
        if step.spec.role == "loss":
            outputs, targets = step.argument((0, "input")), step.argument((1, "target"))
            if isinstance(outputs, Tensor) and isinstance(targets, Tensor):
                _compare(
                    step, compared, step.spec.kind, (outputs, known(step, outputs)), (targets, known(step, targets))
                )
        elif compared.has_sides and step.spec.role in _PAIRING and len(step.arguments) > 1:
            one, other = ((value, known(step, value)) for value in step.arguments[:2])
            # A product, as of probabilities and their logarithms, is compared in shape only.
            _compare(step, compared, "difference" if step.spec.role == "subtract" else "pair", one, other)

    def after(step: Step, result: Any) -> Known | None:
        results = tensors_in((result,), {})
        if not any(t.is_floating_point() for t in results) and not compared.has_sides:
            return None
        confined = interval_of(
            step.function, step.arguments, step.options, lambda value: known(step, value).interval
        ) or unit_after_division(step, results)
        sides = {note.side for _, note in step.notes(handler)} - {""}
        apart = _difference(step) if not compared.has_sides and step.notes(handler) else None
        if confined is None and not sides and apart is None:
            return None
        if confined is not None and not confined.layer:
            confined = replace(confined, layer=_module(step))
        return Known(confined, "output" if "output" in sides else "target" if sides else "", apart)

    handler = Handler(before=before, after=after)
    return handler


def _difference(step: Step) -> tuple[Tensor, Tensor] | None:
    """What a step subtracts outside of the model, of one shape and only one with a gradient."""
    owners = step.interpreter.owners
    inside = owners is not None and owners.inside_model
    if inside or step.spec is None or step.spec.role != "subtract" or len(step.tensors) != 2:
        return None
    one, other = step.tensors
    unlike = one.shape != other.shape or one.requires_grad == other.requires_grad
    return None if unlike or not one.dim() else (one, other)


def _module(step: Step) -> str:
    owners = step.interpreter.owners
    return step.path if owners is not None and owners.inside_model else ""


def _compare(step: Step, compared: Compared, kind: str, one: tuple[Any, Known], other: tuple[Any, Known]) -> None:
    """Note how low a loss of outputs and targets can get, and whether their shapes agree."""
    (outputs, known), (targets, _) = one, other
    if kind == "difference" and not compared.has_sides:  # a step of the user's own: data have no gradient
        one, other = ((value, _by_gradient(value, note)) for value, note in (one, other))
    if kind in ("difference", "pair"):
        if {one[1].side, other[1].side} != {"output", "target"}:
            return
        (outputs, known), (targets, _) = (one, other) if one[1].side == "output" else (other, one)
        broadcast = _stretched(outputs, targets)
        if broadcast is not None:
            compared.broadcasts.append(replace(broadcast, line=operation_of(step).line))
        if outputs.shape != targets.shape or kind == "pair":
            return
    if known.interval is not None:
        loss = attainable_loss(kind, outputs, targets, known.interval)
        compared.losses.extend([] if loss is None else [loss])


def _by_gradient(value: Any, known: Known) -> Known:
    side = "output" if isinstance(value, Tensor) and value.requires_grad else "target"
    return replace(known, side=side)


def mark_sides(interpreter: Interpreter, handler: Handler, compared: Compared, outputs: Any, targets: Any) -> None:
    """Say which tensors are outputs and which are targets, before the loss is applied."""
    for tree, side in ((outputs, "output"), (targets, "target")):
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor):
                known = interpreter.note_of(leaf, handler) or _NOTHING
                interpreter.annotate(leaf, handler, replace(known, side=side))
                compared.has_sides = True


def _stretched(output: Tensor, target: Tensor) -> Broadcast | None:
    """Shapes of different length, such as (N, 1) and (N,), whose product is larger than either.

    Pairs that are meant have axes of length one on both sides, and shapes of the same length.
    """
    if output.dim() == target.dim() or not output.dim() or not target.dim():
        return None
    try:
        shape = torch.broadcast_shapes(output.shape, target.shape)  # type: ignore[no-untyped-call]
    except RuntimeError:
        return None
    terms = math.prod(shape)
    if terms <= max(output.numel(), target.numel()):
        return None
    return Broadcast(tuple(output.shape), tuple(target.shape), terms)
