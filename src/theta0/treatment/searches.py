"""Starts that a search finds, as remedies: no rule that a cheap remedy answers names one."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import torch
from torch import nn

from theta0._batches import initialised
from theta0._losses import Loss
from theta0._randomness import Randomness
from theta0._state import transaction
from theta0.initializers.initialize import INITIALIZERS
from theta0.treatment.results import Applied

Search = Callable[..., Applied]
STEPS = 300  # of mmd and random-labels; lee2023mmd, section 4, makes five epochs of MNIST: 9,375
PERTURBATIONS = 64  # the paper's 256 are four times the work; after 300 steps the loss is about the same


def searched(name: str, **defaults: Any) -> Search:
    """Make a remedy of an initializer that searches: all or nothing, also when interrupted.

    The remedy's further keywords are the initializer's options, `defaults` those that are other than its own. It raises
    what the initializer raises.
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
        with transaction(inner), torch.enable_grad():
            done = INITIALIZERS[name](inner, batches, loss, generator=generator, **(defaults | options))
            if getattr(done, "interrupted", False):
                raise KeyboardInterrupt
        kept = bool(getattr(done, "kept", True))
        return Applied(cost=done.cost, kept=kept, reason="" if kept else done.refusal)

    return search


# 100 steps on at most 16 batches for those of scales (26 of 30 small networks had a higher GradCosine then).
SEARCHES: Mapping[str, Search] = {
    "nio": searched("nio"),
    "gradinit": searched("gradinit"),
    "metainit": searched("metainit"),
    "mmd": searched("mmd", steps=STEPS, perturbations=PERTURBATIONS),
    "random-labels": searched("random-labels", steps=STEPS),
}
