"""The interval to which the last operations confine a tensor, whatever the weights before it become."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor

from theta0._trace.functions import SPECS, Spec
from theta0._trace.interpreter import Step


@dataclass(frozen=True)
class Interval:
    """Between which values every entry of a tensor lies, whatever the weights before it become.

    Attributes:
        low: the least.
        high: the largest.
        by: the name of the operation that confines it.
        length: that of the vectors that it holds, where a normalisation made them along one axis; 0 where none did.
        cosine: whether it holds (multiples of) inner products of such vectors.
        layer: the path of the module in which that operation runs; "" for the model itself, the loss, or unknown.
    """

    low: float
    high: float
    by: str
    length: float = 0.0
    cosine: bool = False
    layer: str = field(default="", compare=False)


_HIDDEN = -1e4
IntervalOf = Callable[[Any], Interval | None]


def interval_of(
    function: Callable[..., Any], arguments: Sequence[Any], options: Mapping[str, Any], known: IntervalOf
) -> Interval | None:
    """The interval of what a function returns, from those `known` of its arguments; None where it is not confined."""
    spec = SPECS.get(function)
    if spec is None:
        name = getattr(function, "__name__", "").rstrip("_")
        if name in ("masked_fill", "fill_diagonal") and arguments:
            return known(arguments[0]) if _hides(arguments[-1], options) else None
        return _moved(arguments, known) if name == "__get" else None
    if spec.role == "cosine":
        return Interval(-1.0, 1.0, spec.name, cosine=True)
    if spec.range is not None:
        return Interval(*spec.range, spec.name, length=1.0 if spec.role == "normalize" else 0.0)
    if not arguments:
        return None
    if spec.name in ("clamp", "clip", "hardtanh"):
        return _clamped(spec.name, arguments, options, known)
    if spec.role == "multiply" and len(arguments) > 1 and all(_length(known(a)) for a in arguments[:2]):
        product = _product(arguments[:2], known)  # entry by entry: a sum of them is an inner product
        return None if product is None else replace(product, length=product.high)
    if spec.name == "sum" and _length(known(arguments[0])) and getattr(known(arguments[0]), "cosine", False):
        summed = known(arguments[0])
        return None if summed is None else replace(summed, length=0.0)
    if spec.role == "multilinear":
        return _product(arguments[1:3] if spec.name == "einsum" else arguments[:2], known)
    if spec.keeps_range:
        moved = _moved(arguments, known)
        return replace(moved, by=f"mean of {moved.by}") if moved is not None and spec.averages else moved
    return _affine(spec, arguments, known)


def _hides(value: Any, options: Mapping[str, Any]) -> bool:
    """Whether entries are filled with what a softmax gives nothing: what is left keeps its interval."""
    number = _number(options.get("value", options.get("fill_value", value)))
    return number is not None and number <= _HIDDEN


def _clamped(name: str, arguments: Sequence[Any], options: Mapping[str, Any], known: IntervalOf) -> Interval:
    names = ("min_val", "max_val") if name == "hardtanh" else ("min", "max")
    before = known(arguments[0])
    limits = [-1.0, 1.0] if name == "hardtanh" else [-math.inf, math.inf]
    for place, (key, position) in enumerate(zip(names, (1, 2), strict=True)):
        given = options.get(key, arguments[position] if len(arguments) > position else None)
        value = _number(given)
        limits[place] = limits[place] if value is None else value
    if before is not None:
        limits = [max(limits[0], before.low), min(limits[1], before.high)]
    return Interval(limits[0], limits[1], name)


def _length(interval: Interval | None) -> float:
    return 0.0 if interval is None else interval.length


def _product(factors: Sequence[Any], known: IntervalOf) -> Interval | None:
    intervals = [known(factor) for factor in factors]
    size = math.prod(0.0 if interval is None else interval.length for interval in intervals)
    names = [interval.by for interval in intervals if interval is not None]
    return Interval(-size, size, names[0], cosine=True) if len(intervals) == 2 and size > 0 else None


def _moved(arguments: Sequence[Any], known: IntervalOf) -> Interval | None:
    first = arguments[0]
    parts = first if isinstance(first, (tuple, list)) else [a for a in arguments if isinstance(a, Tensor)]
    found = [known(part) for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if not found or any(interval is None for interval in found):
        return None
    intervals = [interval for interval in found if interval is not None]
    low, high = min(i.low for i in intervals), max(i.high for i in intervals)
    return replace(intervals[0], low=low, high=high)


def _affine(spec: Spec, arguments: Sequence[Any], known: IntervalOf) -> Interval | None:
    """Sums with, and multiples by, a single number, which counts as it is now."""
    if spec.role == "negate":
        interval = known(arguments[0])
        return None if interval is None else _scaled(interval, -1.0)
    if len(arguments) < 2:
        return None
    for this, other, swapped in ((arguments[0], arguments[1], False), (arguments[1], arguments[0], True)):
        interval, number = known(this), _number(other)
        if interval is None or number is None or not math.isfinite(number):
            continue
        if spec.role == "multiply":
            return _scaled(interval, number)
        if spec.role == "divide" and not swapped and number != 0:
            return _scaled(interval, 1 / number)
        if spec.role == "add":
            return replace(interval, low=interval.low + number, high=interval.high + number, length=0.0)
        if spec.role == "subtract":
            negated = swapped != spec.reversed
            moved = _scaled(interval, -1.0) if negated else interval
            shift = number if negated else -number
            return replace(moved, low=moved.low + shift, high=moved.high + shift, length=0.0)
    return None


def _scaled(interval: Interval, factor: float) -> Interval:
    if factor == 0:
        return replace(interval, low=0.0, high=0.0)
    ends = sorted((interval.low * factor, interval.high * factor))
    return replace(interval, low=ends[0], high=ends[1], length=interval.length * abs(factor))


def _number(value: Any) -> float | None:
    if isinstance(value, (int, float)) and not isinstance(value, bool):
        return float(value)
    return float(value.detach()) if isinstance(value, Tensor) and value.numel() == 1 else None


def unit_after_division(step: Step, results: Sequence[Tensor]) -> Interval | None:
    """Rows of length one, or of at most one, that a division x / ‖x‖ has made."""
    if step.spec is None or step.spec.role != "divide" or len(step.arguments) < 2 or len(results) != 1:
        return None
    divisor, result = step.arguments[1], results[0]
    if isinstance(divisor, Tensor) and divisor.numel() == 1 and result.dim() > 1 and result.numel() > 1:
        whole = abs(float(torch.linalg.vector_norm(result.detach())) - 1) < 1e-3
        return Interval(-1.0, 1.0, "a norm of the whole tensor", length=1.0) if whole else None
    if not isinstance(divisor, Tensor) or divisor.dim() != result.dim() or result.dim() < 2 or result.shape[-1] < 2:
        return None
    if divisor.shape[-1] != 1 or not bool(((result.detach().norm(dim=-1) - 1).abs() < 1e-3).all()):
        return None
    return Interval(-1.0, 1.0, "normalize", length=1.0)
