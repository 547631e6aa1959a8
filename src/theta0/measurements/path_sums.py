"""The sum over all paths from inputs to outputs of the product of absolute weights, by one forward pass."""

import math
from collections.abc import Callable, Mapping
from typing import Any

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional as F
from torch.utils._pytree import tree_map

from theta0._trace.functions import Role
from theta0._trace.slopes import largest_slope
from theta0.measurements.signal_flow import SignalStep, flow, ones_for, refuse

_CONVOLUTIONS = {1: F.conv1d, 2: F.conv2d, 3: F.conv3d}
_AVERAGES = {1: F.adaptive_avg_pool1d, 2: F.adaptive_avg_pool2d, 3: F.adaptive_avg_pool3d}


def path_sum(model: nn.Module, example: Any = None) -> Float[Tensor, ""]:
    """Σ over paths Π|w| of a model: absolute weights, without biases, on a sample of ones (furusho2020thesis, eq. 7).

    Of `example` only the shape counts. The sum is differentiable with respect to the weights.
    """
    outputs, _ = flow(model, ones_for(model, example), absolute)
    return outputs.sum()


def absolute(step: SignalStep) -> tuple[Any, None]:
    """What a function makes of path sums: its linear part in absolute value."""
    if step.role not in _RULES:
        refuse(step.function, step.place, "expected a function that scales, adds or moves its input")
    return _RULES[step.role](step), None


def operand_free(step: SignalStep, change: Callable[[Any], Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """The arguments of a linear map without its bias, every operand changed but the one that carries the signal."""
    if len(step.signals) != 1 or sum(map(step.carries, _flat(step.arguments, step.options))) != 1:
        refuse(step.function, step.place, "expected a product with a weight and not of two signals")
    arguments, options = list(step.arguments), dict(step.options)
    if step.spec.kind in ("linear", "conv", "conv_transpose"):
        frozen = arguments[3:]
        weights = [a if step.carries(a) else change(a) for a in arguments[:2]]
        arguments = [*weights, None, *frozen] if len(arguments) > 2 else weights
        options.pop("bias", None)
        if "weight" in options:
            options["weight"] = change(options["weight"])
        return tuple(arguments), options

    if step.spec.bias is not None:  # addmm, whose first argument is added
        arguments[0] = torch.zeros_like(arguments[0])

    def changed(value: Any) -> Any:
        plain = isinstance(value, (Tensor, int, float)) and not isinstance(value, bool)
        return change(value) if plain and not step.carries(value) else value

    return tree_map(changed, tuple(arguments)), {key: changed(value) for key, value in options.items()}


def window_sums(step: SignalStep) -> Tensor:
    """What max-pooling makes of path sums: a path may enter by any entry of the window."""
    x, function = _input(step), step.function
    axes = _axes(step)
    given = {**dict(zip(("kernel_size", "stride", "padding", "dilation"), step.arguments[1:], strict=False))}
    given |= {key: value for key, value in step.options.items() if key not in ("input", "return_indices")}
    kernel = _each(given["kernel_size"], axes)
    stride = _each(given.get("stride") or kernel, axes)
    padding, dilation = _each(given.get("padding", 0), axes), _each(given.get("dilation", 1), axes)
    shape = function(x, kernel, stride, padding, dilation, bool(given.get("ceil_mode", False))).shape[-axes:]
    ends = [(o - 1) * s + d * (k - 1) + 1 for o, s, d, k in zip(shape, stride, dilation, kernel, strict=True)]
    sides = [(p, max(0, e - n - p)) for p, e, n in zip(padding, ends, x.shape[-axes:], strict=True)]
    padded = F.pad(x, [side for pair in reversed(sides) for side in pair])
    lead = padded.shape[: x.dim() - axes]
    flat = padded.reshape(math.prod(lead), 1, *padded.shape[-axes:])
    sums = _CONVOLUTIONS[axes](flat, x.new_ones(1, 1, *kernel), stride=stride, dilation=dilation)
    for axis, size in enumerate(shape, start=2):
        sums = sums.narrow(axis, 0, size)
    return sums.reshape(*lead, *shape)


def batch_norm_scale(step: SignalStep) -> Tensor:
    """|γ| / √(σ² + ε) with the running variance, the factor of a batch normalisation in evaluation form."""
    names = ("input", "running_mean", "running_var", "weight", "bias", "training", "momentum", "eps")
    given = {"weight": None, "eps": 1e-5, **dict(zip(names, step.arguments, strict=False)), **step.options}
    variance = given["running_var"]
    if variance is None or step.carries(variance) or step.carries(given["weight"]):
        refuse(step.function, step.place, "expected batch normalisation with running statistics")
    scale: Tensor = (variance + given["eps"]).rsqrt()
    scale = scale if given["weight"] is None else scale * given["weight"].abs()
    return scale.view(-1, *[1] * (given["input"].dim() - 2))


def _positive(step: SignalStep) -> Any:
    if step.options.get("mode") == "bicubic":
        refuse(step.function, step.place, "expected interpolation with positive weights and not bicubic")
    return step.function(*step.arguments, **step.options)


def _padded(step: SignalStep) -> Tensor:
    mode = step.options.get("mode", step.arguments[2] if len(step.arguments) > 2 else "constant")
    return F.pad(_input(step), step.options.get("pad", step.arguments[1] if len(step.arguments) > 1 else ()), mode)


def _stretched(step: SignalStep) -> Tensor:
    x, factor = _input(step), largest_slope(step.spec, step.arguments, step.options)
    if _in_place(step):
        return x if isinstance(factor, float) and factor == 1 else x.mul_(factor)
    return x * factor


def _copied(step: SignalStep) -> Tensor:
    x = _input(step)
    return x if _in_place(step) else x.clone()  # what is done to the copy in place must not be done to x


def _multiplied(step: SignalStep) -> Any:
    arguments, options = operand_free(step, abs)
    return step.function(*arguments, **options)


def _divided(step: SignalStep) -> Any:
    if not step.carries(step.arguments[0]) or len(step.signals) != 1 or step.arguments[1] is step.arguments[0]:
        refuse(step.function, step.place, "expected a division by a constant")
    return step.function(step.arguments[0], abs(step.arguments[1]))


def _added(step: SignalStep) -> Tensor:
    terms = [_linear_part(step, a) for a in step.arguments[:2]]
    if len(terms) < 2:
        terms.append(_linear_part(step, step.options["other"]))
    factor = abs(step.options.get("alpha", 1))
    if _in_place(step):
        first: Tensor = step.arguments[0]
        if not step.carries(first):
            refuse(step.function, step.place, "expected a signal to be changed in place and not a constant")
        return first.add_(terms[1] * factor)
    total: Tensor = terms[0] + (terms[1] if factor == 1 else terms[1] * factor)
    return total


def _joined(step: SignalStep) -> Any:
    parts = [_linear_part(step, part) for part in step.options.get("tensors", step.arguments[:1] and step.arguments[0])]
    rest = {key: value for key, value in step.options.items() if key != "tensors"}
    return step.function(parts, *step.arguments[1:], **rest)


def _adaptive_sums(step: SignalStep) -> Tensor:
    x = _input(step)
    axes = _axes(step)
    means = _AVERAGES[axes](x, step.options.get("output_size", step.arguments[1] if len(step.arguments) > 1 else 1))
    for axis in range(-axes, 0):
        n, m = x.shape[axis], means.shape[axis]
        counts = [-(-(i + 1) * n // m) - i * n // m for i in range(m)]
        means = means * means.new_tensor(counts).view(-1, *[1] * (-axis - 1))
    return means


def _in_place(step: SignalStep) -> bool:
    name = getattr(step.function, "__name__", "")
    asked = step.options.get("inplace", False) or (
        step.role != "dropout" and any(a is True for a in step.arguments[1:])
    )
    return bool(asked) or name.startswith("__i") or (name.endswith("_") and not name.endswith("__"))


def _linear_part(step: SignalStep, term: Any) -> Any:
    if step.carries(term):
        return term
    return torch.zeros_like(term) if isinstance(term, Tensor) else 0


def _input(step: SignalStep) -> Tensor:
    found: Tensor = step.options["input"] if not step.arguments else step.arguments[0]
    if not step.carries(found):
        refuse(step.function, step.place, "expected the signal as the first argument")
    return found


def _flat(arguments: tuple[Any, ...], options: Mapping[str, Any]) -> list[Any]:
    nested = [*arguments, *options.values()]
    return [v for value in nested for v in (value if isinstance(value, (list, tuple)) else [value])]


def _axes(step: SignalStep) -> int:
    """How many spatial axes a pooling function has, by its name."""
    return int(next(sign for sign in step.function.__name__ if sign.isdigit()))


def _each(value: Any, axes: int) -> list[int]:
    values = [value] if isinstance(value, int) else list(value)
    return values * axes if len(values) == 1 else values


_RULES: Mapping[Role, Callable[[SignalStep], Any]] = {
    "positive": _positive,
    "negate": _copied,
    "pad": _padded,
    "nonlinearity": _stretched,
    "dropout": _copied,
    "multilinear": _multiplied,
    "multiply": _multiplied,
    "divide": _divided,
    "add": _added,
    "subtract": _added,
    "join": _joined,
    "max_pool": window_sums,
    "adaptive_max_pool": _adaptive_sums,
    "batch_norm": lambda step: _input(step) * batch_norm_scale(step),
}
