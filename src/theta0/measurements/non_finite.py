"""The first operation of a training step that makes a number that is not finite from finite ones, and why."""

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, tensors_in, trace
from theta0._trace.operations import NodeMap, Operation, node_handler, operation_of
from theta0.measurements.backward import watch_backward
from theta0.measurements.domains import infinite_slope, reason


@dataclass(frozen=True)
class NonFiniteOrigin:
    """Where the first number that is not finite arises.

    Attributes:
        operation: the operation.
        why: what makes it not finite; "" where that is not known.
        backward: whether it is a gradient.
        batch: the number of the batch on which it was seen.
    """

    operation: Operation
    why: str
    backward: bool
    batch: int = 0


@dataclass(frozen=True)
class _Tainted:
    """What is noted of a tensor that holds numbers that are not finite.

    Attributes:
        origin: where they arise; None where they were put there on purpose, as the -inf of a mask.
        nan: whether one of them is NaN.
    """

    origin: NonFiniteOrigin | None
    nan: bool


@dataclass
class _Found:  # grows during a pass; a plain accumulator
    nans: list[NonFiniteOrigin] = field(default_factory=list)
    infinities: list[NonFiniteOrigin] = field(default_factory=list)


def non_finite_origin(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> NonFiniteOrigin | None:
    """Follow each batch's step until one makes a number that is not finite, forward first, then backward.

    Infinities that a mask or a constant puts there are on purpose: they count only where they become NaN, or reach the
    loss. The model is left bit-identical. Cost: a forward pass per batch up to the one in question, and a backward
    pass of those whose loss is finite.

    Returns:
        The origin; None where every loss and gradient is finite.
    """
    for batch in batches:
        with preserve_state(model), torch.enable_grad():
            found, nodes = _Found(), NodeMap()
            handler = _taint_handler(found, _held(model))
            with trace(model, handler, node_handler(nodes)) as interpreter:
                value, _ = loss_of(model, batch, loss)
            note = interpreter.note_of(value, handler)
            if not bool(torch.isfinite(value)):
                known = note.origin if note is not None else None
                origin = known or next(iter([*found.nans, *found.infinities]), None)
            else:
                origin = _backward(model, value, nodes)
        if origin is not None:
            return NonFiniteOrigin(origin.operation, origin.why, origin.backward, batch.number)
    return None


def _backward(model: nn.Module, value: Tensor, nodes: NodeMap) -> NonFiniteOrigin | None:
    trained = [p for p in model.parameters() if p.requires_grad]
    if not value.requires_grad or not trained:
        return None
    for seen in watch_backward(value, trained):
        if seen.outputs_finite and not seen.inputs_finite and seen.node in nodes.operations:
            operation = nodes.operations[seen.node]
            return NonFiniteOrigin(operation, infinite_slope(operation.name), backward=True)
    return None


def _taint_handler(found: _Found, held: Mapping[int, str]) -> Handler:
    def after(step: Step, result: Any) -> _Tainted | None:
        changed = step.arguments[:1] if result is None else (result,)
        bad = [t.detach() for t in tensors_in(changed, {}) if _holds_non_finite(t)]
        if not bad:
            return None
        nan = any(bool(torch.isnan(t).any()) for t in bad)
        earlier = [note for _, note in step.notes(handler)]
        if not earlier:
            meant = _on_purpose(step)
            return _Tainted(None if meant and not nan else made(step, nan, bad[0].dtype), nan)
        if nan and not any(note.nan for note in earlier):
            return _Tainted(_from_infinities(step, earlier) or made(step, nan, bad[0].dtype), nan)
        origins = sorted(earlier, key=lambda note: (note.origin is None, not note.nan))
        if origins[0].origin is None and step.spec is not None and step.spec.role == "loss":
            return _Tainted(made(step, nan, bad[0].dtype), nan)  # an infinity that was meant, but reaches the loss
        return _Tainted(origins[0].origin, nan)

    def made(step: Step, nan: bool, kind: torch.dtype) -> NonFiniteOrigin:
        origin = NonFiniteOrigin(operation_of(step), _given(step, held) or reason(step, nan, kind), backward=False)
        (found.nans if nan else found.infinities).append(origin)
        return origin

    handler = Handler(after=after)
    return handler


def _held(model: nn.Module) -> dict[int, str]:
    """Buffers, and tensors that are plain attributes of modules, by identity."""
    found = {id(tensor): name for name, tensor in model.named_buffers()}
    for path, module in model.named_modules():
        for name, value in vars(module).items():
            if isinstance(value, Tensor):
                found.setdefault(id(value), f"{path}.{name}" if path else name)
    return found


def _given(step: Step, held: Mapping[int, str]) -> str:
    """Which argument holds NaN although nothing in the pass made it: a constant that was made wrongly before."""
    bad = [t for t in step.tensors if t.is_floating_point() and bool(torch.isnan(t.detach().to_dense()).any())]
    if not bad or bad[0].requires_grad:
        return ""
    name = held.get(id(bad[0]), "")
    what = f"{name!r}" if name else f"a constant of shape {tuple(bad[0].shape)}"
    return f"{what}, which it is given, holds NaN before the pass; see where that was made"


def _from_infinities(step: Step, earlier: Sequence[_Tainted]) -> NonFiniteOrigin | None:
    """Of a NaN that arises from infinities: where these arise, unless the operation itself is what cannot take them."""
    if step.spec is not None and step.spec.role in ("softmax", "attention"):
        return None
    return next((note.origin for note in earlier if note.origin is not None), None)


def _holds_non_finite(tensor: Tensor) -> bool:
    if not (tensor.is_floating_point() or tensor.is_complex()) or tensor.layout is not torch.strided:
        return False
    return not bool(torch.isfinite(tensor.detach()).all())


_UNSET = frozenset(("empty", "empty_like", "new_empty", "empty_strided", "empty_permuted"))


def _on_purpose(step: Step) -> bool:
    """Whether an argument is infinite itself, a constant, as the value of a fill or a mask made before."""
    given = [v for v in (*step.arguments, *step.options.values()) if isinstance(v, float)]
    return (
        step.name in _UNSET
        or step.name == "__get__"
        or any(not math.isfinite(value) for value in [*given, *_numbers(step.arguments, step.options)])
        or any(_holds_non_finite(t) for t in step.tensors)
        or not any(t.is_floating_point() for t in step.tensors)
    )


def _numbers(arguments: Sequence[Any], options: Mapping[str, Any]) -> list[float]:
    """The floats inside lists, as `torch.tensor([0.0, float("-inf")])` is given."""
    pending, found = [*arguments, *options.values()], []
    while pending:
        value = pending.pop()
        if isinstance(value, float):
            found.append(value)
        elif isinstance(value, (list, tuple)) and len(value) < 1000:
            pending += list(value)
    return found
