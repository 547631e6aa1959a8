"""One forward pass watched from the data to the loss: input scales, batch statistics, what the loss is given."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.overrides import TorchFunctionMode
from torch.utils import weak
from torch.utils._pytree import tree_leaves

from theta0._batches import Batch, checked_forward
from theta0._calls import LinearCall, watch
from theta0._losses import Loss, applied, loss_of
from theta0._moments import moments
from theta0._state import preserve_state
from theta0.measurements.reach import Interval, Reach, interval_of, reach

_LOSSES: Mapping[Any, str] = {
    F.cross_entropy: "cross_entropy",
    F.binary_cross_entropy_with_logits: "bce",
    F.nll_loss: "nll",
    F.mse_loss: "difference",
    F.l1_loss: "difference",
    F.smooth_l1_loss: "difference",
    F.huber_loss: "difference",
}
_PAIRED = frozenset(["sub", "__sub__", "__rsub__", "rsub", "mul", "__mul__", "add", "__add__", "eq", "__eq__", "where"])
_NORMS = (F.batch_norm, F.layer_norm, F.group_norm, F.instance_norm)


@dataclass
class FirstInput:  # `normalised` is learnt later in the pass
    """The data as they meet a first layer.

    Attributes:
        layer: the layer.
        mean: over all entries.
        rms: root mean square over all entries.
        largest: the largest feature's root mean square.
        median: the median feature's.
        normalised: whether a normalisation follows before any other weight.
    """

    layer: str
    mean: float
    rms: float
    largest: float
    median: float
    normalised: bool = False


@dataclass(frozen=True)
class BatchNormCall:
    """One application of batch normalisation.

    Attributes:
        layer: the module's path.
        training: whether it takes the batch's statistics.
        values: how many values a channel has.
        ratio: median over channels of the variance of its input over the running variance; NaN without one.
        fresh: whether the running statistics are still (0, 1).
    """

    layer: str
    training: bool
    values: int
    ratio: float
    fresh: bool


@dataclass(frozen=True)
class Broadcast:
    """Outputs and targets that do not match, stretched against each other.

    Attributes:
        output: the outputs' shape.
        target: the targets'.
        terms: how many terms result.
    """

    output: tuple[int, ...]
    target: tuple[int, ...]
    terms: int


@dataclass
class Inspection:  # grows during one pass; a plain accumulator
    """What was seen."""

    inputs: list[FirstInput] = field(default_factory=list)
    norms: list[BatchNormCall] = field(default_factory=list)
    reaches: list[Reach] = field(default_factory=list)
    broadcasts: list[Broadcast] = field(default_factory=list)


def inspection(model: nn.Module, batch: Batch, loss: Loss) -> Inspection:
    """Watch one forward pass and its loss; a third of a gradient. The model is left bit-identical.

    Args:
        model: the model, in the mode in which it is.
        batch: one batch.
        loss: a name, a callable or None.

    Returns:
        What was seen.
    """
    seen = Inspection()
    with preserve_state(model), torch.enable_grad():
        mode = _Inspect(model, seen)
        with watch(model, mode.linear), mode:
            if loss is None:
                if batch.targets is None:
                    checked_forward(model, batch)
                else:
                    loss_of(model, batch, None)
                return seen
            _with_loss(model, batch, loss, mode)
    return seen


def _with_loss(model: nn.Module, batch: Batch, loss: Loss, mode: "_Inspect") -> None:
    def told(outputs: Any, targets: Any) -> Tensor:
        mode.side(outputs, "output")
        mode.side(targets, "target")
        return applied(loss, outputs, batch)

    loss_of(model, batch, told)


class _Inspect(TorchFunctionMode):  # a class because torch's interception point is one
    def __init__(self, model: nn.Module, seen: Inspection) -> None:
        super().__init__()
        self.seen = seen
        self.paths = {id(m.running_mean): (n, m) for n, m in model.named_modules() if _has_statistics(m)}
        self.intervals: Any = weak.WeakIdKeyDictionary()
        self.sides: Any = weak.WeakIdKeyDictionary()
        self.weighted: Any = weak.WeakIdKeyDictionary()  # → the first layer behind it, None after a second

    def side(self, tree: Any, name: str) -> None:
        for leaf in tree_leaves(tree):
            if isinstance(leaf, Tensor):
                self.sides[leaf] = name

    def linear(self, call: LinearCall) -> None:
        known = self.weighted.get(call.input, False) if isinstance(call.input, Tensor) else None
        first = None
        if known is False and call.input.is_floating_point() and call.input.numel():
            first = _first_input(call)
            self.seen.inputs.append(first)
        self.weighted[call.output] = first

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Mapping[str, Any] | None = None
    ) -> Any:
        options = dict(kwargs or {})
        if func is F.batch_norm:
            self.batch_norm(*args, **options)
        if func in _LOSSES:
            self.loss(_LOSSES[func], _given(args, options, "input", 0), _given(args, options, "target", 1))
        elif self.sides and getattr(func, "__name__", "") in _PAIRED and len(args) > 1:
            self.paired(args[0], args[1])
        result = func(*args, **options)
        tensors = [t for a in (*args, *options.values()) for t in _flat(a)]
        results = [t for t in _flat(result) if t.is_floating_point() or self.sides]
        if results:
            self.follow(func, args, options, tensors, results)
        return result

    def follow(
        self, func: Any, args: tuple[Any, ...], options: dict[str, Any], tensors: list[Tensor], results: list[Tensor]
    ) -> None:
        """Carry over what is known of the arguments."""
        interval = interval_of(func, args, options, self.interval)
        interval = interval or _unit_after_division(func, args, results[0])
        origins = [self.weighted[t] for t in tensors if t in self.weighted]
        sides = {self.sides[t] for t in tensors if t in self.sides}
        normalising = func in _NORMS
        for result in results:
            self.intervals.pop(result, None)
            if interval is not None:
                self.intervals[result] = interval
            if origins and result not in self.weighted:
                self.weighted[result] = None if normalising else origins[0]
            if sides:
                self.sides[result] = "output" if "output" in sides else "target"
        if normalising:
            for first in origins:
                if first is not None:
                    first.normalised = True

    def interval(self, value: Any) -> Interval | None:
        found: Interval | None = self.intervals.get(value) if isinstance(value, Tensor) else None
        return found

    def loss(self, kind: str, outputs: Any, targets: Any) -> None:
        if not isinstance(outputs, Tensor) or not isinstance(targets, Tensor):
            return
        if kind == "difference":
            self.paired(outputs, targets)
            return
        interval = self.interval(outputs)
        if interval is not None:
            self.add(reach(kind, outputs, targets, interval))

    def paired(self, a: Any, b: Any) -> None:
        """Outputs against targets: do their shapes agree, and can the outputs come to them?"""
        if not isinstance(a, Tensor) or not isinstance(b, Tensor):
            return
        if {self.sides.get(a), self.sides.get(b)} != {"output", "target"}:
            return
        output, target = (a, b) if self.sides.get(a) == "output" else (b, a)
        interval = self.interval(output)
        if interval is not None and output.shape == target.shape:
            self.add(reach("difference", output, target, interval))
        broadcast = _stretched(output, target)
        if broadcast is not None:
            self.seen.broadcasts.append(broadcast)

    def add(self, found: Reach | None) -> None:
        if found is not None:
            self.seen.reaches.append(found)

    def batch_norm(self, x: Tensor, mean: Any = None, variance: Any = None, *rest: Any, **options: Any) -> None:
        mean, variance = options.get("running_mean", mean), options.get("running_var", variance)
        training = bool(options.get("training", rest[2] if len(rest) > 2 else False))
        layer = self.paths.get(id(mean), ("", None))[0]
        values = x.numel() // x.shape[1]
        if training and values == 1:
            raise ValueError(
                f"layer {layer or 'of batch normalisation'!r}: expected more than one value per channel, got input of "
                f"shape {tuple(x.shape)}, whose variance is zero; use larger batches, or call .eval() on that layer"
            )
        ratio, fresh = math.nan, False
        if isinstance(variance, Tensor) and isinstance(mean, Tensor) and x.numel():
            found = moments(x.movedim(1, -1).flatten(0, -2))
            ratio = float((found.variance / variance.double().clamp_min(1e-300)).median())
            fresh = bool((mean == 0).all()) and bool((variance == 1).all())
        self.seen.norms.append(BatchNormCall(layer, training, values, ratio, fresh))


def _has_statistics(module: nn.Module) -> bool:
    return isinstance(getattr(module, "running_mean", None), Tensor)


def _given(args: tuple[Any, ...], options: Mapping[str, Any], name: str, place: int) -> Any:
    return args[place] if len(args) > place else options.get(name)


def _flat(value: Any) -> list[Tensor]:
    if isinstance(value, Tensor):
        return [value]
    return [v for v in value if isinstance(v, Tensor)] if isinstance(value, (tuple, list)) else []


def _first_input(call: LinearCall) -> FirstInput:
    """Features lie along the axis that the weight sums over: the second of a convolution, else the last."""
    x = call.input.detach().double()
    axis = 1 if call.kind.startswith("conv") and x.dim() > 2 else -1
    squares = x.square().movedim(axis, -1).reshape(-1, x.shape[axis]).mean(0).sqrt()
    return FirstInput(
        call.layer, float(x.mean()), float(x.square().mean().sqrt()), float(squares.max()), float(squares.median())
    )


def _unit_after_division(func: Any, args: tuple[Any, ...], result: Tensor) -> Interval | None:
    """Rows of length one that a division x / ‖x‖ has made."""
    if getattr(func, "__name__", "") not in ("div", "__truediv__", "true_divide") or len(args) < 2:
        return None
    divisor = args[1]
    if not isinstance(divisor, Tensor) or divisor.dim() != result.dim() or result.dim() < 2 or result.shape[-1] < 2:
        return None
    lengths = result.detach().norm(dim=-1)
    if divisor.shape[-1] != 1 or not bool(((lengths - 1).abs() < 1e-3).all()):
        return None
    return Interval(-1.0, 1.0, "normalize", length=1.0)


def _stretched(output: Tensor, target: Tensor) -> Broadcast | None:
    """Shapes of different length, such as (N, 1) and (N,), whose product is larger than either.

    Pairs that are meant have axes of length one on both sides, and shapes of the same length.

    Returns:
        The broadcast, or None.
    """
    if output.dim() == target.dim() or not output.dim() or not target.dim():
        return None
    try:
        shape = torch.broadcast_shapes(output.shape, target.shape)  # type: ignore[no-untyped-call]
        terms = math.prod(shape)
    except RuntimeError:
        return None
    if terms <= max(output.numel(), target.numel()):
        return None
    return Broadcast(tuple(output.shape), tuple(target.shape), terms)
