"""Time is depth too: what a recurrent layer does to states and gradients from step to step."""

import math
from dataclasses import dataclass, field

from torch import Tensor

from theta0._trace.calls import LinearCall

_LEAST = 8  # steps, below which there is nothing to speak of


@dataclass
class Steps:  # grows batch by batch; a plain accumulator
    """What has been seen of a recurrent layer.

    Attributes:
        length: the most steps.
        share: least norm of the loss's gradient with respect to one step's input, over the largest of any step.
        growth: largest root mean square of one step's states, over that of the first step.
        leaves: inputs that are data, whose gradients must be asked for; to be emptied after each backward pass.
    """

    length: int = 0
    share: float = math.inf
    growth: float = 0.0
    leaves: list[Tensor] = field(default_factory=list)


def observe_steps(steps: Steps, call: LinearCall) -> None:
    """Look at one call of a recurrent layer; gradients are seen when they arrive."""
    if call.output.dim() != 3 or call.sample_axis is None or call.input.dim() != 3:
        return
    axis = 1 - call.sample_axis
    length = call.output.shape[axis]
    if length < _LEAST:
        return
    steps.length = max(steps.length, length)
    sizes = _per_step(call.output.detach(), axis)
    if float(sizes[0]) > 0:
        steps.growth = max(steps.growth, float(sizes.max() / sizes[0]))
    if call.input.requires_grad:
        if call.input.is_leaf:
            steps.leaves.append(call.input)
        call.input.register_hook(lambda gradient: _arrived(steps, gradient, axis))  # type: ignore[no-untyped-call]


def _arrived(steps: Steps, gradient: Tensor, axis: int) -> None:
    norms = _per_step(gradient, axis)
    reached = norms.nonzero().flatten()
    if len(reached):  # what comes after the last step that the loss reads has no gradient by right
        known = norms[: int(reached[-1]) + 1]
        steps.share = min(steps.share, float(known.min() / known.max()))


def _per_step(values: Tensor, axis: int) -> Tensor:
    return values.double().movedim(axis, 0).flatten(1).square().mean(1).sqrt()
