"""A longer run at one rate: does it gain a set share of what there is to learn?"""

import math
from collections.abc import Sequence

from torch import nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._state import preserve_state
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.probe import ExperimentRun, Outcome
from theta0.experiments.runs import continued, prepared, started

_RUNGS = (10, 20, 30, 40)


def longer_run(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, kind: OptimizerKind, rate: float, *, goal: float, most: int
) -> ExperimentRun | None:
    """Train until the mean loss of the last batches comes below a goal, 40 steps at most.

    Args:
        model: the network; it is left as it was.
        batches: to train on, in turn.
        loss: a name, a callable or None.
        kind: the optimizer.
        rate: its rate.
        goal: a loss.
        most: steps, at most.

    Returns:
        The run, whose outcome is "trains" where it came below the goal, "diverges" or "undecided"; None where training
        raises.
    """
    cycle = len(batches)
    with preserve_state(model):
        experiment = prepared(model, batches, loss, kind.make)
        run = started(experiment, rate)
        try:
            for until in _RUNGS:
                run = continued(experiment, run, min(until, most))
                reached = math.inf if run.diverged else run.score(len(run.losses), min(cycle, len(run.losses)))
                if run.diverged or reached < goal or len(run.losses) >= most:
                    break
        except (UserCodeError, RuntimeError):
            return None
    outcome: Outcome = "diverges" if run.diverged else "trains" if reached < goal else "undecided"
    return ExperimentRun("", kind.name, rate, run.losses, reached, outcome)
