"""Where changes are tried: one start, one budget, runs that are continued and compared."""

import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._ranks import from_first
from theta0._state import snapshot
from theta0.experiments.free_outputs import FreeOutputs
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.probe import FALLEN, LEARNT, ExperimentRun, Outcome
from theta0.experiments.runs import Experiment, PausedRun, continued, started


@dataclass(frozen=True, eq=False)
class Setting:
    """How a run is made.

    Attributes:
        batches: to train on.
        kind: the optimizer.
        rate: its rate.
        scale: what the loss reaches with outputs that ignore the input, and at least.
    """

    batches: Sequence[Batch]
    kind: OptimizerKind
    rate: float
    scale: tuple[float, float]


@dataclass(frozen=True, eq=False)
class Change:
    """One thing that is made different.

    Attributes:
        words: what, as it stands behind "with".
        apply: changes the model in place, with the draws of a seed, and returns the setting of the run.
        module: the path of the module, where it is one.
    """

    words: str
    apply: Callable[[nn.Module, Setting, int], Setting]
    module: str = ""


@dataclass(frozen=True, eq=False)
class Trial:
    """A change with its run so far.

    Attributes:
        change: what is different.
        setting: of the run.
        run: paused.
        experiment: to continue it.
    """

    change: Change
    setting: Setting
    run: PausedRun
    experiment: Experiment

    def final(self, step: int | None = None) -> float:
        """The mean loss of the last steps; infinite where it diverged."""
        steps = len(self.run.losses) if step is None else step
        cycle = len(self.setting.batches)
        return self.run.score(steps, cycle if cycle <= max(4, steps // 2) else max(1, steps // 3))

    def share(self, step: int | None = None) -> float:
        """What is left of the loss, as a share of what outputs leave that ignore the input."""
        constant, floor = self.setting.scale
        return (self.final(step) - floor) / (constant - floor) if constant > floor else math.inf

    @property
    def trains(self) -> bool:
        """Whether the loss is below what outputs reach that ignore the input."""
        return self.share() < 1 - LEARNT

    @property
    def shown(self) -> ExperimentRun:
        """The run as evidence."""
        outcome: Outcome = "trains" if self.trains else "undecided" if math.isfinite(self.final()) else "diverges"
        words = self.change.words
        return ExperimentRun(words, self.setting.kind.name, self.run.rate, self.run.losses, self.final(), outcome)


NOTHING = Change("nothing changed", lambda model, setting, seed: setting)


class Bench:  # a class, because the experiments share one start and count what they cost
    """Tries changes on a model, which its user puts back.

    Attributes:
        model: the network.
        loss: a name, a callable, or None.
        given: the user's setting.
        budget: gradients in all.
        spent: gradients so far.
        trials: every trial, in order.
    """

    def __init__(
        self, model: nn.Module, loss: Loss, given: Setting, budget: float, deadline: float, tell: Callable[[str], None]
    ) -> None:
        self.model, self.loss, self.given = model, loss, given
        self.budget, self.spent, self.deadline, self.tell = budget, 0.0, deadline, tell
        self.restore = snapshot(model)
        self.trials: list[Trial] = []

    @property
    def left(self) -> float:
        """Gradients that may still be taken."""
        return 0.0 if from_first(time.monotonic() > self.deadline) else self.budget - self.spent

    def tried(self, change: Change, steps: int, seed: int = 0) -> Trial | None:
        """Make a change and train; None where it cannot be made or the budget is spent."""
        if self.left < steps:
            return None
        self.restore()
        self.tell(f"trying: {change.words}")
        try:
            setting = change.apply(self.model, self.given, seed)
            start = snapshot(self.model)
            experiment = Experiment(self.model, setting.batches, self.loss, setting.kind.make, start, seed)
            return self.advanced(Trial(change, setting, started(experiment, setting.rate), experiment), steps)
        except (UserCodeError, RuntimeError, ValueError):
            return None
        finally:
            self.restore()

    def advanced(self, trial: Trial, steps: int) -> Trial:
        """Continue a trial up to a number of steps in all, as far as the budget allows."""
        until = min(steps, len(trial.run.losses) + int(self.left))
        try:
            run = continued(trial.experiment, trial.run, until)
        finally:
            self.restore()
        self.spent += len(run.losses) - len(trial.run.losses)
        after = replace(trial, run=run)
        self.trials = [t for t in self.trials if t.run is not trial.run] + [after]
        return after


def scale_of(free: FreeOutputs | None, first: float) -> tuple[float, float]:
    """What the loss reaches with outputs that ignore the input, and at least; from the first loss where unknown."""
    floors = [] if free is None else [f for f in (free.confined, free.least) if f is not None and math.isfinite(f)]
    floor = floors[0] if floors else min(0.0, first - abs(first))
    if free is not None and free.constant is not None:
        if floor >= free.constant:  # no lower one was found: it is not known
            floor = min(0.0, free.constant - abs(free.constant))
        return free.constant, floor
    return first - FALLEN * abs(first - floor), floor
