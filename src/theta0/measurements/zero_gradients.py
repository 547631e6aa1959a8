"""Which gradients are zero for good, and not only at the first step."""

from collections.abc import Collection

import torch
from torch import nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state
from theta0._training import steps_from

STEPS = 2  # after which a gradient that is zero by design, as behind a factor that starts at zero, is not


def still_zero(
    model: nn.Module,
    batch: Batch,
    loss: Loss,
    names: Collection[str],
    *,
    optimizer: str = "sgd",
    rate: float = 0.01,
) -> list[str]:
    """Which of these parameters have a gradient of exactly zero, also after a few steps; the model is left as it was.

    Those on which the loss does not depend have none, and are left out.
    """
    with preserve_state(model), torch.enable_grad():
        steps_from(model, [batch], loss, optimizer=optimizer, rate=rate, steps=STEPS)
        named = dict(model.named_parameters())
        value, _ = loss_of(model, batch, loss)
        gradients = torch.autograd.grad(value, [named[name] for name in names], allow_unused=True)
    return [name for name, g in zip(names, gradients, strict=True) if g is not None and not bool(g.any())]
