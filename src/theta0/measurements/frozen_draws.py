"""Frozen weights that still are what they were drawn as, in front of those that are trained."""

import math
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of
from theta0._state import preserve_state

_LEAST = 128  # entries: of fewer the largest may be anywhere
_EDGE = 20.0  # entries that would lie beyond the largest one seen, were the bound there
# Nodes of views and casts, which may lie between a weight and the function that applies it.
_CASTS = ("TBackward", "Transpose", "Permute", "View", "UnsafeView", "ReshapeAlias", "ToCopy", "Unsqueeze", "Alias")


def is_drawn(weight: Tensor) -> bool:
    """Whether a weight is what torch's default, Glorot's or He's uniform draw makes, and was not changed since.

    Each fills an interval to its ends. A weight that was trained has entries beyond, or no longer that spread.
    """
    if weight.dim() < 2 or weight.numel() < _LEAST or not weight.is_floating_point():
        return False
    fan_in = weight[0].numel()
    fan_out = weight.shape[0] * math.prod(weight.shape[2:])
    largest, spread = float(weight.abs().max()), float(weight.double().square().mean().sqrt())
    bounds = (1 / math.sqrt(fan_in), math.sqrt(6 / (fan_in + fan_out)), math.sqrt(6 / fan_in))
    tolerance = 3 / math.sqrt(weight.numel())
    return any(
        bound * (1 - _EDGE / weight.numel()) <= largest <= bound * (1 + 1e-5)
        and abs(spread * math.sqrt(3) / bound - 1) < tolerance
        for bound in bounds
    )


def feeds_trained(model: nn.Module, batch: Batch, loss: Loss, frozen: Mapping[str, nn.Parameter]) -> bool:
    """Whether a trained weight is applied to what frozen ones make of the data; the model is left as it was.

    So it is of features below a head, and not of a target network, whose outputs meet others in the loss alone.
    """
    trained = {id(p) for p in model.parameters() if p.requires_grad}
    with preserve_state(model), torch.enable_grad():
        try:
            for parameter in frozen.values():
                parameter.requires_grad_(True)
            value, _ = loss_of(model, batch, loss)
            return _meet(value.grad_fn, {id(p) for p in frozen.values()}, trained)
        finally:
            for parameter in frozen.values():
                parameter.requires_grad_(False)


def _meet(root: Any, frozen: set[int], trained: set[int]) -> bool:
    """Whether a node of the graph applies a trained parameter to what depends on a frozen one."""
    reaches: dict[Any, bool] = {}
    waiting = [root]
    while waiting:
        node = waiting[-1]
        children = [child for child, _ in node.next_functions if child is not None]
        left = [child for child in children if child not in reaches]
        if left:
            waiting += left
            continue
        waiting.pop()
        reaches[node] = id(getattr(node, "variable", None)) in frozen or any(reaches[child] for child in children)
        if any(reaches[child] for child in children) and any(_applies(child, trained) for child in children):
            return True
    return False


def _applies(node: Any, trained: set[int]) -> bool:
    """Whether a node is a trained parameter, or a view or a cast of one."""
    while node is not None and node.name().startswith(_CASTS):
        node = node.next_functions[0][0]
    return id(getattr(node, "variable", None)) in trained
