"""What each node of the autograd graph does to the gradient on its way back: where it is lost, where it overflows."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from theta0._models import graph_nodes


@dataclass(frozen=True, eq=False)
class NodePassage:
    """One node that a backward pass went through.

    Attributes:
        node: the node.
        outputs_finite: whether the gradients that arrive are finite.
        inputs_finite: whether those that it passes on are.
        outputs_nonzero: whether one that arrives is not zero.
        inputs_nonzero: of each edge on, whether the gradient passed along it is not zero.
    """

    node: Any
    outputs_finite: bool
    inputs_finite: bool
    outputs_nonzero: bool
    inputs_nonzero: tuple[bool, ...]


def watch_backward(value: Tensor, parameters: Sequence[Tensor], *, retain: bool = False) -> list[NodePassage]:
    """One backward pass from a loss, node by node, in the order in which they run.

    Args:
        value: the loss.
        parameters: what it is differentiated with respect to; their `.grad` is not touched.
        retain: whether its graph is kept; else it is used up.
    """
    seen: list[NodePassage] = []
    handles, nodes = [], list(graph_nodes([value]))
    for node in nodes:
        if hasattr(node, "variable"):
            continue

        def hook(inputs: Sequence[Tensor | None], outputs: Sequence[Tensor | None], node: Any = node) -> None:
            seen.append(
                NodePassage(node, _finite(outputs), _finite(inputs), any(map(_nonzero, outputs)), _each_nonzero(inputs))
            )

        handles.append(node.register_hook(hook))
    try:
        torch.autograd.grad(value, list(parameters), allow_unused=True, retain_graph=retain)
    finally:
        for handle in handles:
            handle.remove()
    return seen


def _finite(gradients: Sequence[Tensor | None]) -> bool:
    return all(bool(torch.isfinite(g).all()) for g in gradients if g is not None)


def _nonzero(gradient: Tensor | None) -> bool:
    return gradient is not None and bool(gradient.any())


def _each_nonzero(gradients: Sequence[Tensor | None]) -> tuple[bool, ...]:
    return tuple(_nonzero(gradient) for gradient in gradients)
