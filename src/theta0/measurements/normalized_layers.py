"""The layers behind which a normalization follows before any other weight: the size of their weights has no effect."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from theta0._trace.calls import LinearCall
from theta0._trace.interpreter import Handler, Step

_TRAINING = (5, "training")
_SIZES = frozenset(("rsqrt", "sqrt", "std", "std_mean", "norm", "vector_norm"))
_SCALED = frozenset(("mul", "imul", "multiply", "div", "truediv", "itruediv", "divide", "true_divide"))


@dataclass(frozen=True)
class _Flow:
    """The layers whose outputs a tensor is made of since the last weight or normalization; `size`: only by their size.

    What is divided by its own size, as by a root mean square written out, is normalized.
    """

    layers: frozenset[str] = frozenset()
    size: bool = False


def normalized_handler(found: set[str]) -> tuple[Callable[[LinearCall], None], Handler]:
    """Adds the layers whose outputs a normalization takes in before any other weight.

    A batch normalization with running statistics is an affine function and does not count.

    Returns:
        What is to be shown each application of a weight before the handler, and the handler.
    """
    applied: list[LinearCall] = []

    def linear(call: LinearCall) -> None:
        applied[:] = [call]

    def after(step: Step, result: Any) -> _Flow | None:
        if applied:
            return _Flow(frozenset((applied.pop().layer,)))
        flows: list[_Flow] = [note for _, note in step.notes(handler)]
        if not flows:
            return None
        role = "" if step.spec is None else step.spec.role
        if role == "norm" or (role == "batch_norm" and bool(step.argument(_TRAINING))):
            found.update(*(flow.layers for flow in flows))
            return _Flow()
        name = step.name.strip("_")
        if name in _SIZES:
            return replace(_join(flows), size=True)
        sizes, scaled = _join([f for f in flows if f.size]).layers, _join([f for f in flows if not f.size])
        if name in _SCALED and sizes & scaled.layers:
            found.update(sizes & scaled.layers)
            return _Flow(scaled.layers - sizes)
        return None

    handler = Handler(after=after, join=_join)
    return linear, handler


def _join(flows: Sequence[_Flow]) -> _Flow:
    if len(flows) == 1:
        return flows[0]
    return _Flow(frozenset().union(*(flow.layers for flow in flows)), bool(flows) and all(flow.size for flow in flows))
