"""What an output can reach: the interval to which the last operations confine it, followed through a forward pass."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F


@dataclass(frozen=True)
class Interval:
    """Between which values every entry of a tensor lies, whatever the weights before it become.

    Attributes:
        low: the least.
        high: the largest.
        by: the name of the operation that confines it.
        length: that of the vectors that it holds, where a normalisation made them along one axis; 0 where none did.
        cosine: whether it holds (multiples of) inner products of such vectors.
    """

    low: float
    high: float
    by: str
    length: float = 0.0
    cosine: bool = False


_BOUNDS: Mapping[str, tuple[float, float]] = {
    "softmax": (0.0, 1.0),
    "softmin": (0.0, 1.0),
    "gumbel_softmax": (0.0, 1.0),
    "sigmoid": (0.0, 1.0),
    "expit": (0.0, 1.0),
    "hardsigmoid": (0.0, 1.0),
    "tanh": (-1.0, 1.0),
    "softsign": (-1.0, 1.0),
    "sin": (-1.0, 1.0),
    "cos": (-1.0, 1.0),
    "relu": (0.0, math.inf),
    "relu6": (0.0, 6.0),
    "softplus": (0.0, math.inf),
    "exp": (0.0, math.inf),
    "abs": (0.0, math.inf),
    "square": (0.0, math.inf),
    "gelu": (-0.17, math.inf),
    "silu": (-0.279, math.inf),
    "mish": (-0.309, math.inf),
    "log_softmax": (-math.inf, 0.0),
    "logsigmoid": (-math.inf, 0.0),
    "log_sigmoid": (-math.inf, 0.0),
}
# Names under which entries are moved, averaged or picked, so that the interval stays.
_MOVING = frozenset(
    [
        "view",
        "reshape",
        "squeeze",
        "unsqueeze",
        "flatten",
        "unflatten",
        "transpose",
        "permute",
        "t",
        "contiguous",
        "clone",
        "__getitem__",
        "float",
        "double",
        "half",
        "to",
        "type",
        "movedim",
        "moveaxis",
        "swapaxes",
        "expand",
        "repeat",
        "mean",
        "chunk",
        "split",
        "unbind",
        "select",
        "narrow",
        "gather",
        "index_select",
        "detach",
        "cpu",
        "cuda",
        "type_as",
        "view_as",
        "amax",
        "amin",
        "max_pool1d",
        "max_pool2d",
        "adaptive_avg_pool1d",
        "adaptive_avg_pool2d",
        "avg_pool1d",
        "avg_pool2d",
        "max_pool2d_with_indices",
        "boolean_dispatch",
        "dropout",
        "__get__",
        "stack",
        "cat",
        "concat",
        "where",
        "mT",
        "expand_as",
    ]
)
_PRODUCTS = frozenset(["matmul", "mm", "bmm", "__matmul__", "linear", "einsum", "cosine_similarity"])
_Known = Callable[[Any], Interval | None]


def interval_of(function: Any, arguments: Sequence[Any], options: Mapping[str, Any], known: _Known) -> Interval | None:
    """The interval of what a function returns.

    Args:
        function: a torch function or method.
        arguments: its positional arguments.
        options: its keyword arguments.
        known: gives the interval of an argument, None where there is none.

    Returns:
        The interval; None where the function does not confine its result.
    """
    name = str(getattr(function, "__name__", ""))
    name = name if name.startswith("_") else name.removesuffix("_")
    if name in _BOUNDS:
        low, high = _BOUNDS[name]
        return Interval(low, high, name)
    if name == "normalize" and function is F.normalize:
        return Interval(-1.0, 1.0, "normalize", length=1.0)
    if name == "leaky_relu" or not arguments:
        return None
    if name in ("clamp", "clip", "hardtanh"):
        return _clamped(name, arguments, options, known)
    if name in _PRODUCTS:
        return _product(name, arguments, known)
    if name in _MOVING or function is Tensor.__getitem__:
        moved = _moved(arguments, known)
        averaged = moved is not None and (name == "mean" or "avg_pool" in name)
        return replace(moved, by=f"mean of {moved.by}") if moved is not None and averaged else moved
    return _affine(name.strip("_"), arguments, known)


def _clamped(name: str, arguments: Sequence[Any], options: Mapping[str, Any], known: _Known) -> Interval:
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


def _product(name: str, arguments: Sequence[Any], known: _Known) -> Interval | None:
    factors = arguments[1:3] if name == "einsum" else arguments[:2]
    if name == "cosine_similarity":
        return Interval(-1.0, 1.0, name, cosine=True)
    found = [known(factor) for factor in factors]
    size = math.prod(0.0 if interval is None else interval.length for interval in found)
    return Interval(-size, size, "normalize", cosine=True) if len(found) == 2 and size > 0 else None


def _moved(arguments: Sequence[Any], known: _Known) -> Interval | None:
    first = arguments[0]
    parts = first if isinstance(first, (tuple, list)) else [a for a in arguments if isinstance(a, Tensor)]
    found = [known(part) for part in parts if isinstance(part, Tensor) and part.is_floating_point()]
    if not found or any(interval is None for interval in found):
        return None
    intervals = [interval for interval in found if interval is not None]
    low, high = min(i.low for i in intervals), max(i.high for i in intervals)
    return replace(intervals[0], low=low, high=high)


def _affine(name: str, arguments: Sequence[Any], known: _Known) -> Interval | None:
    """Sums with, and multiples by, a single number, which counts as it is now."""
    if name == "neg":
        found = known(arguments[0])
        return None if found is None else _scaled(found, -1.0)
    if len(arguments) < 2:
        return None
    for this, other, swapped in ((arguments[0], arguments[1], False), (arguments[1], arguments[0], True)):
        interval, number = known(this), _number(other)
        if interval is None or number is None or not math.isfinite(number):
            continue
        if name in ("mul", "rmul", "imul"):
            return _scaled(interval, number)
        if name in ("div", "truediv", "true_divide", "itruediv") and not swapped and number != 0:
            return _scaled(interval, 1 / number)
        if name in ("add", "radd", "iadd"):
            return replace(interval, low=interval.low + number, high=interval.high + number, length=0.0)
        if name in ("sub", "isub", "rsub"):
            turned = swapped != (name == "rsub")
            moved = _scaled(interval, -1.0) if turned else interval
            shift = number if turned else -number
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


@dataclass(frozen=True)
class Reach:
    """How low a standard loss can get with outputs in an interval.

    Attributes:
        kind: cross_entropy, bce, nll or difference (squared and absolute errors, by their squares).
        interval: where the outputs lie.
        best: the least loss, were every output chosen freely within it.
        floor: the least loss of unconfined outputs.
        scale: the loss of a guess that ignores the input, which makes the gap a share.
    """

    kind: str
    interval: Interval
    best: float
    floor: float
    scale: float

    @property
    def gap(self) -> float:
        """What cannot be reached, as a share of the guess's loss."""
        return (self.best - self.floor) / self.scale if self.scale > 0 else 0.0


def reach(kind: str, outputs: Tensor, targets: Tensor, interval: Interval) -> Reach | None:
    """The least loss within an interval, in closed form.

    Cross-entropy over C classes: log(1 + (C-1) exp(low - high)); of inner products of unit vectors, whose other
    classes cannot all lie opposite, low is -high/(C-1) (the simplex). Binary cross-entropy and squared error: the best
    output for each target is the unconfined best, clamped to the interval.

    Returns:
        The reach; None where targets and outputs do not match.
    """
    low, high = interval.low, interval.high
    if kind in ("cross_entropy", "nll"):
        classes = outputs.shape[1 if outputs.dim() > 1 else 0]
        if classes < 2:
            return None
        if kind == "nll":
            return Reach(kind, interval, -high, 0.0, math.log(classes))
        low = max(low, -high / (classes - 1)) if interval.cosine or interval.length else low
        best = math.log1p((classes - 1) * math.exp(low - high)) if math.isfinite(high - low) else 0.0
        return Reach(kind, interval, best, 0.0, math.log(classes))
    if targets.shape != outputs.shape or not targets.numel():
        return None
    t = targets.detach().double()
    if kind == "bce":
        chosen = torch.logit(t.clamp(0, 1)).clamp(max(low, -1e4), min(high, 1e4))
        best = float(F.binary_cross_entropy_with_logits(chosen, t.clamp(0, 1)))
        floor = float((torch.special.entr(t.clamp(0, 1)) + torch.special.entr(1 - t.clamp(0, 1))).mean())
        return Reach(kind, interval, best, floor, math.log(2))
    best = float((t.clamp(low, high) - t).square().mean())
    return Reach("difference", interval, best, 0.0, float(t.reshape(len(t), -1).var(0, correction=0).mean()))
