"""Slopes of elementwise nonlinearities: φ' at given values, where it is zero, how large it can be."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from theta0._trace.functions import SPECS, Spec

_LEARNED = {"leaky_relu": ("negative_slope", 1), "elu": ("alpha", 1), "prelu": ("weight", 1), "rrelu": ("upper", 2)}
CLAMPS = ("clamp", "clip")
_SATURATED = 0.05  # of the largest slope: Glorot & Bengio (2010), section 3


def slope(function: Callable[..., Any], z: Tensor, arguments: Sequence[Any], options: Mapping[str, Any]) -> Tensor:
    """φ'(z), elementwise; z is left as it is, also when the function works in place."""
    if SPECS[function].name == "relu":
        return z.detach() > 0
    with torch.enable_grad():
        leaf = z.detach().clone().requires_grad_()
        inputs = leaf.clone()  # in-place forms may not write to a leaf
        constants = [a.detach() if isinstance(a, Tensor) else a for a in arguments]
        (derivative,) = torch.autograd.grad(function(inputs, *constants, **options).sum(), leaf)
    return derivative


def can_saturate(spec: Spec, arguments: Sequence[Any], options: Mapping[str, Any]) -> bool:
    """Whether a nonlinearity is bounded on both sides and meant to be; ReLU6, a `hardtanh` from 0, is not counted."""
    if spec.name in CLAMPS:
        return None not in limits(arguments, options)
    if spec.name == "hardtanh":
        lowest = options.get("min_val", arguments[0] if arguments else -1.0)
        return float(lowest) < 0
    return spec.maximal_slope > 0


def is_saturated(spec: Spec, derivative: Tensor) -> Tensor:
    """Where a bounded nonlinearity's slope is below 5 % of its maximum."""
    return derivative < _SATURATED * (spec.maximal_slope or 1.0)


def saturated_share(
    spec: Spec, z: Tensor, derivative: Tensor, arguments: Sequence[Any], options: Mapping[str, Any]
) -> float:
    """The share of its inputs at which it is flat; of a clamp from 0 or more, that of those above, as a rectifier's."""
    flat = is_saturated(spec, derivative)
    low = limits(arguments, options)[0] if spec.name in CLAMPS else None
    counted = flat if low is None or low < 0 else flat[z > low]
    return float(counted.float().mean()) if counted.numel() else 1.0


def limits(arguments: Sequence[Any], options: Mapping[str, Any]) -> tuple[float | None, float | None]:
    """The limits of a clamp; None for one that is missing or no number."""
    given = [options.get(key, arguments[n] if len(arguments) > n else None) for n, key in enumerate(("min", "max"))]
    numbers = [float(value) if isinstance(value, (int, float)) else None for value in given]
    return numbers[0], numbers[1]


def largest_slope(spec: Spec, arguments: Sequence[Any], options: Mapping[str, Any]) -> float | Tensor:
    """The factor by which a nonlinearity can stretch a difference, at least 1; a tensor for a learned slope."""
    if spec.name not in _LEARNED:
        return spec.steepest
    keyword, position = _LEARNED[spec.name]
    steep = options.get(keyword, arguments[position] if len(arguments) > position else 0.0)
    return steep.abs().max().clamp_min(1.0) if isinstance(steep, Tensor) else max(1.0, abs(float(steep)))
