"""Whether what a classification loss takes as the classes of one place are units of the last layer at one place."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from theta0._trace.interpreter import Handler, Step
from theta0._trace.operations import operation_of
from theta0.measurements.loss_contracts import Breach

_WEIGHTED = frozenset(("linear", "conv", "conv_transpose", "matmul"))
_ENTRYWISE = frozenset(
    ("nonlinearity", "elementwise", "softmax", "dropout", "norm", "batch_norm", "add", "subtract", "multiply", "divide")
)
_LAYOUTS = frozenset(("view", "reshape", "flatten", "unflatten", "ravel", "view_as", "reshape_as"))
_MOST = 20_000_000  # entries of outputs that are looked at


@dataclass(frozen=True)
class _Laid:
    """Where the outputs of the last layer are.

    Attributes:
        shape: the outputs' shape.
        axis: which of its axes runs over units.
        moves: the functions that have laid them out anew since, in order.
        last: the name of the last one that changes shapes, with the shapes before and after it.
    """

    shape: tuple[int, ...]
    axis: int
    moves: tuple[Callable[[Tensor], Tensor], ...] = ()
    last: tuple[str, tuple[int, ...], tuple[int, ...]] | None = None


def class_axis_handler(breaches: list[Breach]) -> Handler:
    """A handler that follows the layout of the last layer's outputs to a classification loss.

    There the number of the unit that each entry came from is laid out by the same functions. Along the axis of classes
    it must be the same pattern, of different units, at every place: `(N, C, L)` that is reshaped to `(N * L, C)`, no
    axis moved, has entries of one unit at several places. Exact; what is reduced or joined is not followed.

    Args:
        breaches: what is found is written there.

    Returns:
        The handler.
    """

    def before(step: Step) -> None:
        if step.spec is None or step.spec.role != "loss" or step.spec.kind not in ("cross_entropy", "nll"):
            return
        outputs = step.argument((0, "input"))
        laid = step.note(outputs, handler) if isinstance(outputs, Tensor) else None
        if laid is None or laid.last is None or outputs.numel() > _MOST or not _mixed(laid, outputs):
            return
        name, old, new = laid.last
        breaches.append(
            Breach(
                operation_of(step),
                float(outputs.shape[min(1, outputs.dim() - 1)]),
                0.0,
                f"the loss takes numbers of different places for the classes of one: `{name}` of {old} to {new} keeps "
                "the order of the numbers and moves no axis",
                "Move the axis of classes first, for example by logits.movedim(1, -1).reshape(-1, classes), or give "
                "cross_entropy the shape (N, classes, ...) with targets (N, ...).",
            )
        )

    def after(step: Step, result: Any) -> _Laid | None:
        spec = step.spec
        if spec is None or not isinstance(result, Tensor):
            return None
        if spec.kind in _WEIGHTED and spec.unit_axis is not None:
            axis = result.dim() + spec.unit_axis
            return _Laid(tuple(result.shape), axis) if axis >= 0 else None
        notes = step.notes(handler)
        if len(notes) != 1:
            return None
        tensor, laid = notes[0]
        assert isinstance(laid, _Laid)
        if spec.role in _ENTRYWISE and result.shape == tensor.shape:
            return laid
        if spec.role != "positive" or spec.averages or not spec.keeps_range:
            return None
        return _moved(step, laid, tensor, result) if step.arguments and step.arguments[0] is tensor else None

    handler = Handler(before=before, after=after)
    return handler


def _moved(step: Step, laid: _Laid, tensor: Tensor, result: Tensor) -> _Laid:
    function, arguments, options = step.function, step.arguments[1:], step.options
    shapes = (step.name, tuple(tensor.shape), tuple(result.shape)) if step.name in _LAYOUTS else laid.last
    return _Laid(laid.shape, laid.axis, (*laid.moves, lambda units: function(units, *arguments, **options)), shapes)


def _mixed(laid: _Laid, outputs: Tensor) -> bool:
    """Whether the units along the axis of classes are not the same pattern, of different ones, at every place."""
    form = [1] * len(laid.shape)
    form[laid.axis] = laid.shape[laid.axis]
    units = torch.arange(laid.shape[laid.axis], dtype=torch.float64, device=outputs.device).view(form)
    units = units.expand(laid.shape).contiguous()
    try:
        for move in laid.moves:
            units = move(units)
    except (RuntimeError, TypeError, ValueError, IndexError):
        return False
    classes = min(1, outputs.dim() - 1)
    if units.shape != outputs.shape or outputs.shape[classes] < 2:
        return False
    rows = units.movedim(classes, -1).reshape(-1, outputs.shape[classes])
    pattern = rows - rows[:, :1]
    ordered = pattern[0].sort().values
    return bool((pattern != pattern[:1]).any()) or bool((ordered[1:] == ordered[:-1]).any())
