"""A recurrence whose state is taken out of the graph at every step."""

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, tensors_in, trace
from theta0._trace.operations import Operation, operation_of
from theta0.measurements.gradient_paths import FACTORIES

_LEAST = 3  # applications of a weight that make a recurrence


@dataclass(frozen=True)
class CutRecurrence:
    """Where the state of a recurrence loses its graph.

    Attributes:
        operation: the first operation that takes it out of the graph.
        parameter: a weight that every step applies.
        steps: how many steps there are.
    """

    operation: Operation
    parameter: str
    steps: int


@dataclass(frozen=True)
class _Behind:
    """The applications of weights, as bits, on which a tensor depends with a gradient, and by its value only."""

    live: int = 0
    lost: int = 0
    cut: Operation | None = None


@dataclass
class _Uses:  # grows during a pass; a plain accumulator
    """The applications of one weight.

    Attributes:
        bits: of all of them.
        count: how many there are.
        cut: how many are given what earlier ones made by its value only.
        live: how many are given it with its gradient.
        operation: the first that took it out of the graph.
    """

    bits: int = 0
    count: int = 0
    cut: int = 0
    live: int = 0
    operation: Operation | None = None


@dataclass
class _Seen:  # grows during a pass; a plain accumulator
    uses: dict[int, _Uses] = field(default_factory=dict)
    applications: int = 0


def cut_recurrence(model: nn.Module, batch: Batch, loss: Loss) -> CutRecurrence | None:
    """Follow what is made at each application of a weight to later ones of the same weight, in one forward pass.

    It is a recurrence that learns nothing across steps where each application but the first is given, by its value
    only, what an earlier one made, and no weight is given it with its gradient. Cuts at some of the steps, as between
    chunks, inputs that are chosen from outputs while the state keeps its graph, and steps that run without gradients
    are none. The model is left bit-identical.

    Returns:
        The recurrence; None where there is none, or its gradient passes.
    """
    named = {id(p): name for name, p in model.named_parameters() if p.requires_grad}
    seen = _Seen()
    with preserve_state(model), torch.enable_grad(), trace(model, _handler(seen, named.__contains__)):
        loss_of(model, batch, loss)
    if any(uses.live for uses in seen.uses.values()):
        return None
    found = [
        CutRecurrence(uses.operation, named[key], uses.count)
        for key, uses in seen.uses.items()
        if uses.count >= _LEAST and uses.cut == uses.count - 1 and uses.operation is not None
    ]
    return found[0] if found else None


def _handler(seen: _Seen, trained: Callable[[int], bool]) -> Handler:
    def after(step: Step, result: Any) -> _Behind | None:
        if step.name in FACTORIES or step.function is torch.autograd.grad:
            return None
        notes = [note for _, note in step.notes(handler)]
        live = lost = 0
        cut = next((note.cut for note in notes if note.cut is not None), None)
        for note in notes:
            live, lost = live | note.live, lost | note.lost
        applied = [id(t) for t in step.tensors if trained(id(t))]
        results = tensors_in(step.arguments[:1] if result is None else (result,), {})
        if applied and torch.is_grad_enabled():
            live |= _applied(seen, applied, _Behind(live, lost, cut))
        if not live and not lost:
            return None
        if live and results and not any(r.requires_grad for r in results):
            return _Behind(0, live | lost, cut or operation_of(step))
        return _Behind(live, lost, cut)

    handler = Handler(after=after)
    return handler


def _applied(seen: _Seen, parameters: list[int], given: _Behind) -> int:
    """Count an application of some weights, to what is `given`; its own bit."""
    bit = 1 << seen.applications
    seen.applications += 1
    for key in parameters:
        uses = seen.uses.setdefault(key, _Uses())
        if given.live & uses.bits:
            uses.live += 1
        elif given.lost & uses.bits:
            uses.cut += 1
            uses.operation = uses.operation or given.cut
        uses.bits |= bit
        uses.count += 1
    return bit


def cuts_handler(found: Callable[[Step], None]) -> Handler:
    """A handler that shows each operation whose floating result has no gradient though an argument has; no notes.

    Of derivatives that the step takes, also those that are zero at every point.
    """

    def after(step: Step, result: Any) -> None:
        derivative = step.function is torch.autograd.grad
        first = result[0] if isinstance(result, tuple) and derivative else result
        made = isinstance(first, Tensor) and first.is_floating_point()
        made = made and (not first.requires_grad or (derivative and not bool(first.any())))
        if made and step.name not in FACTORIES and any(t.requires_grad for t in step.tensors):
            found(step)

    return Handler(after=after)
