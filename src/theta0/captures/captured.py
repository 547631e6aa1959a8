"""What was captured of a script: for each optimizer a model, batches, a step and a rate, replayed and compared."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.optim.lr_scheduler import LRScheduler

from theta0._errors import CaptureError
from theta0._losses import Loss
from theta0._ranks import averaged, ranks
from theta0._state import preserve_randomness, preserve_state, snapshot
from theta0.captures.assembly import (
    Factor,
    batches_of,
    clip_norm,
    cut_of,
    factor_of,
    gradient_kept,
    gradient_left_over,
    model_of,
    opposed,
    stepped,
    taken_back,
    tape_of,
    unscaled,
)
from theta0.captures.entries import Use, closure
from theta0.captures.forms import plain_form
from theta0.captures.passes import Pass, Recording, Steps
from theta0.captures.schedules import scheduled_rates
from theta0.captures.tape import CapturedBatch, replay, replayed
from theta0.measurements.observed_training import NOTHING_OBSERVED, ObservedTraining

_TOLERANCE = (
    1e-5  # of losses and gradients on accelerators and over ranks, whose sums are not the same twice; else exactly
)


@dataclass(frozen=True, eq=False)
class CapturedStep:
    """What one optimizer of a script trains.

    Attributes:
        model: the script's own module, before its first step; a container where no module owns all that is called.
        batches: what the script trained on.
        loss: the loss, where the step is one call of the model and a loss of each sample's output and target; else
            None.
        step: replays the script's loss for a model and a batch, where the step is anything else.
        optimizer: the script's own; None where none stepped.
        learning_rate: the maximum of its schedule, as far as it was seen.
        factor: a constant by which the script multiplied its loss, and why it was taken out of it.
        losses: the script's own losses, one a batch, with the factor.
        compared: how many parameters' gradients on the first batch equal the script's.
        observed: what it shows of its training beyond these.
        clip_norm: the norm to which gradients are clipped; None where that is not seen.
    """

    model: nn.Module
    batches: list[Any]
    loss: Loss
    step: Callable[[nn.Module, Any], Tensor] | None
    optimizer: torch.optim.Optimizer | None
    learning_rate: float | None
    factor: Factor
    losses: tuple[float, ...]
    compared: int
    observed: ObservedTraining = NOTHING_OBSERVED
    clip_norm: float | None = None

    def __repr__(self) -> str:
        """The step in one line, without the weights and the data."""
        kind = "no optimizer" if self.optimizer is None else type(self.optimizer).__name__
        rate = "" if self.learning_rate is None else f" at {self.learning_rate:g}"
        return f"<CapturedStep: {type(self.model).__name__}, {len(self.batches)} batches, {kind}{rate}>"

    @property
    def arguments(self) -> dict[str, Any]:
        """What `theta0.diagnose` takes: `theta0.diagnose(**captured.steps[0].arguments)`."""
        return {
            "model": self.model,
            "batches": self.batches,
            "loss": self.loss,
            "step": self.step,
            "optimizer": self.optimizer,
            "learning_rate": self.learning_rate,
            "observed": self.observed,
            "clip_norm": self.clip_norm,
        }


@dataclass(eq=False)
class Captured:  # filled when the script ends
    """What a script trains.

    Attributes:
        steps: one for each optimizer, in the order of their first steps.
        error: what the script raised; None where it was stopped or ended.
        seen: how many calls, backward passes and steps were seen, in words.
        ended: whether the script ran to its end.
    """

    steps: list[CapturedStep] = field(default_factory=list)
    error: BaseException | None = None
    seen: str = ""
    ended: bool = False

    @property
    def arguments(self) -> dict[str, Any]:
        """What `theta0.diagnose` takes, where there is one optimizer: `theta0.diagnose(**captured.arguments)`."""
        if len(self.steps) > 1:
            raise CaptureError(
                f"arguments: expected one optimizer, got {len(self.steps)}: {self.steps}; diagnose each: "
                "for step in captured.steps: theta0.diagnose(**step.arguments)"
            )
        return self.steps[0].arguments


def put_back(found: Recording) -> None:
    """Put models and optimizers into the state before the first step, once it is known what schedules do next."""
    for restore in reversed(list(found.restores.values())):
        restore()
    schedulers = [kept for kept in found.alive if isinstance(kept, LRScheduler)]
    for steps in found.optimizers.values():
        steps.schedule = scheduled_rates(steps.optimizer, steps.rates, schedulers)
        steps.restore()


def captured_steps(found: Recording) -> list[CapturedStep]:
    """One step for each optimizer, replayed and compared with the script's own; models stand before the first step.

    Returns:
        The steps.

    Raises:
        CaptureError: if a replay differs from the script.
    """
    return [_captured(found, steps) for steps in stepped(found)]


def _captured(found: Recording, steps: Steps | None) -> CapturedStep:
    batches, cut = batches_of(found, steps), cut_of(steps)
    every = [root for batch in batches for one in batch for root in one.roots if root is not None]
    model = model_of(found, closure(every, cut), steps)
    factor, inner = factor_of(batches, steps)
    try:
        compared = _compared(model, batches[0], cut)
        taped = [_taped(batch, model, cut, inner is not None) for batch in batches]
    except (ValueError, RuntimeError, TypeError, KeyError, IndexError) as error:
        if isinstance(error, CaptureError):
            raise
        raise CaptureError(f"the training step cannot be replayed ({error}); pass step= from Python instead") from error
    data, loss = plain_form(model, batches, taped, cut, inner is not None) or (taped, None)
    rate = None if steps is None or steps.rate <= 0 else steps.rate
    schedule = () if steps is None else steps.schedule
    if steps is not None and len(schedule) > len(steps.rates) and max(schedule) > 0:
        rate = max(schedule)  # a scheduler's initial rate may lie far above all that it sets
    losses = tuple(sum(float(one.value) for one in batch) for batch in batches)
    return CapturedStep(
        model,
        data,
        loss,
        replay if data is taped else None,
        None if steps is None else steps.optimizer,
        rate,
        factor,
        losses,
        compared,
        ObservedTraining(
            gradient_kept(steps, model),
            schedule or None,
            opposed(found, steps, closure(every)),
            taken_back(found, steps, model),
            tuple(found.not_loaded),
            found.later,
            str(taped[0].tape.operations[1].surroundings.source or "") if isinstance(loss, str) else "",
            gradient_left_over(steps),
            found.stored.line,
        ),
        clip_norm(steps),
    )


def _taped(batch: Sequence[Pass], model: nn.Module, cut: Callable[[Use], bool], inner: bool) -> CapturedBatch:
    root = batch[0].roots[0]
    return tape_of(batch, model, cut, unscaled(root)[0] if inner and root is not None else None)


class _WrittenError(CaptureError):
    """A step writes to weights outside of its optimizer."""


def _compared(model: nn.Module, batch: Sequence[Pass], cut: Callable[[Use], bool]) -> int:
    """Compare the first batch's passes; weights that the first one sets from its data are set before.

    Returns:
        How many parameters' gradients were compared.

    Raises:
        CaptureError: if a loss or a gradient is another.
    """
    try:
        return sum(_compare(model, one, cut) for one in batch)
    except _WrittenError:
        restore = snapshot(model)
    try:
        with preserve_randomness(), torch.enable_grad():
            for one in batch:
                replayed(model, tape_of([one], model, cut), exactly=True)
        return sum(_compare(model, one, cut) for one in batch)
    except BaseException:
        restore()
        raise


def _compare(model: nn.Module, one: Pass, cut: Callable[[Use], bool]) -> int:
    """Replay a pass with the random numbers and weights that it had.

    Returns:
        How many parameters' gradients were compared.

    Raises:
        CaptureError: if its loss or a gradient is another.
        _WrittenError: if it writes to weights.
    """
    names = {id(p): name for name, p in model.named_parameters()}
    known = [(p, g) for key, (p, g) in one.gradients.items() if key in names]
    with preserve_state(model), torch.enable_grad():
        versions = [p._version for p in model.parameters()]
        value = replayed(model, tape_of([one], model, cut), exactly=True)
        if versions != [p._version for p in model.parameters()]:
            raise _WrittenError(
                "the script's step writes to weights outside of its optimizer, which cannot be replayed"
            )
        _require_same("the loss of the first batch", value, one.value)
        if known:
            found = torch.autograd.grad(value, [p for p, _ in known], allow_unused=True)
            own = [torch.zeros_like(p) if g is None else g for (p, _), g in zip(known, found, strict=True)]
            exact = not one.exchanged or ranks() == 2  # of more, the order of the sum is the backend's affair
            for (p, expected), gradient in zip(known, averaged(own) if one.exchanged else own, strict=True):
                _require_same(f"the gradient of {names[id(p)]}", gradient, expected, exact=exact)
    return len(known)


def _require_same(what: str, replayed: Tensor, own: Tensor, *, exact: bool = True) -> None:
    a, b = (t.detach().to_dense() if t.is_sparse else t.detach() for t in (replayed, own))
    if a.shape == b.shape and bool(((a == b) | (a.isnan() & b.isnan())).all()):
        return
    distance = float((a - b).norm() / b.norm()) if a.shape == b.shape else float("nan")
    if (a.device.type != "cpu" or not exact) and distance <= _TOLERANCE:
        return
    shown = (
        f"{float(a):.9g} instead of {float(b):.9g}" if a.numel() == b.numel() == 1 else f"a share {distance:.1e} off"
    )
    raise CaptureError(
        f"{what}, replayed, is {shown}: a part of the script's step is not seen (numpy or .item() in the loss, a view "
        "that is written to, threads, state outside of modules), so nothing is said of it; pass step= from Python"
    )
