"""What a forward pass calls, in execution order: applications of a weight, and the nonlinearities behind them."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from theta0._trace.functions import Spec
from theta0._trace.interpreter import Handler, Interpreter, Step, trace
from theta0._trace.owners import Owner
from theta0._trace.slopes import CLAMPS, can_saturate


@dataclass(frozen=True, eq=False)
class LinearCall:
    """One application of a weight.

    Attributes:
        layer: the layer's path; `path#n` for the n-th call of it, from 2.
        kind: linear, conv, conv_transpose, embedding, matmul (weight is in × out) or recurrent.
        owner: the weight's owner and parameter names.
        input: what the weight was applied to.
        weight: the tensor applied: the parameter, a view of it, or what a parametrization made of it.
        bias: the bias applied, if any.
        output: the result, before any nonlinearity (for recurrent layers the hidden states).
        unit_axis: the axis of the output that runs over units, from the end.
        sample_axis: the axis of the output that runs over samples where the function fixes it, else None.
        options: further arguments (stride, padding, dilation, groups …), as given.
        first: whether no other weight was applied on the way to its input, as where a layer reads the data.
    """

    layer: str
    kind: str
    owner: Owner
    input: Tensor
    weight: Tensor
    bias: Tensor | None
    output: Tensor
    unit_axis: int
    sample_axis: int | None
    options: tuple[tuple[Any, ...], dict[str, Any]] = ((), {})
    first: bool = False


@dataclass(frozen=True, eq=False)
class Origin:
    """The latest application of a weight that flows into a tensor.

    `number` is how many applications came before it, `dim` how many axes its output has.
    """

    number: int
    layer: str
    owner: Owner
    unit_axis: int
    dim: int


@dataclass(frozen=True, eq=False)
class NonlinearityCall:
    """One application of a nonlinearity, seen before it is applied.

    `after` is the latest application of a weight whose output flows into it. An in-place function overwrites `input`
    after the observer has returned; `arguments` and `options` are the further ones.
    """

    after: Origin
    spec: Spec
    function: Callable[..., Any]
    input: Tensor
    arguments: tuple[Any, ...]
    options: dict[str, Any]


def described(call: LinearCall) -> str:
    """A layer in words: its type, of a bare parameter what it is used in, and its weight's shape: `Conv2d 64×3×7×7`."""
    owner, shape = call.owner, "×".join(map(str, call.weight.shape))
    bare = owner.layer == owner.attribute or owner.layer.endswith(f".{owner.attribute}")
    name = call.kind if bare else type(owner.module).__name__.removeprefix("Parametrized")
    return f"{name} {shape}"


def calls_handler(
    linear: Callable[[LinearCall], None] | None = None,
    nonlinearity: Callable[[NonlinearityCall], None] | None = None,
) -> Handler:
    """A handler that shows every application of a weight and every nonlinearity behind one; for one pass.

    Weights are shown after the call, nonlinearities before it; the note on a tensor is an `Origin`.
    """
    counts: dict[str, int] = {}

    def before(step: Step) -> None:
        spec = step.spec
        if spec is None:
            return
        if spec.role == "recurrent":
            step.arguments = (_with_gradient(step.arguments[0]), *step.arguments[1:])
        elif nonlinearity is not None and _is_nonlinear(step) and isinstance(step.arguments[0], Tensor):
            origins = [origin for _, origin in step.notes(handler)]
            if origins:
                nonlinearity(
                    NonlinearityCall(
                        _latest(origins), spec, step.function, step.arguments[0], step.arguments[1:], step.options
                    )
                )

    def after(step: Step, result: Any) -> Origin | None:
        found = _recurrent(step, result) if _role(step) == "recurrent" else _linear(step, result)
        if found is None or found.output.is_complex():
            return None  # units of complex numbers have no such mean, spread or slope
        count = counts[found.owner.layer] = counts.get(found.owner.layer, 0) + 1
        layer = found.layer if count == 1 else f"{found.layer}#{count}"
        call = replace(found, layer=layer, first=step.note(found.input, handler) is None)
        if linear is not None:
            linear(call)
        return Origin(sum(counts.values()), call.layer, call.owner, call.unit_axis, call.output.dim())

    handler = Handler(before=before, after=after, join=_latest)
    return handler


@contextmanager
def trace_calls(
    model: nn.Module,
    linear: Callable[[LinearCall], None] | None = None,
    nonlinearity: Callable[[NonlinearityCall], None] | None = None,
    *further: Handler,
) -> Iterator[Interpreter]:
    """Within the block, every application of a weight and every nonlinearity that the model calls is shown.

    Weights are shown after the call, nonlinearities before it; `further` handlers see the same pass.
    """
    with trace(model, calls_handler(linear, nonlinearity), *further) as interpreter:
        yield interpreter


def _latest(origins: Any) -> Origin:
    latest: Origin = max(origins, key=lambda origin: origin.number)
    return latest


def _is_nonlinear(step: Step) -> bool:
    """Whether a step is an activation, or a clamp on both sides, at which a signal can saturate too."""
    spec = step.spec
    if spec is None or not step.arguments:
        return False
    return spec.activation or (spec.name in CLAMPS and can_saturate(spec, step.arguments[1:], step.options))


def _role(step: Step) -> str:
    return "" if step.spec is None else step.spec.role


def _linear(step: Step, result: Any) -> LinearCall | None:
    """The application of a weight that a function is, if it is one by a weight of the model."""
    spec, owners = step.spec, step.interpreter.owners
    if spec is None or not spec.kind or spec.role == "loss" or owners is None:
        return None
    weight = step.argument(spec.weight)
    owner = owners.find(weight) if isinstance(weight, Tensor) else None
    if owner is None or spec.unit_axis is None:
        return None
    places = [place for place in (spec.input, spec.weight, spec.bias) if place is not None]
    used = 1 + max(position for position, _ in places)  # embeddings' further arguments start at 2
    keywords = [keyword for _, keyword in places]
    rest = step.arguments[used:], {k: v for k, v in step.options.items() if k not in keywords}
    return LinearCall(
        layer=owner.layer,
        kind=spec.kind,
        owner=owner,
        input=step.argument(spec.input),
        weight=weight,
        bias=step.argument(spec.bias),
        output=result,
        unit_axis=spec.unit_axis,
        sample_axis=_sample_axis(step.attention),
        options=rest,
    )


def _sample_axis(attention: Step | None) -> int | None:
    """Attention is handed (length, batch, width), or no batch at all."""
    return 1 if attention is not None and attention.arguments[0].dim() == 3 else None


def _recurrent(step: Step, result: Any) -> LinearCall | None:
    arguments, owners = step.arguments, step.interpreter.owners
    lists = [a for a in arguments[2:4] if isinstance(a, (list, tuple))]  # packed sequences bring their lengths too
    weights = lists[-1] if lists else None
    owner = owners.module_of(weights[0]) if weights and owners is not None else None
    if owner is None or weights is None:
        return None
    batch_first = bool(arguments[-1]) if isinstance(arguments[-1], bool) else False
    return LinearCall(
        layer=owner.layer,
        kind="recurrent",
        owner=owner,
        input=arguments[0],
        weight=weights[0],
        bias=None,
        output=result[0],
        unit_axis=-1,
        sample_axis=0 if batch_first else 1,
    )


def _with_gradient(sequence: Tensor) -> Tensor:
    """Data that a recurrent layer reads directly, made to carry a gradient: its steps are seen nowhere else."""
    needless = not torch.is_grad_enabled() or sequence.requires_grad or not sequence.is_floating_point()
    return sequence if needless else sequence.detach().requires_grad_()
