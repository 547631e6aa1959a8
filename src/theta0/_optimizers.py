"""Which of the known optimizers a user's name, class, factory or instance is, and at which rate."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from theta0._training import OPTIMIZERS, checked_optimizer

OptimizerLike = str | type[torch.optim.Optimizer] | torch.optim.Optimizer | Callable[..., Any]
_KNOWN: dict[type[torch.optim.Optimizer], str] = {
    torch.optim.SGD: "sgd",
    torch.optim.Adam: "adam",
    torch.optim.AdamW: "adamw",
    torch.optim.RMSprop: "rmsprop",
}


@dataclass(frozen=True)
class Recognized:
    """What a user's optimizer is.

    Attributes:
        name: the known kind; the nearest one where `known` is False.
        rate: its learning rate; None where it has none of its own.
        known: whether the bound of its stability is known.
        shown: its own name.
    """

    name: str
    rate: float | None
    known: bool
    shown: str


def recognized_optimizer(optimizer: OptimizerLike | None, model: nn.Module) -> Recognized:
    """Which kind of optimizer one is.

    Args:
        optimizer: a name in any case, a class of `torch.optim`'s kind, a factory (parameters → optimizer), or an
            optimizer, which is read only; None is SGD.
        model: whose parameters a class or factory is called with.

    Returns:
        The kind.

    Raises:
        ValueError: if it is none of these.
    """
    if optimizer is None:
        return Recognized("sgd", None, True, "sgd")
    if isinstance(optimizer, str):
        return _by_name(optimizer, model)
    if isinstance(optimizer, torch.optim.Optimizer):
        return _described(optimizer, float(optimizer.param_groups[0]["lr"]))
    parameters = [p for p in model.parameters() if p.requires_grad] or [nn.Parameter(torch.zeros(1))]
    if isinstance(optimizer, type) and issubclass(optimizer, torch.optim.Optimizer):
        maker: Any = optimizer  # torch declares no `lr` for the base class
        return _described(maker(parameters, lr=1e-3), None)
    factory: Any = optimizer
    made = factory(parameters) if callable(factory) else None
    if not isinstance(made, torch.optim.Optimizer):
        raise ValueError(
            f"optimizer: expected one of {', '.join(OPTIMIZERS)}, an optimizer class, a function from parameters to an "
            f"optimizer, or an optimizer, got {optimizer!r:.100}"
        )
    return _described(made, float(made.param_groups[0]["lr"]))


def _by_name(name: str, model: nn.Module) -> Recognized:
    """One of the known names, or a class of torch's, in any case."""
    lower = name.lower()
    if lower in OPTIMIZERS:
        return Recognized(lower, None, True, lower)
    classes = {
        kind.__name__.lower(): kind
        for kind in vars(torch.optim).values()
        if isinstance(kind, type) and issubclass(kind, torch.optim.Optimizer) and kind is not torch.optim.Optimizer
    }
    if lower in classes:
        return recognized_optimizer(classes[lower], model)
    return Recognized(checked_optimizer(name), None, True, name)  # says which names there are


def _described(made: torch.optim.Optimizer, rate: float | None) -> Recognized:
    options, shown = made.param_groups[0], type(made).__name__
    name = next((known for kind, known in _KNOWN.items() if type(made) is kind), None)
    if name == "sgd" and options["momentum"]:
        name = "momentum"
    if name is not None:
        return Recognized(name, rate, True, shown)
    adaptive = "betas" in options or "eps" in options
    return Recognized("adam" if adaptive else "sgd", rate, False, shown)
