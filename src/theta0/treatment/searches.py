"""Starts that a search finds, as remedies: nothing in `ANSWERS` that a cheap remedy answers is answered by one."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch, initialised, materialised
from theta0._losses import Loss, name_of
from theta0._randomness import Randomness
from theta0._state import transaction
from theta0.initializers.gradinit import gradinit_
from theta0.initializers.metainit import metainit_
from theta0.initializers.mmd import mmd_
from theta0.initializers.nio import nio_
from theta0.initializers.random_labels import random_labels_
from theta0.treatment.writing import InapplicableError

Search = Callable[..., nn.Module]
STEPS = 300  # of mmd and random-labels; lee2023mmd, section 4, makes five epochs of MNIST: 9,375
PERTURBATIONS = 64  # the paper's 256 are four times the work; after 300 steps the loss is about the same
_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.BCEWithLogitsLoss)  # whatever their settings: `name_of` knows the default ones


def searched(initializer: Search, *, classes: bool = False, **defaults: Any) -> Search:
    """Make a remedy of an initializer that searches: all or nothing, also when interrupted.

    Args:
        initializer: `name_(model, batches, loss, *, generator, report, …)`.
        classes: whether it is for classifiers only.
        defaults: its options, where they are other than its own.

    Returns:
        The remedy; further keywords are the initializer's options. It raises an `InapplicableError` for what is no
        classifier where `classes`, and what the initializer raises.
    """

    def search_(
        model: nn.Module,
        batches: Iterable[Any],
        loss: Loss = None,
        *,
        generator: Randomness = None,
        report: Callable[[Any], None] | None = None,
        **options: Any,
    ) -> nn.Module:
        inner = initialised(model)
        if classes:
            _require_classes(materialised(batches, inner, max_batches=1)[0], loss)
        with transaction(inner), torch.enable_grad():
            initializer(inner, batches, loss, generator=generator, report=report, **(defaults | options))
        return model

    return search_


def cost_of(told: Sequence[Any]) -> float | None:
    """The cost in gradients of making a start, if its method tells it.

    Args:
        told: what the method reported.

    Returns:
        The cost; None where nothing was told.
    """
    costs = [getattr(result, "cost", None) for result in told]
    return next((float(cost) for cost in costs if isinstance(cost, (int, float))), None)


def _require_classes(batch: Batch, loss: Loss) -> None:
    name, targets = name_of(loss), batch.targets
    if name == "cross_entropy" or isinstance(loss, nn.CrossEntropyLoss):  # whatever its settings, and soft labels too
        return
    numbers = isinstance(targets, Tensor) and targets.is_floating_point()
    if name is not None or isinstance(loss, _REGRESSION) or numbers:
        told = loss if isinstance(loss, (str, nn.Module)) else name
        found = f"targets of type {targets.dtype}" if numbers and told is None else f"the loss {told!r}"
        raise InapplicableError(
            f"expected a classifier of two classes or more, got {found}; this start spreads the classes that a softmax "
            "predicts: take nio, gradinit or unit-variance"
        )


# 100 steps on at most 16 batches for those of scales (26 of 30 small networks had a higher GradCosine then).
SEARCHES: Mapping[str, Search] = {
    "nio": searched(nio_),
    "gradinit": searched(gradinit_),
    "metainit": searched(metainit_),
    "mmd": searched(mmd_, classes=True, steps=STEPS, perturbations=PERTURBATIONS),
    "random-labels": searched(random_labels_, classes=True, steps=STEPS),
}
