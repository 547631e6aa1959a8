"""Apply a remedy, measure again, and keep it only if a short run proves it better."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from theta0._batches import Batch, held_out, initialised, materialised
from theta0._losses import Loss, checked, loss_of
from theta0._randomness import Randomness
from theta0._training import Run, checked_optimizer, probe_rate, short_run
from theta0._untouched import randomness_snapshot, snapshot, untouched
from theta0._user_code import UserCodeError
from theta0.diagnosis.diagnose import diagnosis_of
from theta0.diagnosis.results import Diagnosis
from theta0.treatment.remedies import ANSWERS, REMEDIES
from theta0.treatment.results import Attempt, Treatment

_MEASURED = 4  # batches that a diagnosis reads
_GAIN = 0.01  # a treated start must lower the held-out loss by this share, so that a tie is not called better


@dataclass(frozen=True)
class _Trial:
    """How every start is tried: the same data, budget, optimizer and noise."""

    train: Sequence[Batch]
    verify: Sequence[Batch]
    loss: Loss
    optimizer: str
    rate: float | None
    steps: int


def treat(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    with_: str = "auto",
    optimizer: str | None = None,
    learning_rate: float | None = None,
    steps: int = 100,
    max_batches: int | None = 32,
    generator: Randomness = None,
    progress: Callable[[str], None] | None = None,
) -> Treatment:
    """Mend a starting point, and prove it: **the one verb that changes a model**.

    Each remedy is applied, measured, and given a short training run next to one from the start as given: the same
    batches in the same order, the same noise, the same budget. The best treated start is kept if its loss on held-out
    batches (the last quarter) is lower by 1 % at least; otherwise, and on an interrupt or any failure, the model is
    restored bit for bit. A kept start has the state_dict keys it had, but for the weights that `lcw` parametrizes.

    Args:
        model: changed in place if a remedy is kept.
        batches: `(inputs, targets)` batches; a diagnosis measures the first four.
        loss: a name, a callable, or None where the model returns its own.
        with_: "auto" for the remedies that the findings name, or one remedy's name.
        optimizer: "sgd" (default), "momentum", "adam", "adamw" or "rmsprop".
        learning_rate: its rate; None chooses one for each start among 1e-3 … 1 by ten steps.
        steps: the training budget of each start.
        max_batches: how many batches are read; None reads all.
        generator: for remedies that draw.
        progress: told what is being done.

    Returns:
        What was tried, what was measured, what was kept and why.

    Raises:
        ValueError: on a wrong argument or unusable data; the model is then as it was.
    """
    checked(loss)
    names = _named(with_)
    inner = initialised(model)
    found = materialised(batches, inner, max_batches=max_batches)
    train, verify = held_out(found)
    if len(found) == 1:
        _require_parts_go_through(inner, train[0], found[0], loss)
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    trial = _Trial(train, verify, loss, checked_optimizer(optimizer or "sgd"), learning_rate, steps)
    tell = progress or (lambda text: None)
    restore, restore_randomness = snapshot(inner), randomness_snapshot()
    keep = restore
    try:
        treatment, keep = _tried(inner, trial, names, generator, tell, restore)
    finally:
        keep()
        restore_randomness()
    return treatment


def _require_parts_go_through(model: nn.Module, part: Batch, whole: Batch, loss: Loss) -> None:
    """A single batch is split for verification, which a graph or a mask of the whole batch's size does not survive."""
    with untouched(model), torch.no_grad():
        loss_of(model, whole, loss)
        try:
            loss_of(model, part, loss)
        except UserCodeError as error:
            raise ValueError(
                "batches: a single batch is split into a part to train on and one to verify on, and this model cannot "
                f"take a part of it ({error}); pass at least two batches"
            ) from error


def _named(with_: str) -> tuple[str, ...] | None:
    if with_ == "auto":
        return None
    if with_ not in REMEDIES:
        raise ValueError(f"with: expected auto, {', '.join(REMEDIES)}, got {with_!r}")
    return (with_,)


def _tried(
    model: nn.Module,
    trial: _Trial,
    names: tuple[str, ...] | None,
    generator: Randomness,
    tell: Callable[[str], None],
    restore: Callable[[], None],
) -> tuple[Treatment, Callable[[], None]]:
    """Try the remedies.

    Returns:
        The treatment, and the function that puts the model into the start to keep.

    Raises:
        ValueError: if the one remedy asked for cannot be applied.
    """
    explicit = names is not None
    tell("measuring the start as given")
    before = _measured(model, trial)
    cost = before.cost
    if names is None:
        names = tuple(dict.fromkeys(remedy for f in before.findings for remedy in ANSWERS.get(f.code, ())))
        if not names or not any(f.severity != "note" for f in before.findings):
            return Treatment("", before, None, False, _nothing(before), None, None, (), cost), restore
    tell("training the start as given")
    untreated, spent = _run(model, trial)
    cost += spent
    attempts: list[Attempt] = []
    states: list[Callable[[], None]] = []
    for name in names:
        tell(f"trying {name}")
        attempt, state, spent = _attempt(model, trial, name, generator, restore)
        attempts.append(attempt)
        states.append(state)
        cost += spent
        restore()
        if attempt.run is None and len(names) == 1 and explicit:
            raise ValueError(f"{name} {attempt.reason}")
    best = min(range(len(names)), key=lambda i: _reached(attempts[i].run))
    run = attempts[best].run
    kept = _better(_reached(run), untreated.held_out)
    reason = _reason(names[best], attempts[best], untreated, kept)
    treatment = Treatment(
        names[best], before, attempts[best].after, kept, reason, untreated, run, tuple(attempts), cost
    )
    return treatment, states[best] if kept else restore


def _attempt(
    model: nn.Module, trial: _Trial, name: str, generator: Randomness, restore: Callable[[], None]
) -> tuple[Attempt, Callable[[], None], float]:
    left: dict[str, str] = {}
    try:
        REMEDIES[name](model, list(trial.train), trial.loss, generator=generator, report=left.update)
    except ValueError as error:
        return Attempt(name, None, None, f"could not be applied: {error}"), restore, 0.0
    state = snapshot(model)
    after = _measured(model, trial)
    run, spent = _run(model, trial)
    reason = f"held-out loss {run.held_out:.4g} after {len(run.losses)} steps"
    if left:
        reason += "; left as they were: " + ", ".join(f"{path} ({why})" for path, why in left.items())
    # Applying costs a few forward passes: unit variance sweeps at least twice.
    return Attempt(name, after, run, reason), state, after.cost + spent + len(trial.train)


def _measured(model: nn.Module, trial: _Trial) -> Diagnosis:
    batches = [*trial.train, *trial.verify][:_MEASURED]
    return diagnosis_of(model, batches, trial.loss, optimizer=trial.optimizer, rate=trial.rate)


def _run(model: nn.Module, trial: _Trial) -> tuple[Run, float]:
    """The short run of the start that the model has, which it has again afterwards."""
    restore = snapshot(model)
    rate, cost = trial.rate, 0.0
    try:
        if rate is None:
            rate, cost = probe_rate(model, trial.train, trial.loss, optimizer=trial.optimizer, restore=restore)
        run = short_run(
            model, trial.train, trial.verify, trial.loss, optimizer=trial.optimizer, rate=rate, steps=trial.steps
        )
    finally:
        restore()
    return run, cost + run.cost


def _reached(run: Run | None) -> float:
    return math.inf if run is None or math.isnan(run.held_out) else run.held_out


def _better(treated: float, plain: float) -> bool:
    return math.isfinite(treated) and (not math.isfinite(plain) or plain - treated > _GAIN * abs(plain))


def _nothing(before: Diagnosis) -> str:
    if not before.findings:
        return "Nothing was found to mend; the model is as it was."
    codes = ", ".join(dict.fromkeys(finding.code for finding in before.findings))
    return f"No initialization mends what was found ({codes}); see each finding's advice. The model is as it was."


def _reason(name: str, attempt: Attempt, untreated: Run, kept: bool) -> str:
    if attempt.run is None:
        return f"{name} {attempt.reason}. The model is as it was."
    reached, plain = _reached(attempt.run), untreated.held_out
    compared = (
        f"the held-out loss after {len(attempt.run.losses)} steps is {reached:.4g} with {name} and {plain:.4g} without"
    )
    if kept:
        return f"Kept: {compared}."
    if math.isinf(reached) and math.isinf(plain):
        return (
            f"Not kept: both starts diverge, with {name} and without, at rate {attempt.run.rate:g}; "
            "lower it (theta0 rate TARGET finds one). The model is as it was."
        )
    return f"Not kept: {compared}. The model is as it was."
