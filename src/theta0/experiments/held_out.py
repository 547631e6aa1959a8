"""Outputs of a briefly trained network on samples that it was not trained on."""

from collections.abc import Sequence

import torch
from torch import Tensor, nn

from theta0._batches import Batch, checked_forward
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._models import main_output
from theta0._state import preserve_state
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.runs import continued, prepared, started


def outputs_after_training(
    model: nn.Module,
    batches: Sequence[Batch],
    held_out: Sequence[Batch],
    loss: Loss,
    kind: OptimizerKind,
    rate: float,
    *,
    steps: int,
) -> list[Tensor | None] | None:
    """Train on some batches and run the network, in evaluation mode, on others; the model is left as it was.

    Args:
        model: the network.
        batches: to train on, in turn.
        held_out: to run it on afterwards.
        loss: a name, a callable or None.
        kind: the optimizer.
        rate: its rate.
        steps: of training.

    Returns:
        The main output of each batch held out; None where training raises or diverges.
    """
    with preserve_state(model):
        experiment = prepared(model, batches, loss, kind.make)
        try:
            run = continued(experiment, started(experiment, rate), steps)
            if run.diverged:
                return None
            model.eval()
            with torch.no_grad():
                return [main_output(checked_forward(model, batch)) for batch in held_out]
        except (UserCodeError, RuntimeError, ValueError):
            return None
