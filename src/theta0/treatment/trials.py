"""How starts are tried: short runs for the choice, then paired runs on other batches and fresh orders for the proof."""

import math
import statistics
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

import torch
from torch import nn

from theta0._batches import Batch, held_out
from theta0._losses import Loss
from theta0._randomness import streams
from theta0._state import snapshot
from theta0._training import Run, probe_rate, short_run
from theta0.diagnosis.diagnose import diagnosis_of
from theta0.diagnosis.results import Diagnosis
from theta0.experiments.optimizers import OptimizerKind
from theta0.measurements.observed_training import ObservedTraining

Item = TypeVar("Item")
Starts = tuple[Callable[[], None], Callable[[], None]]
ORDERS = 3  # fresh data orders of the proof
GAIN = 0.01  # a treated start must lower the held-out loss by this share, so that a tie is not called better
_MEASURED = 4  # batches that a diagnosis reads
_SLOWER = (1.0, 0.3, 0.1, 0.03)  # of the user's rate, where it is too high


@dataclass(frozen=True)
class Trial:
    """How every start is tried: the same data, budget, optimizer and noise.

    Attributes:
        rest: what diagnoses, remedies and runs may see.
        train: the part of it on which the runs of the choice train.
        probe: the part of it that ranks them.
        confirm: what only the proof sees.
        loss: a name, a callable or None.
        optimizer: the one that all runs use.
        rate: the learning rate; None probes one for each start.
        steps: of every run.
        stepped: called after each run with how many steps it made.
    """

    rest: Sequence[Batch]
    train: Sequence[Batch]
    probe: Sequence[Batch]
    confirm: Sequence[Batch]
    loss: Loss
    optimizer: OptimizerKind
    rate: float | None
    steps: int
    stepped: Callable[[int], None] = lambda steps: None

    def run(self, model: nn.Module, train: Sequence[Batch], held: Sequence[Batch], rate: float, seed: int = 0) -> Run:
        """A short run, in place, with this loss, optimizer and budget."""
        kind, options = self.optimizer, dict[str, Any](rate=rate, steps=self.steps, seed=seed)
        run = short_run(model, train, held, self.loss, optimizer=kind.make, name=kind.name, **options)
        self.stepped(len(run.losses))
        return run


@dataclass(frozen=True)
class Proof:
    """Paired runs from the start as given and from the treated one.

    A pair is the two runs of a data order, its gain by which share of the loss the treated one is better, at most 1; -1
    where it diverged.
    """

    pairs: tuple[tuple[Run, Run], ...]
    gains: tuple[float, ...]

    @property
    def holds(self) -> bool:
        """Whether the mean gain is at least 1 % and above the gains' standard deviation."""
        return self.mean >= GAIN and self.mean > self.spread

    @property
    def mean(self) -> float:
        """The mean gain."""
        return statistics.fmean(self.gains)

    @property
    def spread(self) -> float:
        """The gains' standard deviation over the orders."""
        return statistics.stdev(self.gains)


def trial_of(found: Sequence[Batch], loss: Loss, *, optimizer: OptimizerKind, rate: float | None, steps: int) -> Trial:
    """Split the data: a quarter for the proof, a quarter of the rest for the choice.

    Where the rest is a single batch, the choice is made on what its runs train on.
    """
    rest, confirm = held_out(found)
    train, probe = held_out(rest) if len(rest) > 1 else (rest, rest)
    return Trial(rest, train, probe, confirm, loss, optimizer, rate, steps)


def measured(model: nn.Module, trial: Trial, observed: ObservedTraining, left: float) -> Diagnosis:
    """Diagnose the start that the model has, in the seconds left; `observed` is what is known of the user's steps."""
    options: dict[str, Any] = {"rate": trial.rate, "observed": observed, "seconds": left}
    return diagnosis_of(model, trial.rest[:_MEASURED], trial.loss, optimizer=trial.optimizer, **options)


def chosen_run(model: nn.Module, trial: Trial, rate: float | None = None) -> tuple[Run, float]:
    """The short run, for the choice, of the start that the model has, which it has again afterwards.

    With it comes the cost in gradients, of choosing a rate too.
    """
    restore = snapshot(model)
    rate, cost = rate or trial.rate, 0.0
    try:
        if rate is None:
            rate, cost = probe_rate(model, trial.train, trial.loss, optimizer=trial.optimizer.make, restore=restore)
        run = trial.run(model, trial.train, trial.probe, rate)
    finally:
        restore()
    return run, cost + run.cost


def slower_run(model: nn.Module, trial: Trial, rate: float) -> tuple[Run, float]:
    """The best of runs at the rate and at lower ones, the higher where two are within 1 %, and the cost of all."""
    runs = [chosen_run(model, trial, rate * factor) for factor in _SLOWER]
    best = runs[0][0]
    for run, _ in runs[1:]:
        if better(reached(run), reached(best)):
            best = run
    return best, sum(cost for _, cost in runs)


def proof(untreated: nn.Module, treated: nn.Module, trial: Trial, rates: tuple[float, float], starts: Starts) -> Proof:
    """Train both starts over fresh data orders, with the same noise, and compare them on the batches kept back."""
    pairs = []
    for order in range(1, ORDERS + 1):
        train = fresh_order(trial.rest, trial.steps, order)
        runs = []
        for model, rate, start in zip((untreated, treated), rates, starts, strict=True):
            start()
            runs.append(trial.run(model, train, trial.confirm, rate, seed=order))
        pairs.append((runs[0], runs[1]))
    return Proof(tuple(pairs), tuple(_gain(reached(one), reached(other)) for one, other in pairs))


def fresh_order(batches: Sequence[Item], steps: int, order: int) -> list[Item]:
    """Batches for a number of steps, one each, shuffled anew in each epoch."""
    generator = streams(order)("order of the data")
    found: list[Item] = []
    while len(found) < steps:
        found += [batches[i] for i in torch.randperm(len(batches), generator=generator).tolist()]
    return found[:steps]


def reached(run: Run | None) -> float:
    """The held-out loss of a run; infinite where there is none."""
    return math.inf if run is None or math.isnan(run.held_out) else run.held_out


def better(treated: float, plain: float) -> bool:
    """Whether a loss is lower by 1 % at least."""
    return math.isfinite(treated) and (not math.isfinite(plain) or plain - treated > GAIN * abs(plain))


def _gain(plain: float, treated: float) -> float:
    if not math.isfinite(treated):
        return -1.0
    if not math.isfinite(plain):
        return 1.0
    scale = max(abs(plain), abs(treated))
    return (plain - treated) / scale if scale > 0 else 0.0
