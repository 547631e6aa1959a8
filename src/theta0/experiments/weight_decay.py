"""Weight decay that holds a network back: short runs with it and without it."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import nn

from theta0._batches import Batch
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._state import preserve_state
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.runs import continued, prepared, started

PULL = 1.0  # times the norm of the loss's gradient: decay that is weaker is not asked about
SHRINKING = 0.01  # of the weights in a step, by decay that stands beside the gradient, as AdamW's
STEPS, _FEWEST = 40, 16


@dataclass(frozen=True)
class DecayRuns:
    """Training with the user's weight decay and without it, everything else the same.

    Attributes:
        steps: of each run.
        first: the mean loss of the first cycle of batches, as they are met.
        held: that of the last cycle with decay; infinite where that run diverges.
        free: the same without it.
        cost: in gradients.
    """

    steps: int
    first: float
    held: float
    free: float
    cost: float


def without_decay(kind: OptimizerKind) -> OptimizerKind:
    """The same optimizer with `weight_decay=0` in all groups.

    Returns:
        The kind.
    """

    def made(parameters: list[nn.Parameter], rate: float) -> torch.optim.Optimizer:
        optimizer = kind.make(parameters, rate)
        for group in optimizer.param_groups:
            group["weight_decay"] = 0.0
        return optimizer

    return replace(kind, make=made, decay=0.0)


def decay_runs(
    model: nn.Module, batches: Sequence[Batch], loss: Loss, kind: OptimizerKind, rate: float, *, most: int
) -> DecayRuns | None:
    """Train briefly with weight decay and without. The model is left as it was.

    Args:
        model: the network, in the mode in which it is trained.
        batches: to train on, in turn.
        loss: a name, a callable or None.
        kind: the optimizer, with decay.
        rate: its rate.
        most: gradients for both runs.

    Returns:
        Both runs; None where there are too few gradients, training raises, or it diverges without decay.
    """
    steps, cycle = min(STEPS, most // 2), len(batches)
    if steps < max(_FEWEST, 2 * cycle):
        return None
    reached: list[float] = []
    first = math.nan
    with preserve_state(model):
        for one in (kind, without_decay(kind)):
            experiment = prepared(model, batches, loss, one.make)
            try:
                run = continued(experiment, started(experiment, rate), steps)
            except (UserCodeError, RuntimeError, ValueError):
                return None
            finally:
                experiment.restore()
            first = run.score(cycle, cycle)
            reached.append(math.inf if run.diverged else run.score(steps, cycle))
    if not math.isfinite(reached[1]):
        return None
    return DecayRuns(steps, first, reached[0], reached[1], 2.0 * steps)
