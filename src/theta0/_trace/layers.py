"""The layers that carry weights, in the order in which they are executed."""

import math
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn
from torch.nn.utils import parametrize

from theta0._batches import Batch, checked_forward
from theta0._state import preserve_state
from theta0._trace.calls import LinearCall, NonlinearityCall, trace_calls
from theta0._weights import tied_parameters


@dataclass(frozen=True, eq=False)
class Layer:
    """A layer that applies a weight.

    Attributes:
        path: as in `named_modules()`; a bare parameter's own path.
        kind: linear, conv, conv_transpose, embedding, matmul or recurrent.
        module: the module that owns the weight.
        attribute: the weight's name in that module.
        parameters: the full names of the parameters behind the weight.
        fan_in: how many inputs one unit sums (of a transposed convolution, on average over positions); 1 for
            embeddings, which look up and do not sum.
        calls: how often one forward pass applies it.
        nonlinearity: the name of the first nonlinearity that its output flows into before the next layer, if any.
        tied: whether another module uses the same tensor.
        frozen: whether a parameter behind the weight has `requires_grad=False`.
        parametrized: whether the weight is computed from other parameters.
    """

    path: str
    kind: str
    module: nn.Module
    attribute: str
    parameters: tuple[str, ...]
    fan_in: int
    calls: int
    nonlinearity: str | None
    tied: bool
    frozen: bool
    parametrized: bool


def layers(model: nn.Module, batch: Batch) -> list[Layer]:
    """The weight-carrying layers that a forward pass on the batch reaches, in execution order.

    The model is left as it was.

    Returns:
        Each layer once, at its first call.
    """
    calls: list[LinearCall] = []
    followers: dict[str, str] = {}

    def follow(call: NonlinearityCall) -> None:
        followers.setdefault(call.after.owner.layer, call.spec.name)

    with preserve_state(model), torch.no_grad(), trace_calls(model, calls.append, follow):
        checked_forward(model, batch)
    tied = tied_parameters(model)
    counts: dict[str, int] = {}
    for call in calls:
        counts[call.owner.layer] = counts.get(call.owner.layer, 0) + 1
    first = {call.owner.layer: call for call in reversed(calls)}
    return [_layer(first[path], counts[path], followers.get(path), tied, model) for path in counts]


def fan_in(call: LinearCall) -> int:
    """How many inputs one unit of a linear call sums; for a transposed convolution the mean over output positions."""
    shape = tuple(call.weight.shape)
    if call.kind == "embedding":
        return 1
    if call.kind == "matmul":
        return shape[-2] if len(shape) > 1 else shape[0]
    if call.kind == "conv_transpose":
        groups, stride = getattr(call.owner.module, "groups", 1), getattr(call.owner.module, "stride", (1,))
        return max(1, shape[0] // groups * math.prod(shape[2:]) // math.prod(stride))
    return math.prod(shape[1:])


def geometry(
    call: LinearCall, axes: int, kernel: torch.Size
) -> tuple[list[int], list[tuple[int, int]], list[int], int]:
    """Stride, padding (before, after) and dilation of a convolution along its spatial axes, and its groups."""
    positional, named = call.options
    defaults = {"stride": 1, "padding": 0, "dilation": 1, "groups": 1}
    if call.kind == "conv_transpose":  # another order
        defaults = {"stride": 1, "padding": 0, "output_padding": 0, "groups": 1, "dilation": 1}
    given = {**defaults, **dict(zip(defaults, positional, strict=False)), **named}

    def each(value: Any) -> list[int]:
        values = [value] if isinstance(value, int) else list(value)
        return values * axes if len(values) == 1 else values

    stride, dilation = each(given["stride"]), each(given["dilation"])
    if given["padding"] == "same":
        totals = [d * (k - 1) for d, k in zip(dilation, kernel, strict=True)]
        padding = [(t // 2, t - t // 2) for t in totals]
    else:
        padding = [(p, p) for p in each(0 if given["padding"] == "valid" else given["padding"])]
    return stride, padding, dilation, int(given["groups"])


def _layer(
    call: LinearCall, count: int, follower: str | None, tied: dict[str, tuple[str, ...]], model: nn.Module
) -> Layer:
    owner = call.owner
    by_name = dict(model.named_parameters(remove_duplicate=False))
    frozen = any(not by_name[name].requires_grad for name in owner.parameters if name in by_name)
    parametrized = parametrize.is_parametrized(owner.module, owner.attribute) or owner.attribute not in dict(
        owner.module.named_parameters(recurse=False)
    )
    return Layer(
        path=owner.layer,
        kind=call.kind,
        module=owner.module,
        attribute=owner.attribute,
        parameters=owner.parameters,
        fan_in=fan_in(call),
        calls=count,
        nonlinearity=follower,
        tied=any(name in tied for name in owner.parameters),
        frozen=frozen,
        parametrized=parametrized,
    )
