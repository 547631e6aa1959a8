"""What φ and φ' are, for modules, functionals and methods alike; which nonlinearities are bounded."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

_NAMES = (
    "relu",
    "relu6",
    "gelu",
    "silu",
    "mish",
    "elu",
    "selu",
    "celu",
    "leaky_relu",
    "rrelu",
    "prelu",
    "softplus",
    "hardtanh",
    "hardswish",
    "hardsigmoid",
    "softsign",
    "tanhshrink",
    "threshold",
    "logsigmoid",
    "tanh",
    "sigmoid",
)


def _table() -> dict[Callable[..., Any], str]:
    """Every callable by which torch offers an elementwise nonlinearity, in place or not."""
    table: dict[Callable[..., Any], str] = {}
    for name in _NAMES:
        for owner in (F, torch, Tensor, torch.special):
            for spelling in (name, name + "_"):
                function = getattr(owner, spelling, None)
                if callable(function):
                    table[function] = name
    table[torch.special.expit] = "sigmoid"
    return table


NONLINEARITIES: Mapping[Callable[..., Any], str] = _table()

# The largest slope of each nonlinearity that is bounded on both sides and meant to be: a unit can saturate there.
BOUNDED: Mapping[str, float] = {"tanh": 1.0, "sigmoid": 0.25, "softsign": 1.0, "hardtanh": 1.0, "hardsigmoid": 1 / 6}


def is_bounded(name: str, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether saturation may be asked of a nonlinearity; ReLU6 is a `hardtanh` from 0 and is not counted.

    Returns:
        True for sigmoid, tanh and their like.
    """
    if name == "hardtanh":
        lowest = options.get("min_val", arguments[0] if arguments else -1.0)
        return float(lowest) < 0
    return name in BOUNDED


def slope(function: Callable[..., Any], z: Tensor, arguments: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
    """φ'(z), elementwise.

    Args:
        function: a key of `NONLINEARITIES`.
        z: its input, of any shape; left as it is, also when the function works in place.
        arguments: its further positional arguments.
        options: its keyword arguments.

    Returns:
        The derivative, of the shape of `z`.
    """
    if NONLINEARITIES[function] == "relu":
        return z.detach() > 0
    with torch.enable_grad():
        leaf = z.detach().clone().requires_grad_()
        inputs = leaf.clone()  # in-place forms may not write to a leaf
        constants = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
        (derivative,) = torch.autograd.grad(function(inputs, *constants, **options).sum(), leaf)
    return derivative


def is_saturated(name: str, derivative: Tensor) -> Tensor:
    """Where a bounded nonlinearity's slope is below 5 % of its maximum.

    Returns:
        A boolean tensor of the derivative's shape.
    """
    return derivative < 0.05 * BOUNDED[name]
