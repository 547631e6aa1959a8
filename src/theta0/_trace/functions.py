"""What each torch function does: the one table that every pass over a network reads."""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor
from torch.nn import functional as F

Role = Literal[
    "query",  # asks a tensor for its shape or type
    "positive",  # linear with nonnegative coefficients: moves entries, sums or averages them
    "negate",
    "pad",
    "nonlinearity",  # elementwise, with a largest slope
    "elementwise",  # elementwise, without one
    "softmax",
    "dropout",
    "multilinear",  # linear in each operand: matrix products, convolutions
    "multiply",  # elementwise
    "divide",
    "add",
    "subtract",
    "compare",
    "choose",  # one of two tensors, entry by entry
    "join",
    "extremum",
    "max_pool",
    "adaptive_max_pool",
    "batch_norm",
    "norm",  # statistics of one sample
    "normalize",  # vectors of length one
    "cosine",
    "embedding",
    "recurrent",
    "attention",
    "loss",
]
Argument = tuple[int, str]  # position and keyword


@dataclass(frozen=True)
class Spec:
    """What is known of a torch function.

    Attributes:
        name: its name, the same for the function, the method and the in-place form.
        role: what it does.
        input: where the tensor is that it is applied to.
        weight: where it takes a weight that makes, or scales, what it returns.
        bias: where it takes what is added to the result unit by unit.
        kind: of a weight's application: linear, conv, conv_transpose, embedding or matmul; of a loss: cross_entropy,
            bce, nll or difference.
        unit_axis: the axis of the result that runs over units: from the end for applications of a weight, from the
            start for normalizations; None where the affine parameters are aligned with the last axes.
        activation: whether it is one of the elementwise nonlinearities that follow layers.
        range: between which values every entry of the result lies, whatever the input is.
        keeps_range: whether entries are moved, picked or averaged, so that the input's range stays.
        averages: whether an entry of the result is a mean of several.
        relayout: whether the same numbers are only laid out anew.
        steepest: the largest |φ'| of a nonlinearity, rounded up; at least 1.
        alive: on which side of the input axis a nonlinearity's slope is not zero, where that is a half-line.
        maximal_slope: of a nonlinearity that is bounded on both sides and meant to be: a unit can saturate there.
        reversed: whether the operands are swapped, as in `__rsub__`.
    """

    name: str
    role: Role
    input: Argument = (0, "input")
    weight: Argument | None = None
    bias: Argument | None = None
    kind: str = ""
    unit_axis: int | None = None
    activation: bool = False
    range: tuple[float, float] | None = None
    keeps_range: bool = False
    averages: bool = False
    relayout: bool = False
    steepest: float = 1.0
    alive: Literal["above", "below", ""] = ""
    maximal_slope: float = 0.0
    reversed: bool = False


_HOMES = (F, torch, Tensor, torch.special)
_ATTRIBUTES = ("T", "mT", "H", "mH", "data")
_INF = math.inf


def _named(role: Role, names: str, **known: Any) -> Iterator[Spec]:
    return (Spec(name, role, **known) for name in names.split())


def _specs() -> Iterator[Spec]:
    """Every spec, by the name under which torch offers the function."""
    yield from _named("query", "size dim numel stride is_floating_point is_contiguous register_hook retain_grad")
    yield from _named("query", "is_complex element_size storage_offset")
    relayouts = "view reshape flatten unsqueeze squeeze contiguous clone requires_grad_"
    yield from _named("positive", relayouts, keeps_range=True, relayout=True)
    moves = """view_as reshape_as unflatten permute transpose t swapaxes swapdims movedim moveaxis to type type_as float
    double half bfloat16 cpu cuda expand expand_as broadcast_to repeat repeat_interleave tile roll flip narrow select
    index_select gather split chunk unbind tensor_split split_with_sizes diagonal detach identity __getitem__ adjoint
    ravel pixel_shuffle pixel_unshuffle channel_shuffle"""
    yield from _named("positive", moves, keeps_range=True)
    pools = "avg_pool1d avg_pool2d avg_pool3d adaptive_avg_pool1d adaptive_avg_pool2d adaptive_avg_pool3d"
    yield from _named("positive", f"mean {pools}", keeps_range=True, averages=True)
    yield from _named("positive", "sum cumsum interpolate upsample unfold fold")
    yield from _named("negate", "neg __neg__")
    yield Spec("pad", "pad")
    yield from _activations()
    yield from _weighted()
    yield from _elementwise()
    yield from _norms()
    yield from _joins()
    yield from _named("recurrent", "lstm gru rnn_tanh rnn_relu")
    yield Spec("scaled_dot_product_attention", "attention")
    projection: dict[str, Any] = {"weight": (11, "out_proj_weight"), "bias": (12, "out_proj_bias")}
    yield Spec("multi_head_attention_forward", "attention", **projection)
    yield from (Spec(name, "loss", kind=kind) for name, kind in _LOSSES.items())


def _elementwise() -> Iterator[Spec]:
    yield from _named("nonlinearity", "sin cos", range=(-1.0, 1.0))
    yield from _named("nonlinearity", "abs absolute", range=(0.0, _INF))
    yield from _named("nonlinearity", "atan arctan clamp clamp_min clip")
    yield from _named("elementwise", "exp square", range=(0.0, _INF))
    yield from _named("softmax", "softmax softmin gumbel_softmax", range=(0.0, 1.0))
    yield Spec("log_softmax", "softmax", range=(-_INF, 0.0))
    dropouts = """dropout dropout1d dropout2d dropout3d alpha_dropout feature_dropout feature_alpha_dropout"""
    yield from _named("dropout", dropouts, keeps_range=True)
    yield from _named("multiply", "mul multiply __mul__ __rmul__ __imul__")
    yield from _named("divide", "div divide true_divide __truediv__ __itruediv__")
    yield from _named("add", "add __add__ __radd__ __iadd__")
    yield from _named("subtract", "sub subtract __sub__ __isub__")
    yield from _named("subtract", "rsub __rsub__", reversed=True)
    yield from _named("compare", "eq __eq__")
    yield Spec("where", "choose", keeps_range=True)
    yield Spec("normalize", "normalize", range=(-1.0, 1.0))
    yield Spec("cosine_similarity", "cosine", range=(-1.0, 1.0))


def _joins() -> Iterator[Spec]:
    yield from _named("join", "cat concat concatenate stack hstack vstack dstack", keeps_range=True)
    yield from _named("extremum", "amax amin", keeps_range=True)
    yield from _named("max_pool", "max_pool1d max_pool2d max_pool3d", keeps_range=True)
    yield from _named("adaptive_max_pool", "adaptive_max_pool1d adaptive_max_pool2d adaptive_max_pool3d")


_LOSSES = {
    "cross_entropy": "cross_entropy",
    "binary_cross_entropy_with_logits": "bce",
    "nll_loss": "nll",
    "mse_loss": "difference",
    "l1_loss": "difference",
    "smooth_l1_loss": "difference",
    "huber_loss": "difference",
}


def _activations() -> Iterator[Spec]:
    half_lines: dict[str, dict[str, Any]] = {
        "relu": {"range": (0.0, _INF)},
        "gelu": {"range": (-0.17, _INF), "steepest": 1.129},
        "silu": {"range": (-0.279, _INF), "steepest": 1.09984},
        "mish": {"range": (-0.309, _INF), "steepest": 1.0885},
        "elu": {},
        "selu": {"steepest": 1.7581},
        "celu": {},
        "softplus": {"range": (0.0, _INF)},
        "hardswish": {"steepest": 1.5},
    }
    for name, known in half_lines.items():
        yield Spec(name, "nonlinearity", activation=True, alive="above", **known)
    yield from _named("nonlinearity", "logsigmoid log_sigmoid", activation=True, alive="below", range=(-_INF, 0.0))
    yield from _named("nonlinearity", "leaky_relu rrelu prelu tanhshrink", activation=True)
    yield Spec("relu6", "nonlinearity", activation=True, range=(0.0, 6.0))
    yield Spec("threshold", "elementwise", activation=True)
    yield Spec("hardtanh", "nonlinearity", activation=True, maximal_slope=1.0)
    bounded: tuple[tuple[str, float, tuple[float, float]], ...] = (
        ("tanh", 1.0, (-1.0, 1.0)),
        ("softsign", 1.0, (-1.0, 1.0)),
        ("sigmoid", 0.25, (0.0, 1.0)),
        ("expit", 0.25, (0.0, 1.0)),
        ("hardsigmoid", 1 / 6, (0.0, 1.0)),
    )
    for name, slope, limits in bounded:
        yield Spec(name, "nonlinearity", activation=True, maximal_slope=slope, range=limits)


def _weighted() -> Iterator[Spec]:
    """Functions that apply a weight; the second operand of a matrix product may be one."""
    affine: dict[str, Any] = {"weight": (1, "weight"), "bias": (2, "bias")}
    yield Spec("linear", "multilinear", kind="linear", unit_axis=-1, **affine)
    for axes in (1, 2, 3):
        yield Spec(f"conv{axes}d", "multilinear", kind="conv", unit_axis=-1 - axes, **affine)
        yield Spec(f"conv_transpose{axes}d", "multilinear", kind="conv_transpose", unit_axis=-1 - axes, **affine)
    yield Spec("embedding", "embedding", kind="embedding", unit_axis=-1, weight=(1, "weight"))
    for name, keyword in (("matmul", "other"), ("mm", "mat2"), ("__matmul__", "other")):
        yield Spec(name, "multilinear", kind="matmul", unit_axis=-1, weight=(1, keyword))
    product: dict[str, Any] = {"input": (1, "mat1"), "weight": (2, "mat2"), "bias": (0, "input")}
    yield Spec("addmm", "multilinear", kind="matmul", unit_axis=-1, **product)
    yield from _named("multilinear", "bmm mv einsum __rmatmul__")


def _norms() -> Iterator[Spec]:
    running: dict[str, Any] = {"weight": (3, "weight"), "bias": (4, "bias"), "unit_axis": 1}
    yield Spec("batch_norm", "batch_norm", **running)
    yield Spec("instance_norm", "norm", **running)
    yield Spec("group_norm", "norm", weight=(2, "weight"), bias=(3, "bias"), unit_axis=1)
    yield Spec("layer_norm", "norm", weight=(2, "weight"), bias=(3, "bias"))
    yield Spec("rms_norm", "norm", weight=(2, "weight"))


def _spellings(spec: Spec) -> Iterable[Callable[..., Any]]:
    """The functions, methods and in-place forms that a spec stands for."""
    names = (spec.name,) if spec.name.startswith("_") or spec.name.endswith("_") else (spec.name, spec.name + "_")
    found = (getattr(home, name, None) for name in names for home in _HOMES)
    return (function for function in found if callable(function))


def _table() -> dict[Callable[..., Any], Spec]:
    table: dict[Callable[..., Any], Spec] = {}
    for spec in _specs():
        canonical = replace(spec, name=_ALIASES.get(spec.name, spec.name))
        table.update(dict.fromkeys(_spellings(spec), canonical))
    for name in _ATTRIBUTES:
        table[getattr(Tensor, name).__get__] = Spec(name, "positive", keeps_range=True)
    return table


_ALIASES = {"expit": "sigmoid", "log_sigmoid": "logsigmoid"}
SPECS: Mapping[Callable[..., Any], Spec] = _table()


def argument(place: Argument | None, arguments: tuple[Any, ...], options: Mapping[str, Any]) -> Any:
    """An argument given by position or by keyword.

    Returns:
        Its value; None where it was not given.
    """
    if place is None:
        return None
    position, keyword = place
    return arguments[position] if position < len(arguments) else options.get(keyword)
