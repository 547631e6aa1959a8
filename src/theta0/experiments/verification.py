"""Train briefly around a suggested learning rate, to see whether it holds."""

from collections.abc import Iterable, Sequence
from typing import Any

from torch import nn

from theta0._batches import held_out, initialised, load_batches
from theta0._losses import Loss, checked
from theta0._models import Step, unwrapped
from theta0._state import preserve_state
from theta0._training import Run, short_run
from theta0.curvature.learning_rate import LearningRate

FACTORS = (0.5, 1.0, 2.0, 4.0)


def verify_learning_rate(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss,
    suggestion: LearningRate,
    *,
    step: Step | None = None,
    factors: Sequence[float] = FACTORS,
    steps: int = 50,
    max_batches: int | None = 32,
) -> tuple[Run, ...]:
    """Short runs from the model's start at multiples of a suggested rate; the model is left as it was.

    Args:
        model: the network.
        batches: `(inputs, targets)` batches; the last quarter is held out.
        loss: a name, a callable, or None where the model returns its own.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        suggestion: gives the optimizer and the rate.
        factors: what the rate is multiplied by.
        steps: of each run.
        max_batches: how many batches are read; None reads all.

    Returns:
        One run per factor.

    Raises:
        ValueError: on a step count below 1, or data that cannot be split.
    """
    if suggestion.value is None:
        raise ValueError(f"suggestion: expected a rate, got none ({suggestion.reason}); there is nothing to verify")
    if steps < 1:
        raise ValueError(f"steps: expected at least 1, got {steps}")
    inner = initialised(unwrapped(model))
    train, verify = held_out(load_batches(batches, inner, max_batches=max_batches, step=step))
    runs = []
    for factor in factors:
        with preserve_state(inner):
            rate = factor * suggestion.value
            run = short_run(inner, train, verify, checked(loss), optimizer=suggestion.optimizer, rate=rate, steps=steps)
        runs.append(run)
    return tuple(runs)
