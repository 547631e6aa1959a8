"""Why a torch function made a number that is not finite: where it is defined, and where its derivative is."""

import math
from typing import Any

import torch
from torch import Tensor
from torch.nn import functional as F

from theta0._trace.interpreter import Step

_INF = math.inf
# Where functions of one number are defined: the least and the largest value, whether these belong to it, and in words.
_DOMAINS: dict[str, tuple[float, float, bool, str]] = {
    **dict.fromkeys(("log", "log2", "log10"), (0.0, _INF, False, "above 0")),
    "log1p": (-1.0, _INF, False, "above -1"),
    "sqrt": (0.0, _INF, True, "of 0 or more"),
    "rsqrt": (0.0, _INF, False, "above 0"),
    **dict.fromkeys(("acos", "arccos", "asin", "arcsin"), (-1.0, 1.0, True, "from -1 to 1")),
    **dict.fromkeys(("atanh", "arctanh", "erfinv"), (-1.0, 1.0, False, "between -1 and 1")),
    **dict.fromkeys(("acosh", "arccosh"), (1.0, _INF, True, "of 1 or more")),
    "logit": (0.0, 1.0, False, "between 0 and 1"),
}
_NORMS = ("norm", "vector_norm", "linalg_norm", "linalg_vector_norm", "cdist", "pairwise_distance", "dist")
_SLOPES: dict[str, str] = {
    "sqrt": "the derivative of a square root is infinite at 0; add a small number inside the root",
    "rsqrt": "the derivative of 1/√x is infinite at 0; add a small number inside the root",
    **dict.fromkeys(_NORMS, "the derivative of a norm is not defined for a vector of zeros; add a small number inside"),
    **dict.fromkeys(("std", "var_mean", "std_mean"), "the derivative of a standard deviation is not defined where all "
    "values are equal; take the root of the variance plus a small number"),
    **dict.fromkeys(("pow", "rpow", "float_power"), "the derivative of a power is infinite at 0 where the exponent is "
    "below 1 (and not defined at a negative base); keep the base away from 0"),
    **dict.fromkeys(("atan2", "arctan2"), "the derivative of atan2 is not defined where both arguments are 0"),
    **dict.fromkeys(("acos", "arccos", "asin", "arcsin"), "its derivative is infinite at -1 and 1; clamp the argument "
    "to a little inside"),
    **dict.fromkeys(("log", "log2", "log10", "log1p", "logit"), "the derivative of a logarithm is infinite at 0; "
    "values that `where` sets aside afterwards still get it (0 × ∞ is NaN): replace the argument before the logarithm"),
    **dict.fromkeys(("div", "truediv", "true_divide", "reciprocal"), "the derivative of a quotient is infinite where "
    "the divisor is 0; values that `where` sets aside afterwards still get it: replace the divisor before dividing"),
    "exp": "it is past the largest number; values that `where` sets aside afterwards still get a gradient (0 × ∞ is "
    "NaN): clamp the argument before the exponential",
    "prod": "the derivative of a product is taken by dividing by its factors, and one is 0",
}  # fmt: skip


def infinite_slope(name: str) -> str:
    """Why an operation's derivative is not finite though what arrives is; "" where that is not known."""
    return _SLOPES.get(name, "")


def reason(step: Step, nan: bool, kind: torch.dtype) -> str:
    """Why a step that has just run has a result that is not finite.

    Args:
        step: the step; in-place functions have overwritten their first argument.
        nan: whether the result holds NaN, or infinities only.
        kind: the result's number format.

    Returns:
        A clause that follows the operation's name; "" where it is not known.
    """
    name = step.spec.name if step.spec is not None else step.name
    name = name.strip("_").removeprefix("special_")
    tensors = [t.detach() for t in step.tensors if t.is_floating_point()]
    explain = _REASONS.get(step.spec.role if step.spec is not None else "") or _REASONS.get(name)
    found = _domain(name, step) or (explain(step) if explain is not None else "")
    return found or _nothing(name, tensors) or (_infinities(tensors) if nan else _overflow(tensors, kind))


def _domain(name: str, step: Step) -> str:
    if name not in _DOMAINS or not step.arguments or step.function is getattr(Tensor, f"{name}_", None):
        return _power(step) if name in ("pow", "float_power") else ""
    x = step.arguments[0]
    low, high, closed, words = _DOMAINS[name]
    if not isinstance(x, Tensor) or not x.numel():
        return ""
    x = x.detach()
    outside = (x < low) | (x > high) if closed else (x <= low) | (x >= high)
    if not bool(outside.any()):
        return ""
    shown = x[outside]
    least, most = float(shown.min()), float(shown.max())
    span = f"{least:.3g}" if least == most else f"{least:.3g} to {most:.3g}"
    return f"it takes values {words}, and {int(outside.sum())} of {x.numel()} are {span}"


def _power(step: Step) -> str:
    base = step.arguments[0] if step.arguments else None
    if isinstance(base, Tensor) and base.is_floating_point() and bool((base.detach() < 0).any()):
        return f"a negative number ({float(base.detach().min()):.3g}) has no power that is not whole"
    if isinstance(base, Tensor) and bool((base.detach() == 0).any()):
        return "0 has no negative power"
    return ""


def _quotient(step: Step) -> str:
    divisor = step.arguments[0] if step.name in ("reciprocal", "__rtruediv__", "__rdiv__") else step.arguments[1]
    zeros = int((divisor.detach() == 0).sum()) if isinstance(divisor, Tensor) else int(divisor == 0)
    count = divisor.numel() if isinstance(divisor, Tensor) else 1
    return f"the divisor is 0 ({zeros} of {count} entries)" if zeros else ""


def _softmax(step: Step) -> str:
    x = step.arguments[0] if step.arguments else step.options.get("input")
    if isinstance(x, Tensor) and bool(torch.isneginf(x.detach()).any()):
        return (
            "a row holds nothing but -inf: all that it runs over is masked, as of a sample that is padding only; "
            "leave one entry unmasked, or mask with a large finite number"
        )
    return ""


def _attention(step: Step) -> str:
    masks = [t for t in step.tensors if t.dtype is torch.bool or (t.is_floating_point() and _has_minus_inf(t))]
    if not masks:
        return ""
    return (
        "the mask hides every position from a query, so that its softmax runs over nothing but -inf, as of a sample "
        "that is padding only; leave one entry unmasked"
    )


def _loss(step: Step) -> str:
    outputs, targets = step.argument((0, "input")), step.argument((1, "target"))
    if step.function is F.ctc_loss:
        lengths, wanted = step.argument((2, "input_lengths")), step.argument((3, "target_lengths"))
        least, most = torch.as_tensor(lengths).min(), torch.as_tensor(wanted).max()
        return f"targets of up to {int(most)} labels do not fit into outputs of {int(least)} steps; set zero_infinity"
    if isinstance(outputs, Tensor) and isinstance(targets, Tensor) and _has_minus_inf(outputs):
        return (
            "no output can meet a target whose class is masked by -inf (or whose probability is 0): mask the target too"
        )
    if isinstance(targets, Tensor) and not targets.is_floating_point() and not bool((targets >= 0).any()):
        return "the mean runs over nothing: every target is ignored"
    return ""


def _nothing(name: str, tensors: list[Tensor]) -> str:
    if any(t.numel() == 0 for t in tensors):
        return "it runs over nothing: the tensor is empty"
    if name in ("std", "var", "std_mean", "var_mean"):
        return "it is of a single value, which has no spread; correction=0 makes it 0"
    return ""


def _overflow(tensors: list[Tensor], dtype: torch.dtype) -> str:
    if not tensors or not dtype.is_floating_point:
        return ""
    info, largest = torch.finfo(dtype), max(float(t.abs().max()) for t in tensors if t.numel())
    kind = str(dtype).removeprefix("torch.")
    size = f"; what goes in is up to {largest:.3g}" if math.isfinite(largest) else ""
    return f"the result is past the largest number of {kind}, {info.max:.5g}{size}"


def _infinities(tensors: list[Tensor]) -> str:
    if any(bool(torch.isinf(t).any()) for t in tensors):
        return "it combines infinities (∞ - ∞, 0 × ∞ or ∞ / ∞)"
    return ""


def _has_minus_inf(tensor: Tensor) -> bool:
    return tensor.is_floating_point() and bool(torch.isneginf(tensor.detach()).any())


_REASONS: dict[str, Any] = {
    "divide": _quotient,
    "reciprocal": _quotient,
    "rtruediv": _quotient,
    "softmax": _softmax,
    "logsumexp": _softmax,
    "attention": _attention,
    "loss": _loss,
    "ctc_loss": _loss,
}
