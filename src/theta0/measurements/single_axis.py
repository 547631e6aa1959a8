"""Functions of several numbers that are given one at a time."""

from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, trace
from theta0._trace.operations import Operation, operation_of

_ALONG = frozenset(
    ("softmax", "log_softmax", "logsumexp", "logcumsumexp", "cumsum", "cumprod", "cummax", "cummin", "sort", "argsort")
)


def single_axis(model: nn.Module, batch: Batch, loss: Loss) -> Operation | None:
    """The first function of a step that runs along an axis of length one, where it leaves each number alone.

    As a softmax over the one logit of each sample, or a sum over times along the axis of a column. The model is left
    bit-identical. Cost: one forward pass.

    Returns:
        The function; None where there is none, of those that put numbers of an axis together.
    """
    found: list[Operation] = []

    def after(step: Step, result: Any) -> None:
        tensor, axis = step.argument((0, "input")), step.argument((1, "dim"))
        if found or step.name not in _ALONG or not isinstance(tensor, Tensor) or not isinstance(axis, int):
            return
        if tensor.requires_grad and tensor.numel() > 1 and tensor.shape[axis] == 1:
            found.append(operation_of(step))

    with preserve_state(model), torch.enable_grad(), trace(model, Handler(after=after)):
        loss_of(model, batch, loss)
    return found[0] if found else None
