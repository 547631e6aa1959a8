"""Apply remedies, measure again, and keep what short runs on batches kept back prove better."""

import math
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import nn
from torch.nn.utils.parametrize import is_parametrized

from theta0._batches import Batch, initialised, load_batches
from theta0._errors import InapplicableError, TimeEndedError, UserCodeError
from theta0._losses import Loss, checked, loss_of
from theta0._models import Step
from theta0._progress import ENDED, Progress, countdown, require_time, shown, time_limit
from theta0._randomness import Randomness
from theta0._ranks import from_first, on_every_rank
from theta0._state import preserve_randomness, preserve_state, seed_draws, snapshot
from theta0._training import Run, checked_positive
from theta0.diagnosis.results import Diagnosis
from theta0.experiments.estimates import announce_memory, announce_time, lacking
from theta0.experiments.optimizers import Optimizer, Scheduler, optimizer_kind, rate_of
from theta0.layers.standardized_input import StandardizedInput
from theta0.measurements.observed_training import NOTHING_OBSERVED, ObservedTraining
from theta0.treatment.faults import other_causes
from theta0.treatment.reasons import CONSTRAINED, elsewhere, nothing, proven, unfinished, unproven
from theta0.treatment.remedies import REMEDIES, named_by
from theta0.treatment.results import Attempt, Treatment
from theta0.treatment.trials import (
    ORDERS,
    Proof,
    Trial,
    better,
    chosen_run,
    measured,
    proof,
    reached,
    slower_run,
    trial_of,
)

STANDARDIZE = "standardize-input"
_ROUNDS = 3  # remedies on top of each other
_COPIES = 5  # of the model, that are held at once: the start as given, the best, two that are tried, one in a run


@dataclass(frozen=True)
class _Start:
    """A start that was tried.

    `names` are the remedies that made it, in order; `state` puts the model into it, and `model` may be a wrapper;
    `left` is what its last remedy left as it was, and why, as the end of a sentence.
    """

    names: tuple[str, ...]
    state: Callable[[], None]
    after: Diagnosis
    run: Run | None
    model: nn.Module
    left: str = ""


class _Search:  # a class because the rounds share what was spent and tried
    def __init__(
        self,
        model: nn.Module,
        trial: Trial,
        generator: Randomness,
        progress: Progress,
        observed: ObservedTraining,
        left: Callable[[], float],
    ) -> None:
        self.model, self.generator, self.progress = model, generator, progress
        self.trial, self.observed = replace(trial, stepped=self._stepped), observed
        self.restore = snapshot(model)
        self.attempts: list[Attempt] = []
        self.cost, self.steps, self.runs, self.doing = 0.0, 0, 2 * ORDERS, ""
        self.pace = 0.0  # seconds a gradient, the slowest seen
        self.left = left  # seconds that all may still take
        self.plain: Run | None = None  # of the start as given

    def tell(self, text: str) -> None:
        self.doing = text
        self.progress(text, self.steps / (self.runs * self.trial.steps) if self.steps else math.nan)

    def foresee(self, runs: int) -> None:
        """So many more runs, those of the proof apart, are to come."""
        self.runs = 2 * ORDERS + self.steps // self.trial.steps + runs
        announce_time(self.progress, self.runs * self.trial.steps - self.steps, self.pace, self.left())

    def _stepped(self, steps: int) -> None:
        self.steps += steps
        self.tell(self.doing)

    def diagnosed(self) -> Diagnosis:
        began = time.monotonic()
        require_time()
        found = measured(self.model, self.trial, self.observed, self.left())
        self.cost += found.cost
        self.pace = max(self.pace, (time.monotonic() - began) / max(1.0, found.cost))
        return found

    def ran(self, rate: float | None = None) -> Run:
        run, spent = chosen_run(self.model, self.trial, rate)
        self.cost += spent
        return run

    def apply(self, name: str, base: _Start, *, asked: bool = False) -> _Start | str:
        """Put a remedy on top of a start; the reason where it finds nothing better, or cannot be put unless `asked`."""
        require_time()
        base.state()
        seed_draws(0)  # dropout, while a remedy measures, is the same whatever was drawn before
        data = list(self.trial.rest)
        try:
            with self._trying([*base.names, name]):
                done = REMEDIES[name](self.model, data, self.trial.loss, generator=self.generator)
        except ValueError as error:
            if asked:
                raise ValueError(f"{name} could not be applied: {error}") from error
            return str(error) if isinstance(error, InapplicableError) else self._failed(name, base, str(error))
        self.cost += done.cost or len(data)  # a few forward passes: unit variance sweeps at least twice
        if not done.kept:
            return done.reason if asked else self._failed(name, base, done.reason)
        left = [f"{path} ({why})" for path, why in done.left.items()]
        kept = "; left as they were: " + ", ".join(left) if left else ""
        return _Start((*base.names, name), snapshot(self.model), base.after, None, self.model, kept)

    @contextmanager
    def _trying(self, names: Sequence[str]) -> Iterator[None]:
        """Where the time ends in the block, that these remedies were not tried to the end is an attempt."""
        try:
            yield
        except TimeEndedError:
            self.attempts.append(Attempt(" + ".join(names), None, None, f"not finished: {ENDED}"))
            raise

    def _failed(self, name: str, base: _Start, reason: str) -> str:
        joined = " + ".join([*base.names, name])
        self.attempts.append(Attempt(joined, None, None, f"could not be applied: {reason}"))
        return reason

    def tried(self, start: _Start, *, run: bool = True) -> _Start:
        """A start that a remedy has made, with its own diagnosis and run."""
        joined = " + ".join(start.names)
        self.tell(f"trying {joined}")
        start.state()
        with self._trying(start.names):
            after = self.diagnosed()
            done = self.ran() if run else None
            if done is not None and self.trial.rate is not None and reached(done) == float("inf"):
                done = self.slower(start).run  # a start that a lower rate would suit may be the best
        reason = f"held-out loss {done.held_out:.4g} after {len(done.losses)} steps" if done else "applied"
        self.attempts.append(Attempt(joined, after, done, reason + start.left))
        return replace(start, after=after, run=done)

    def best(self, given: _Start) -> _Start:
        """The remedies that the findings name, and on top of the best what its findings name, while that helps."""
        best = given
        for _ in range(_ROUNDS):
            self.tell("seeing which remedies apply")
            found, names = best, named_by(best.after)
            self.foresee(len(names))
            for name in names:
                if name in best.names or isinstance(applied := self.apply(name, best), str):
                    continue
                start = self.tried(applied)
                if better(reached(start.run), reached(found.run)):
                    found = start
            if found is best:
                break
            best = found
        return best

    def slower(self, start: _Start) -> _Start:
        """A start at the rate that suits it, where the user's is too high for it."""
        start.state()
        self.tell(f"trying {' + '.join(start.names) or 'the start as given'} at lower rates")
        run, spent = slower_run(self.model, self.trial, self.trial.rate or 1.0)
        self.cost += spent
        return replace(start, run=run)

    def unkept(
        self, name: str, given: _Start, reason: str, nearest: Attempt | None = None
    ) -> tuple[Treatment, Callable[[], None]]:
        """The model stays as it was; `nearest` is what came closest."""
        after, run = (nearest.after, nearest.run) if nearest else (None, None)
        attempts = tuple(self.attempts)
        return Treatment(name, given.after, after, False, reason, given.run, run, attempts, self.cost), self.restore

    def nearest(self) -> Attempt | None:
        """What came closest."""
        return min(self.attempts, key=lambda a: reached(a.run), default=None)


@on_every_rank
def treat(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    step: Step | None = None,
    with_: str = "auto",
    optimizer: Optimizer | None = None,
    learning_rate: float | None = None,
    scheduler: Scheduler | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    observed: ObservedTraining = NOTHING_OBSERVED,
    steps: int = 100,
    seconds: float | None = None,
    max_batches: int | None = 32,
    generator: Randomness = None,
    progress: bool | Progress | None = None,
) -> Treatment:
    """Fix a starting point, and prove it: **the one verb that changes a model**.

    "auto" takes the findings in turn: the remedies that answer them are applied, measured and given a short run each,
    and on top of the best one those that answer what is left. What no start fixes (data, loss, output, rate) is
    explained instead. The remedy chosen is then confirmed once: over three fresh data orders, each with the same noise
    for both starts, and on batches that took no part before (the last quarter). It is kept if its mean gain in loss is
    1 % at least and above the spread of the gains; otherwise, and on an interrupt or any failure, the model is
    restored bit for bit. A kept start has the state_dict keys it had, but for the weights that `lcw` parametrizes.

    Args:
        model: changed in place if a remedy is kept.
        batches: `(inputs, targets)` batches; a diagnosis measures the first four.
        loss: a name, a callable, or None where the model returns its own.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        with_: "auto", one remedy's name, or "standardize-input": the proven wrapper is then `Treatment.wrapped`.
        optimizer: by name, class, factory or instance; default SGD. The runs use it, an instance mirrored; one whose
            step evaluates the loss itself (LBFGS) is replaced by gradient descent.
        learning_rate: its rate; None takes that of an instance or a factory, and without any chooses one for each
            start among 1e-3 … 1 by ten steps. Where it is too high for a start, lower ones are tried, and
            `Treatment.rate` proposes one.
        scheduler: the schedule of the learning rate, a function from the optimizer to it; its highest rate counts.
        clip_norm: to which you clip the gradient's norm before each step; None for no clipping.
        accumulate: over how many batches each of your steps accumulates gradients.
        observed: what a captured script shows of its training beyond these.
        steps: the training budget of each run.
        seconds: that all may take, but for the first diagnosis and a pass that is being made. Where they end before the
            proof does, nothing is kept, and `Treatment.reason` says what was being done. None for no limit.
        max_batches: how many batches are read; None reads all.
        generator: for remedies that draw.
        progress: True for a bar, or a function of what is being done and the share that is done.

    Returns:
        What was tried, what was measured, what was kept and why.

    Raises:
        ValueError: on a wrong argument or unusable data; the model is then as it was.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> hidden = [part for _ in range(12) for part in (nn.Linear(16, 16), nn.Sigmoid())]
        >>> model = nn.Sequential(*hidden, nn.Linear(16, 3))
        >>> x = torch.randn(256, 16)
        >>> batches = list(zip(x.split(32), x[:, :3].argmax(1).split(32)))
        >>> treatment = treat(model, batches, "cross_entropy", optimizer="momentum", learning_rate=0.1, steps=40)
        >>> treatment.kept, treatment.remedy
        (True, 'lcw')
    """
    checked(loss, step)
    left = countdown(checked_positive(seconds, "seconds"))
    if with_ not in ("auto", STANDARDIZE, *REMEDIES):
        raise ValueError(f"with: expected auto, {', '.join(REMEDIES)}, {STANDARDIZE}, got {with_!r}")
    inner = initialised(model)
    found = load_batches(batches, inner, max_batches=max_batches, step=step)
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    kind = optimizer_kind(optimizer, inner, clip_norm=clip_norm, accumulate=accumulate)
    rate = rate_of(kind, learning_rate, scheduler)
    if kind.closure:
        kind, rate = optimizer_kind("sgd", inner, clip_norm=clip_norm), None
    trial = trial_of(found, loss, optimizer=kind, rate=rate, steps=steps)
    if len(found) == 1:
        _require_parts_go_through(inner, trial.rest[0], found[0], loss)
    stream = torch.initial_seed() if generator is None else generator
    with shown(progress, "fixing the starting point") as tell, preserve_randomness():
        announce_memory(tell, inner, snapshots=_COPIES, kind=kind)
        search = _Search(inner, trial, stream, tell, observed, left)
        keep = search.restore
        try:
            treatment, keep = _searched(search, with_)
        finally:
            keep()
    constrained = treatment.kept and any(is_parametrized(module) for module in inner.modules())
    return replace(treatment, reason=f"{treatment.reason} {CONSTRAINED}") if constrained else treatment


def _require_parts_go_through(model: nn.Module, part: Batch, whole: Batch, loss: Loss) -> None:
    """A single batch is split for verification, which a graph or a mask of the whole batch's size does not survive."""
    with preserve_state(model), torch.no_grad():
        loss_of(model, whole, loss)
        try:
            loss_of(model, part, loss)
        except UserCodeError as error:
            raise ValueError(
                "batches: a single batch is split into a part to train on and one to verify on, and this model cannot "
                f"take a part of it ({error}); pass at least two batches"
            ) from error


def _searched(search: _Search, with_: str) -> tuple[Treatment, Callable[[], None]]:
    """Find the start to keep: the treatment, and the function that puts the model into that start."""
    search.tell("measuring the start as given")
    given = _Start((), search.restore, search.diagnosed(), None, search.model)
    try:
        with time_limit(search.left()):
            return _chosen(search, given, with_)
    except TimeEndedError:
        nearest = search.nearest()
        name, given = nearest.remedy if nearest else "", replace(given, run=search.plain)
        return search.unkept(name, given, unfinished(search.doing, search.attempts), nearest)


def _chosen(search: _Search, given: _Start, with_: str) -> tuple[Treatment, Callable[[], None]]:
    """What is found within the time."""
    if with_ == "auto":
        other = other_causes(given.after, search.model, search.trial.rest[0])
        if other is not None or not named_by(given.after):
            return search.unkept("", given, elsewhere(*other) if other else nothing(given.after))
    short = lacking(search.model, snapshots=_COPIES, kind=search.trial.optimizer)
    if short:
        name = "" if with_ == "auto" else with_
        return search.unkept(name, given, f"Nothing was tried: {short}. The model is as it was.")
    if with_ == STANDARDIZE:
        return _confirmed(search, given, _standardized(search))
    if with_ != "auto":
        search.tell(f"applying {with_}")
        start = search.apply(with_, given, asked=True)
        if isinstance(start, str):
            return search.unkept(with_, given, f"Not kept: {start}.")
        return _confirmed(search, given, search.tried(start, run=False))
    search.tell("training the start as given")
    search.plain = search.ran()
    given = replace(given, run=search.plain)
    best = search.best(given)
    if best.names and search.trial.rate is not None and _too_fast(best, search.trial.rate):
        best, given = search.slower(best), search.slower(given)
    if not best.names:
        nearest = search.nearest()
        name = nearest.remedy if nearest else ""
        return search.unkept(name, given, unproven(name, given.run, nearest), nearest)
    return _confirmed(search, given, best)


def _too_fast(start: _Start, rate: float) -> bool:
    codes = {finding.code for finding in start.after.findings if finding.severity != "note"}
    return "learning-rate-too-high" in codes or start.run is None or start.run.rate < rate


def _standardized(search: _Search) -> _Start:
    wrapper = StandardizedInput(search.model, [batch.inputs for batch in search.trial.rest])
    require_time()
    after = measured(wrapper, search.trial, search.observed, search.left())
    search.cost += after.cost
    search.attempts.append(Attempt(STANDARDIZE, after, None, "wrapped"))
    return _Start((STANDARDIZE,), search.restore, after, None, wrapper)


def _confirmed(search: _Search, given: _Start, chosen: _Start) -> tuple[Treatment, Callable[[], None]]:
    """Prove the chosen start on the batches kept back."""
    runs = []
    for start in (given, chosen):
        start.state()
        rate, spent = (start.run.rate, 0.0) if start.run else _rate(search, start)
        search.cost += spent
        runs.append(rate)
    if from_first(chosen.names) != chosen.names:
        raise ValueError(
            f"treat: expected one choice on every rank, got {' + '.join(chosen.names)} here and another on rank 0; run "
            "every rank on hardware and libraries of one kind, or on one rank within `theta0.this_rank_only()`"
        )
    search.tell(f"proving {' + '.join(chosen.names)} on fresh data orders")
    given.state()
    trial = search.trial
    shown = proof(given.model, chosen.model, trial, (runs[0], runs[1]), (given.state, chosen.state))
    search.cost += sum(one.cost + other.cost for one, other in shown.pairs)
    return _treatment(search, given, chosen, shown)


def _rate(search: _Search, start: _Start) -> tuple[float, float]:
    if search.trial.rate is not None:
        return search.trial.rate, 0.0
    run, spent = chosen_run(start.model, search.trial)
    return run.rate, spent


def _treatment(search: _Search, given: _Start, chosen: _Start, shown: Proof) -> tuple[Treatment, Callable[[], None]]:
    name, (untreated, treated) = " + ".join(chosen.names), shown.pairs[0]
    kept = from_first(shown.holds)
    treatment = Treatment(
        remedy=name,
        before=given.after,
        after=chosen.after,
        kept=kept,
        reason=proven(name, shown, search.trial.rate),
        untreated=untreated,
        treated=treated,
        attempts=tuple(search.attempts),
        cost=search.cost,
        confirmations=shown.pairs,
        rate=treated.rate,
        wrapped=chosen.model if kept and chosen.model is not search.model else None,
    )
    return treatment, chosen.state if kept else search.restore
