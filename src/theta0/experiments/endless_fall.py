"""A loss that falls without end: seen along single parameter tensors, by lengths that grow tenfold."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state, seed_draws
from theta0._trace.interpreter import Handler, Step, trace
from theta0._trace.operations import Operation
from theta0._training import count_gradients
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.runs import continued, prepared, started
from theta0.measurements.gradient_paths import followed_paths
from theta0.measurements.loss_terms import Term, terms_handler

LENGTHS = (1.0, 10.0, 100.0, 1000.0)  # root mean square of an entry's change, far beyond any weight that is of use
_ASKED = 12  # tensors, those with the largest gradient of an entry first
FASTER = 4.0  # times as far down in each tenfold length: 10 where the loss is linear, 1 where it is a logarithm
FAR = 10.0  # times the first loss (or 1) below zero
MOST = 8.0  # gradients that it takes, about, at most
_FEWEST = 3  # lengths whose losses are finite
_SIGNED = 4  # different weights of both signs: those of a policy gradient, not labels of -1 and 1


@dataclass(frozen=True)
class EndlessFall:
    """A direction in which a loss falls faster and faster, below zero.

    Attributes:
        parameter: the tensor that is moved, all else as it is.
        first: the loss at the start.
        lengths: how far it is moved, as the root mean square of an entry's change.
        losses: there.
        term: the summand of the loss that falls; None where the loss is no sum.
    """

    parameter: str
    first: float
    lengths: tuple[float, ...]
    losses: tuple[float, ...]
    term: Operation | None


def endless_fall(model: nn.Module, batch: Batch, loss: Loss) -> tuple[EndlessFall | None, float]:
    """Move single parameter tensors along the negative gradient, far beyond any use, and see how the loss falls.

    A loss with a minimum rises there, or stands still: errors and divergences are bounded, the logarithm of a density
    rises as soon as what it models is missed. One that falls at least four times as far in each tenfold length has
    none.
    A loss whose value is not what is minimized is left out: one that depends on parameters by value only (samples of
    the network's own, as in contrastive divergence), that weighs outputs by numbers of both signs (a policy gradient),
    or that goes through a frozen network behind trained parameters (which judges what they make).

    The model is left bit-identical. Cost: two gradients, and a forward pass for each of up to 12 tensors, up to six
    for the one that is found.

    Returns:
        What was found, None for nothing; and the cost in gradients.
    """
    with preserve_state(model), torch.enable_grad():
        try:
            start = _start(model, batch, loss)
            found, passes = (None, 0) if start is None else _searched(model, batch, loss, *start)
            if found is not None and start is not None:
                found = _with_term(model, batch, loss, found, start[1][found.parameter])
        except (UserCodeError, RuntimeError, ValueError):
            return None, count_gradients(forward=1, backward=1)
    return found, count_gradients(forward=passes + 2, backward=1)


def endless_fall_later(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, kind: OptimizerKind, rate: float, *, steps: int
) -> tuple[EndlessFall | None, float]:
    """As `endless_fall`, of the weights after a short training run, which has turned them to where the loss falls.

    A scale whose sign is drawn at random, as of a coupling layer, points nowhere at the start. The model is left as it
    was.

    Returns:
        What was found, with the loss after the run as its first; and the cost in gradients, the run's steps included.
    """
    with preserve_state(model):
        try:
            experiment = prepared(model, batches, loss, kind.make)
            run = continued(experiment, started(experiment, rate), steps)
        except (UserCodeError, RuntimeError, ValueError):
            return None, float(steps)
        if run.diverged:
            return None, float(steps)
        found, cost = endless_fall(model, batches[0], loss)
    return found, cost + steps


def _start(model: nn.Module, batch: Batch, loss: Loss) -> tuple[float, dict[str, Tensor]] | None:
    """The loss, and the direction of each tensor; None where the value of the loss is not what is minimized."""
    weighed = _weights_handler()
    paths, by_value = followed_paths(model)
    seed_draws(0)
    with trace(model, paths, weighed) as interpreter:
        value, _ = loss_of(model, batch, loss)
    weights = interpreter.note_of(value, weighed)
    if by_value(interpreter, value) or (weights is not None and weights.judged) or not value.requires_grad:
        return None
    if weights is not None and len(weights.values) >= _SIGNED and min(weights.values) < 0 < max(weights.values):
        return None
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    gradients = torch.autograd.grad(value, list(trained.values()), allow_unused=True)
    known = {name: g.detach() for name, g in zip(trained, gradients, strict=True) if g is not None and bool(g.any())}
    sized = {name: float(g.double().square().mean().sqrt()) for name, g in known.items()}
    chosen = sorted((n for n, size in sized.items() if math.isfinite(size)), key=lambda n: -sized[n])[:_ASKED]
    first = float(value.detach())
    return (first, {name: -known[name] / sized[name] for name in chosen}) if math.isfinite(first) else None


def _searched(
    model: nn.Module, batch: Batch, loss: Loss, first: float, directions: dict[str, Tensor]
) -> tuple[EndlessFall | None, int]:
    """The first tensor along which the loss falls without end, and how many forward passes that took."""
    passes = 0
    for name, direction in directions.items():
        losses = [_moved(model, batch, loss, name, direction, LENGTHS[1])]
        passes += 1
        if not losses[0] < first:
            continue
        losses = [_moved(model, batch, loss, name, direction, LENGTHS[0]), losses[0]]
        losses += [_moved(model, batch, loss, name, direction, length) for length in LENGTHS[2:]]
        passes += len(LENGTHS) - 1
        finite = losses[: next((i for i, v in enumerate(losses) if not math.isfinite(v)), len(losses))]
        if _falls_on(first, finite, overflows=losses[len(finite) : len(finite) + 1] == [-math.inf]):
            return EndlessFall(name, first, LENGTHS[: len(finite)], tuple(finite), None), passes
    return None, passes


def _falls_on(first: float, losses: Sequence[float], *, overflows: bool) -> bool:
    falls = [before - after for before, after in itertools.pairwise([first, *losses])]
    faster = all(late >= FASTER * early > 0 for early, late in itertools.pairwise(falls))
    deep = bool(losses) and losses[-1] < -FAR * max(1.0, abs(first))
    return len(losses) + overflows >= _FEWEST and faster and deep


def _moved(model: nn.Module, batch: Batch, loss: Loss, name: str, direction: Tensor, length: float) -> float:
    """The loss with one tensor moved, which is put back; NaN where the step refuses what comes of it."""
    parameter = model.get_parameter(name)
    before = parameter.detach().clone()
    try:
        parameter.data.add_(direction, alpha=length)
        seed_draws(0)
        return float(loss_of(model, batch, loss)[0].detach())
    except (UserCodeError, RuntimeError, ValueError):
        return math.nan
    finally:
        parameter.data.copy_(before)


def _with_term(model: nn.Module, batch: Batch, loss: Loss, found: EndlessFall, direction: Tensor) -> EndlessFall:
    """Which summand falls, by what each contributes at the start and far from it."""
    shares = [_contributions(model, batch, loss)]
    parameter = model.get_parameter(found.parameter)
    before = parameter.detach().clone()
    parameter.data.add_(direction, alpha=found.lengths[-1])
    shares.append(_contributions(model, batch, loss))
    parameter.data.copy_(before)
    near, far = shares
    if len(near) != len(far) or not near:
        return found
    falls = [(b[1] - a[1], number) for number, (a, b) in enumerate(zip(near, far, strict=True))]
    fallen = near[min(falls)[1]][0].operation
    return EndlessFall(found.parameter, found.first, found.lengths, found.losses, fallen)


def _contributions(model: nn.Module, batch: Batch, loss: Loss) -> list[tuple[Term, float]]:
    handler = terms_handler()
    seed_draws(0)
    with trace(model, handler) as interpreter:
        value, _ = loss_of(model, batch, loss)
    found = []
    for term in interpreter.note_of(value, handler) or ():
        factor = None
        if term.tensor.requires_grad:
            factor = torch.autograd.grad(value, term.tensor, retain_graph=True, allow_unused=True)[0]
        found.append((term, 0.0 if factor is None else float((factor.detach() * term.tensor.detach()).sum())))
    return found


@dataclass(frozen=True)
class _Weights:
    """Numbers that outputs are multiplied with on the way to the loss; whether a frozen network stands there."""

    values: tuple[float, ...] = ()
    judged: bool = False


_LINEAR = frozenset(("positive", "negate", "multiply", "divide", "add", "subtract", "join"))
_MOST = 16


def _weights_handler() -> Handler:
    """A handler that notes with which constants a tensor was weighed, as long as nothing but sums follow."""

    def after(step: Step, result: Any) -> _Weights | None:
        known = [note for _, note in step.notes(handler)]
        judged = any(note.judged for note in known) or _judges(step)
        role = step.spec.role if step.spec is not None else ""
        values: tuple[float, ...] = ()
        if role in _LINEAR:
            values = tuple(value for note in known for value in note.values)
        if role == "multiply" and any(t.requires_grad for t in step.tensors):
            values += _constants(step)
        values = tuple(dict.fromkeys(values))[:_MOST]
        return _Weights(values, judged) if values or judged else None

    handler = Handler(after=after)
    return handler


def _constants(step: Step) -> tuple[float, ...]:
    """Some of the numbers of a constant factor: the least, the largest, and others."""
    found: list[float] = []
    for factor in step.arguments[:2]:
        if isinstance(factor, Tensor) and not factor.requires_grad and factor.is_floating_point() and factor.numel():
            flat = factor.detach().flatten()
            found += [float(flat.min()), float(flat.max()), *flat[:_SIGNED].tolist()]
        elif isinstance(factor, (int, float)) and not isinstance(factor, bool):
            found.append(float(factor))
    return tuple(found)


def _judges(step: Step) -> bool:
    """Whether a frozen weight is applied to what trained parameters have made."""
    frozen = any(isinstance(t, nn.Parameter) and not t.requires_grad for t in step.tensors)
    return frozen and any(t.requires_grad and not isinstance(t, nn.Parameter) for t in step.tensors)
