"""Penalties by name and coefficient, as a command line gives them."""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any

from torch import Tensor, nn

from theta0._batches import load_batches
from theta0._models import unwrapped, without_labels
from theta0.regularizers.l1_norm import l1_norm
from theta0.regularizers.l2_norm import l2_norm
from theta0.regularizers.path_norm import path_norm

_PLAIN = {"l2": l2_norm, "l1": l1_norm}


def penalties_from(
    texts: Sequence[str], model: nn.Module, batches: Iterable[Any]
) -> dict[str, Callable[[nn.Module], Tensor]]:
    """Penalties from texts like "l2:0.03", ready to be added to a loss.

    Args:
        texts: a name of `REGULARIZERS`, a colon, a coefficient.
        model: the network that they are for.
        batches: its data, whose first batch gives the path norm its sizes.

    Returns:
        By text, `model -> coefficient times penalty`.

    Raises:
        ValueError: a text is no such pair.

    Example:
        >>> import torch
        >>> model = torch.nn.Linear(2, 1, bias=False)
        >>> model.weight.data = torch.tensor([[3.0, 4.0]])
        >>> penalty = penalties_from(["l2:0.1"], model, [torch.zeros(1, 2)])["l2:0.1"]
        >>> round(penalty(model).item(), 4)
        0.5
    """
    found: dict[str, Callable[[nn.Module], Tensor]] = {}
    for text in texts:
        name, _, factor = text.partition(":")
        try:
            coefficient = float(factor)
        except ValueError:
            coefficient = -1.0
        if name not in ("l2", "l1", "path") or not 0 <= coefficient < float("inf"):
            raise ValueError(f"penalty: expected l2:C, l1:C or path:C with a coefficient C of at least 0, got {text!r}")
        penalty: Callable[..., Tensor] = _PLAIN.get(name, path_norm)
        if name == "path":
            first = load_batches(batches, unwrapped(model), max_batches=1)[0]
            penalty = partial(path_norm, example=without_labels(first.inputs))
        penalty(model)  # what it cannot follow is said now, not in the middle of a training
        found[text] = partial(_times, coefficient, penalty)
    return found


def _times(coefficient: float, penalty: Callable[[nn.Module], Tensor], model: nn.Module) -> Tensor:
    return coefficient * penalty(model)
