"""What a torch function does to a signal that flows through a network: scales it, adds to it, moves it, bends it."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

from theta0._nonlinearities import NONLINEARITIES

Role = Literal[
    "read",  # asks a tensor for its shape or type
    "positive",  # linear with nonnegative coefficients: moves entries, sums or averages them
    "pad",
    "nonlinearity",  # elementwise, with a largest slope
    "dropout",
    "multilinear",  # linear in each operand, of which one carries the signal
    "divide",
    "add",
    "subtract",
    "join",
    "max_pool",
    "adaptive_max_pool",
    "batch_norm",
]

# The largest |φ'| where it is above 1, rounded up; nonlinearities not named here have at most 1.
_STEEP = {"gelu": 1.129, "silu": 1.09984, "mish": 1.0885, "selu": 1.7581, "hardswish": 1.5}
_READ = "size dim numel stride is_floating_point is_contiguous register_hook retain_grad requires_grad_"
_POSITIVE = """view view_as reshape reshape_as flatten unflatten permute transpose t swapaxes swapdims movedim moveaxis
squeeze unsqueeze squeeze_ unsqueeze_ contiguous clone to type type_as float double half bfloat16 cpu cuda
expand expand_as broadcast_to repeat repeat_interleave tile roll flip narrow select index_select gather
split chunk unbind tensor_split split_with_sizes mean sum cumsum diagonal detach identity __getitem__ adjoint ravel
avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d interpolate upsample
pixel_shuffle pixel_unshuffle channel_shuffle unfold fold"""
_NONLINEARITIES = "abs abs_ absolute sin cos atan arctan arctan_ clamp clamp_ clamp_min clamp_min_ clip clip_"
_DROPOUT = "dropout dropout_ dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout"
_MULTILINEAR = """linear conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d matmul mm bmm mv einsum
mul mul_ multiply multiply_ __mul__ __rmul__ __imul__ __matmul__ __rmatmul__"""
_SPELLED: dict[Role, str] = {
    "positive": _POSITIVE,
    "pad": "pad",
    "nonlinearity": _NONLINEARITIES,
    "dropout": _DROPOUT,
    "multilinear": _MULTILINEAR,
    "divide": "div div_ divide divide_ true_divide true_divide_ __truediv__ __itruediv__",
    "add": "add add_ __add__ __radd__ __iadd__",
    "subtract": "sub sub_ subtract subtract_ __sub__ __rsub__ __isub__ rsub",
    "join": "cat concat concatenate stack hstack vstack dstack",
    "max_pool": "max_pool1d max_pool2d max_pool3d",
    "adaptive_max_pool": "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d",
    "batch_norm": "batch_norm",
}
_OWNERS = (F, torch, Tensor, torch.special)


def _found(names: Iterable[str]) -> Iterable[Callable[..., Any]]:
    return (getattr(owner, name) for name in names for owner in _OWNERS if callable(getattr(owner, name, None)))


def _table() -> dict[Callable[..., Any], Role]:
    table: dict[Callable[..., Any], Role] = {}
    for role, names in _SPELLED.items():
        table.update(dict.fromkeys(_found(names.split()), role))
    table.update({function: "nonlinearity" for function, name in NONLINEARITIES.items() if name != "threshold"})
    table.update(dict.fromkeys(_found(_READ.split()), "read"))
    for name in ("T", "mT", "H", "mH", "data"):
        table[getattr(Tensor, name).__get__] = "positive"
    table.update({function: "positive" for function in (torch.neg, Tensor.neg, Tensor.__neg__)})  # in absolute value
    return table


ROLES: Mapping[Callable[..., Any], Role] = _table()
BIASED: frozenset[Callable[..., Any]] = frozenset(
    _found([n for n in _MULTILINEAR.split() if n[:4] in ("line", "conv")])
)
NEGATED: frozenset[Callable[..., Any]] = frozenset((torch.neg, Tensor.neg, Tensor.__neg__))


def largest_slope(
    function: Callable[..., Any], arguments: tuple[Any, ...], options: Mapping[str, Any]
) -> float | Tensor:
    """The factor by which a nonlinearity can stretch a difference, at least 1.

    Args:
        function: one whose role is "nonlinearity".
        arguments: its positional arguments, the input first.
        options: its keyword arguments.

    Returns:
        The largest |φ'|, or 1 where that is smaller; a tensor for a learned slope.
    """
    name = NONLINEARITIES.get(function, "")
    keyword = {"leaky_relu": "negative_slope", "elu": "alpha", "prelu": "weight", "rrelu": "upper"}.get(name)
    if keyword is None:
        return _STEEP.get(name, 1.0)
    position = 2 if name == "rrelu" else 1
    steep = options.get(keyword, arguments[position] if len(arguments) > position else 0.0)
    return steep.abs().max().clamp_min(1.0) if isinstance(steep, Tensor) else max(1.0, abs(float(steep)))
