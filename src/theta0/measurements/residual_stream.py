"""Residual branches, found by watching additions, and how the stream that they are added to grows."""

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch, checked_forward
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, tensors_in, trace


@dataclass(frozen=True, eq=False)
class Ending:
    """What a residual branch ends with.

    `name` is the full name of its last weight, `layer` the layer's path as other measurements call it.
    """

    module: nn.Module
    attribute: str
    bias: Tensor | None
    name: str
    layer: str


@dataclass(frozen=True)
class Sum:
    """One addition of a branch to the residual stream.

    `layer` is what the branch ends with; `rms` is over samples, positions and units.
    """

    layer: str
    rms: float


@dataclass(frozen=True)
class ResidualStream:
    """The residual branches of a network and the sums that they make.

    Each ending stands once; there is a sum for each addition, in execution order.
    """

    endings: tuple[Ending, ...]
    sums: tuple[Sum, ...]


@dataclass
class Ancestry:  # grows during a pass; a plain accumulator
    """From which earlier results each result of a forward pass was made, as bits of an integer.

    `weighted` are the bits of those that a weight makes, `endings` these weights by result; `branches` and `sums` are
    what was found.
    """

    count: int = 0
    weighted: int = 0
    endings: dict[int, Ending] = field(default_factory=dict)
    branches: dict[tuple[int, str], Ending] = field(default_factory=dict)
    sums: list[Sum] = field(default_factory=list)

    @property
    def stream(self) -> ResidualStream:
        """What was found."""
        return ResidualStream(tuple(self.branches.values()), tuple(self.sums))


def residual_handler(ancestry: Ancestry) -> Handler:
    """A handler that finds the residual branches of one forward pass; what a loss adds up is no branch.

    Its note on a tensor is the tensor's ancestors.
    """

    def after(step: Step, result: Any) -> int | None:
        owners = step.interpreter.owners
        if owners is None or not owners.inside_model:
            return None
        masks = [mask for _, mask in step.notes(handler)]
        if step.spec is not None and step.spec.role == "add" and len(masks) == 2:
            _add(ancestry, masks, result)
        ancestry.count += 1
        made = 1 << ancestry.count
        for mask in masks:
            made |= mask
        ending = _ending(step)
        if ending is not None:
            ancestry.endings[ancestry.count] = ending
            ancestry.weighted |= 1 << ancestry.count
        return made

    handler = Handler(after=after)
    return handler


def residual_stream(model: nn.Module, batch: Batch) -> ResidualStream:
    """The last weight of each residual branch and the size of each sum, in execution order, by one forward pass.

    A branch is what is added to a tensor that it was made from, or, where the shortcut has weights of its own, the
    summand with more weights since the two parted. The last weight may belong to a layer, a normalisation, an
    attention's output or a parameter that multiplies. The model is left as it was.
    """
    ancestry = Ancestry()
    # With gradients: a forward pass may differentiate, as of a differential equation.
    with preserve_state(model), torch.enable_grad(), trace(model, residual_handler(ancestry)):
        checked_forward(model, batch)
    return ancestry.stream


def _add(ancestry: Ancestry, masks: Sequence[int], result: Any) -> None:
    """Note an addition of a branch; its size now, because the sum may be overwritten in place."""
    ending = _branch_of(ancestry, *masks)
    tensors = tensors_in((result,), {})
    if ending is None or not tensors or not tensors[0].is_floating_point():
        return
    values = tensors[0].detach()
    size = float(torch.linalg.vector_norm(values))
    if not math.isfinite(size):  # its squares may overflow
        size = float(torch.linalg.vector_norm(values, dtype=torch.float64))
    ancestry.sums.append(Sum(ending.layer, size / math.sqrt(max(1, values.numel()))))


def _branch_of(ancestry: Ancestry, one: int, other: int) -> Ending | None:
    """A branch is added to what it was made from, or to a shorter way there: what it ends with; None for other sums."""
    if not one & other:
        return None

    def weights(mask: int) -> int:
        return (mask & ancestry.weighted).bit_count()

    branch, skip = sorted((one & ~other, other & ~one), key=weights, reverse=True)
    if weights(branch) <= weights(skip):
        return None
    ending = ancestry.endings[(branch & ancestry.weighted).bit_length() - 1]
    return ancestry.branches.setdefault((id(ending.module), ending.attribute), ending)


def _ending(step: Step) -> Ending | None:
    """The weight by which a function makes its result, if it does by one."""
    spec, owners = step.spec, step.interpreter.owners
    if spec is None or owners is None or spec.role == "embedding":
        return None
    if spec.role == "multiply":
        weight, bias = next((a for a in step.arguments if isinstance(a, nn.Parameter)), None), None
    else:
        weight, bias = step.argument(spec.weight), step.argument(spec.bias)
    owner = owners.find(weight) if isinstance(weight, Tensor) else None
    if owner is None or not owner.parameters:
        return None
    return Ending(owner.module, owner.attribute, bias, owner.parameters[0], owner.layer)
