"""Train briefly around a suggested learning rate, to see whether it holds."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from theta0._batches import Batch, held_out, initialised, load_batches
from theta0._losses import Loss, checked
from theta0._models import Step, unwrapped
from theta0._progress import time_limit
from theta0._ranks import on_every_rank
from theta0._state import preserve_state
from theta0._training import Run, checked_positive, count_gradients
from theta0.curvature.learning_rate import LearningRate
from theta0.experiments.optimizers import Optimizer, optimizer_kind, steppable
from theta0.experiments.runs import Experiment, continued, losses_at, prepared, started

FACTORS = (0.5, 1.0, 2.0, 4.0)


@on_every_rank
def verify_learning_rate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    suggestion: LearningRate,
    *,
    step: Step | None = None,
    optimizer: Optimizer | None = None,
    clip_norm: float | None = None,
    factors: Sequence[float] = FACTORS,
    steps: int = 50,
    seconds: float | None = None,
    max_batches: int | None = 32,
) -> tuple[Run, ...]:
    """Short runs from the model's start at multiples of a suggested rate; the model is left as it was.

    They are made as those that found the rate, but on three quarters of the batches, and judged by the others.

    Args:
        model: the network.
        batches: `(inputs, targets)` batches; the last quarter is held out.
        loss: a name, a callable, or None where the model returns its own.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        suggestion: gives the rate, and the optimizer's name.
        optimizer: a class, a factory or an optimizer to be mirrored, where a name does not say it all.
        clip_norm: to which you clip the gradient's norm before each step; None for no clipping.
        factors: what the rate is multiplied by.
        steps: of each run.
        seconds: that all may take; None for no limit.
        max_batches: how many batches are read; None reads all.

    Returns:
        One run per factor, without those in which the time ended or for which there was none.

    Raises:
        ValueError: on a step count below 1, or data that cannot be split.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import suggest_learning_rate
        >>> found = suggest_learning_rate(model, batches, "cross_entropy", steps=100)
        >>> runs = verify_learning_rate(model, batches, "cross_entropy", found, factors=(0.5, 1), steps=5)
        >>> len(runs)
        2
    """
    if suggestion.value is None:
        raise ValueError(f"suggestion: expected a rate, got none ({suggestion.reason}); there is nothing to verify")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    limit = checked_positive(seconds, "seconds")
    inner = initialised(unwrapped(model))
    train, held = held_out(load_batches(batches, inner, max_batches=max_batches, step=step))
    chosen = suggestion.optimizer if optimizer is None else optimizer
    kind = steppable(optimizer_kind(chosen, inner, clip_norm=clip_norm))
    with preserve_state(inner), time_limit(limit):
        experiment = prepared(inner, train, checked(loss), kind.make)
        before = _mean(experiment, held)
        rates = [factor * suggestion.value for factor in factors]
        runs = [_verified(experiment, held, kind.name, rate, steps, before) for rate in rates]
        return tuple(run for run in runs if run is not None)


def _verified(
    experiment: Experiment, held: Sequence[Batch], name: str, rate: float, steps: int, before: float
) -> Run | None:
    run = continued(experiment, started(experiment, rate), steps)
    if len(run.losses) < steps and not run.diverged:
        return None
    after = math.inf if run.diverged else _mean(experiment, held)
    cost = count_gradients(len(run.losses), forward=2 * len(held))
    return Run(name, rate, run.losses, after, before, cost)


def _mean(experiment: Experiment, held: Sequence[Batch]) -> float:
    return math.fsum(losses_at(replace(experiment, batches=held), range(len(held)))) / len(held)
