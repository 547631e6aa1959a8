"""Summands of a loss that stand against each other: does learning from the targets cost more than it gains?"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss, backward, loss_of
from theta0._state import preserve_state, seed_draws
from theta0._trace.interpreter import Handler, Interpreter, Step, trace
from theta0._trace.operations import Operation
from theta0.experiments.optimizers import OptimizerKind
from theta0.measurements.gradient_paths import FACTORIES
from theta0.measurements.loss_terms import Term, terms_handler

DWARFED = 10.0  # times the gradient of what compares with data
STEPS = 20  # on the sum, and then as many on what is compared with data alone
_FEWEST = 10
SHARES = 4.0  # gradients that the summands' shares at the start and after each run take, at most


@dataclass(frozen=True)
class OpposedTerms:
    """What training on the sum, and then on its comparisons with data alone, does to both kinds of summands.

    Attributes:
        steps: of each of the two runs.
        fits: of the comparisons with data (an error, a likelihood): at the start, after both runs.
        others: the same of all other summands (divergences, penalties).
        operation: the other summand that rises most in the second run.
        cost: in gradients.
    """

    steps: int
    fits: tuple[float, float, float]
    others: tuple[float, float, float]
    operation: Operation | None
    cost: float

    @property
    def gained(self) -> float:
        """How much further the comparisons with data fall when they alone are trained on."""
        return self.fits[1] - self.fits[2]

    @property
    def ratio(self) -> float:
        """How much more the other summands rise meanwhile."""
        return (self.others[2] - self.others[1]) / self.gained if self.gained > 0 else 0.0


def opposed_terms(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, kind: OptimizerKind, rate: float, *, most: int
) -> OpposedTerms | None:
    """Train briefly on the sum, then on what compares outputs with data alone, and see what each kind of summand does.

    A summand compares with data where a tensor that no parameter made takes part in it outside of the model. Losses
    with derivatives in them are left out: an equation's residual is no penalty. The model is left as it was.

    Args:
        model: the network, in the mode in which it is trained.
        batches: to train on, in turn.
        loss: a name, a callable or None.
        kind: the optimizer.
        rate: its rate.
        most: gradients.

    Returns:
        What was seen; None where all summands are of one kind, those that compare with no data have less than ten
        times the gradient of those that do, or training raises.
    """
    steps = min(STEPS, int(most - SHARES) // 2)
    if steps < _FEWEST:
        return None
    runs = _Runs(model, batches, loss, kind, rate)
    with preserve_state(model), torch.enable_grad():
        try:
            start = runs.shares(0)
            if start is None or not start.fits or not start.others or runs.weight(start) < DWARFED:
                return None
            runs.trained(steps, alone=False)
            middle = runs.shares(0)
            runs.trained(steps, alone=True)
            end = runs.shares(0)
        except (UserCodeError, RuntimeError, ValueError):
            return None
    if middle is None or end is None or not len(start.others) == len(middle.others) == len(end.others):
        return None
    rises = [(b[1] - a[1], number) for number, (a, b) in enumerate(zip(middle.others, end.others, strict=True))]
    return OpposedTerms(
        steps,
        (_sum(start.fits), _sum(middle.fits), _sum(end.fits)),
        (_sum(start.others), _sum(middle.others), _sum(end.others)),
        start.others[max(rises)[1]][0].operation,
        2.0 * steps + SHARES,
    )


def _sum(shares: Sequence[tuple[Term, float]]) -> float:
    return math.fsum(value for _, value in shares)


@dataclass(frozen=True, eq=False)
class _Shares:
    """The loss of a batch, its part that compares with data, and what each summand contributes."""

    value: Tensor
    fit: Tensor
    fits: list[tuple[Term, float]]
    others: list[tuple[Term, float]]


@dataclass(frozen=True, eq=False)
class _Runs:
    """Training of one model by the user's optimizer."""

    model: nn.Module
    batches: Sequence[Batch]
    loss: Loss
    kind: OptimizerKind
    rate: float

    def shares(self, step: int) -> _Shares | None:
        """The summands of a step's batch; None where the loss has none, or contains derivatives."""
        summands, data = terms_handler(), _data_handler()
        seed_draws(step)
        with trace(self.model, summands, data) as interpreter:
            value, _ = loss_of(self.model, self.batches[step % len(self.batches)], self.loss)
        terms = interpreter.note_of(value, summands) or ()
        if len(terms) < 2 or interpreter.note_of(value, data) is _DERIVED:
            return None
        return _split(value, terms, interpreter, data)

    def weight(self, start: _Shares) -> float:
        """The gradient of all but the comparisons with data, over that of these."""
        trained = [p for p in self.model.parameters() if p.requires_grad]
        whole, fit = (
            torch.autograd.grad(value, trained, retain_graph=True, allow_unused=True)
            for value in (start.value, start.fit)
        )
        pairs = [(a, torch.zeros_like(a) if b is None else b) for a, b in zip(whole, fit, strict=True) if a is not None]
        size = math.hypot(*(float(b.norm()) for _, b in pairs))
        return math.hypot(*(float((a - b).norm()) for a, b in pairs)) / size if size > 0 else math.inf

    def trained(self, steps: int, *, alone: bool) -> None:
        """Train on from where the model stands."""
        optimizer = self.kind.make([p for p in self.model.parameters() if p.requires_grad], self.rate)
        for step in range(steps):
            optimizer.zero_grad(set_to_none=True)
            if alone:
                found = self.shares(step)
                objective = None if found is None else found.fit
            else:
                seed_draws(step)
                objective, _ = loss_of(self.model, self.batches[step % len(self.batches)], self.loss)
            if objective is None or not bool(torch.isfinite(objective.detach())):
                raise ValueError("loss: expected a finite number")
            backward(objective)
            optimizer.step()
        optimizer.zero_grad(set_to_none=True)


def _split(value: Tensor, terms: Sequence[Term], interpreter: Interpreter, data: Handler) -> _Shares:
    fits: list[tuple[Term, float]] = []
    others: list[tuple[Term, float]] = []
    fit = torch.zeros_like(value)
    for term in terms:
        if not term.tensor.requires_grad:
            continue
        found: tuple[Tensor | None, ...] = torch.autograd.grad(value, term.tensor, retain_graph=True, allow_unused=True)
        factor = found[0]
        if factor is None:
            continue
        share = (factor.detach() * term.tensor).sum()
        if interpreter.note_of(term.tensor, data) is _COMPARED:
            fits.append((term, float(share.detach())))
            fit = fit + share
        else:
            others.append((term, float(share.detach())))
    return _Shares(value, fit, fits, others)


_MADE, _COMPARED, _DERIVED = (
    "made",
    "compared",
    "derived",
)  # by parameters; with data outside the model; by a derivative


def _data_handler() -> Handler:
    """A handler that notes what parameters made, and what was then compared with data outside of the model."""

    def after(step: Step, result: Any) -> str | None:
        notes = {note for _, note in step.notes(handler)}
        owners = step.interpreter.owners
        inside = owners is not None and owners.inside_model
        if step.function is torch.autograd.grad or _DERIVED in notes:
            return _DERIVED
        made = inside or bool(notes) or any(t.requires_grad for t in step.tensors)
        if not made or step.name in FACTORIES:
            return _MADE if step.name in FACTORIES else None
        brought = [t for t in step.tensors if not t.requires_grad and t.numel() > 1 and step.note(t, handler) is None]
        return _COMPARED if _COMPARED in notes or (brought and not inside) else _MADE

    handler = Handler(after=after)
    return handler
