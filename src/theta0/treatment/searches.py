"""Starts that a search finds, as remedies: no rule that a cheap remedy answers names one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch, initialised, load_batches
from theta0._errors import InapplicableError
from theta0._losses import Loss, name_of
from theta0._randomness import Randomness
from theta0._state import transaction
from theta0.initializers.initialize import INITIALIZERS
from theta0.treatment.results import Applied

Search = Callable[..., Applied]
STEPS = 300  # of mmd and random-labels; lee2023mmd, section 4, makes five epochs of MNIST: 9,375
PERTURBATIONS = 64  # the paper's 256 are four times the work; after 300 steps the loss is about the same
_REGRESSION = (nn.MSELoss, nn.L1Loss, nn.BCEWithLogitsLoss)  # whatever their settings: `name_of` knows the default ones


def searched(name: str, *, classes: bool = False, **defaults: Any) -> Search:
    """Make a remedy of an initializer that searches: all or nothing, also when interrupted.

    The remedy's further keywords are the initializer's options, `defaults` those that are other than its own. It raises
    what the initializer raises and, where `classes`, an `InapplicableError` for what is no classifier.
    """

    def search(
        model: nn.Module,
        batches: Iterable[Any],
        loss: Loss = None,
        *,
        generator: Randomness = None,
        **options: Any,
    ) -> Applied:
        inner = initialised(model)
        if classes:
            _require_classes(load_batches(batches, inner, max_batches=1)[0], loss)
        with transaction(inner), torch.enable_grad():
            done = INITIALIZERS[name](inner, batches, loss, generator=generator, **(defaults | options))
            if getattr(done, "interrupted", False):
                raise KeyboardInterrupt
        kept = bool(getattr(done, "kept", True))
        return Applied(cost=done.cost, kept=kept, reason="" if kept else done.refusal)

    return search


def _require_classes(batch: Batch, loss: Loss) -> None:
    name, targets = name_of(loss), batch.targets
    if name == "cross_entropy" or isinstance(loss, nn.CrossEntropyLoss):  # whatever its settings, and soft labels too
        return
    numbers = isinstance(targets, Tensor) and targets.is_floating_point()
    if name is not None or isinstance(loss, _REGRESSION) or numbers:
        given = loss if isinstance(loss, (str, nn.Module)) else name
        found = f"targets of type {targets.dtype}" if numbers and given is None else f"the loss {given!r}"
        raise InapplicableError(
            f"expected a classifier of two classes or more, got {found}; this start spreads the classes that a softmax "
            "predicts: take nio, gradinit or unit-variance"
        )


# 100 steps on at most 16 batches for those of scales (26 of 30 small networks had a higher GradCosine then).
SEARCHES: Mapping[str, Search] = {
    "nio": searched("nio"),
    "gradinit": searched("gradinit"),
    "metainit": searched("metainit"),
    "mmd": searched("mmd", classes=True, steps=STEPS, perturbations=PERTURBATIONS),
    "random-labels": searched("random-labels", classes=True, steps=STEPS),
}
