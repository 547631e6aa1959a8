"""GradInit: scales under which one step of the optimizer lowers the loss most."""

import math
from collections.abc import Iterable
from functools import partial
from typing import Any, Literal

import torch
from torch import nn

from theta0._batches import Batch
from theta0._losses import Loss
from theta0._models import in_place
from theta0._randomness import Randomness
from theta0._ranks import averaged
from theta0.initializers.scale_search import ScaleSearch, SearchSettings, search_scales
from theta0.initializers.scaled_network import SECOND, Gradients, Objective, Quality, ScaledNetwork, Slope, norm_of
from theta0.measurements.sub_batches import overlapping

OptimizerKind = Literal["sgd", "adam"]
_OVERLAP = 0.5  # of the step's samples and those that it is judged on (zhu2021gradinit, section 3)


def gradinit(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    optimizer: OptimizerKind = "sgd",
    step_size: float = 0.1,
    gradient_norm_cap: float = 1.5,
    cap_unit: Literal["start", "absolute"] = "start",
    learning_rate: float = 0.02,
    steps: int = 100,
    lower_bound: float = 0.01,
    max_batches: int | None = 16,
    generator: Randomness = None,
) -> ScaleSearch:
    r"""One scale for each parameter tensor, so that the first step lowers the loss most, under a cap on the gradient.

    Minimises $L(\tilde S; θ - η A[g_S(θ)])$ over the scales in θ = s ∘ θ₀, with A[g] = g for SGD and sign(g) for Adam,
    and $\tilde S$ sharing half of its samples with S; where $‖g_S‖_p$ exceeds the cap it is descended instead, p = 2
    for SGD and 1 for Adam (zhu2021gradinit, section 3). As in `nio_`, the result is kept only where it is better on
    held-out batches, and the same is left alone.

    Args:
        model: changed in place; bit for bit as it was if nothing better is found, or anything fails.
        batches: `(inputs, targets)` batches; the last quarter is held out.
        loss: a name, a callable, or None where the model returns its own.
        optimizer: whose step it is.
        step_size: η.
        gradient_norm_cap: the largest gradient norm: a multiple of the one at the start, or a number.
        cap_unit: which of the two.
        learning_rate: the largest relative change of a scale in one step.
        steps: how many, batches in turn.
        lower_bound: the least scale; its inverse is the largest.
        max_batches: how many batches are read; None reads all.
        generator: a seed, a generator or None; orders the samples after the first pass over the batches.

    Returns:
        What was found; `kept` is False where that is nothing better, and the start is unchanged.

    Raises:
        ValueError: if an argument is out of range, the network cannot be differentiated twice, or the loss is
            constant; the start is then unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0.initializers import initialize
        >>> search = initialize("gradinit", model, batches, "cross_entropy", steps=5)
        >>> search.kept or bool(search.refusal)  # kept only where it is better on held-out batches
        True
    """
    if optimizer not in ("sgd", "adam"):
        raise ValueError(f"optimizer: expected 'sgd' or 'adam', got {optimizer!r}")
    if not 0 < step_size < math.inf:
        raise ValueError(f"step_size: expected a positive finite number, got {step_size}")
    objective = Objective(
        method="gradinit",
        quantity=f"loss after a step of {optimizer}",
        higher=False,
        slope=partial(_slope, optimizer=optimizer, step_size=step_size),
        quality=partial(_quality, optimizer=optimizer, step_size=step_size),
        quality_cost=2 / (2 - _OVERLAP),
    )
    settings = SearchSettings(gradient_norm_cap, cap_unit, learning_rate, steps, lower_bound)
    return search_scales(model, batches, loss, objective, settings, max_batches=max_batches, generator=generator)


gradinit_ = in_place(gradinit)


def _slope(network: ScaledNetwork, batch: Batch, cap: float, *, optimizer: OptimizerKind, step_size: float) -> Slope:
    first, second = overlapping(batch, 2, _OVERLAP)
    local = network.gradients(network.loss_of(first))
    gradient = averaged(local)
    order = 2 if optimizer == "sgd" else 1
    norm = norm_of(gradient, order)
    after, later = _after_step(network, second, gradient, optimizer, step_size)
    quality, share = Quality(after, norm), first.size / batch.size
    if norm > cap:
        along = [g / norm if order == 2 else g.sign() for g in gradient]
        return Slope(quality, True, network.pulled_back([local], [along]), share * (2 + SECOND))
    direct = [g for name, g in zip(network.parameters, later, strict=True) if name in network.start]
    if optimizer == "adam":  # the sign does not change with the scales
        return Slope(quality, False, direct, share * 2)
    # d L(θ - η g(θ)) / dθ = v - η H v with v the gradient after the step.
    curved = network.pulled_back([local], [[-step_size * v for v in averaged(later)]])
    derivative = [v + h for v, h in zip(direct, curved, strict=True)]
    return Slope(quality, False, derivative, share * (2 + SECOND))


def _quality(network: ScaledNetwork, batch: Batch, *, optimizer: OptimizerKind, step_size: float) -> Quality:
    first, second = overlapping(batch, 2, _OVERLAP)
    gradient = averaged(network.gradients(network.loss_of(first), graph=False))
    after, _ = _after_step(network, second, gradient, optimizer, step_size)
    return Quality(after, norm_of(gradient, 2 if optimizer == "sgd" else 1))


def _after_step(
    network: ScaledNetwork, batch: Batch, gradient: Gradients, optimizer: OptimizerKind, step_size: float
) -> tuple[float, Gradients]:
    """Loss and gradient of a batch after the step; the parameters are put back."""
    parameters = list(network.parameters.values())
    here = [p.detach().clone() for p in parameters]
    with torch.no_grad():
        for p, g in zip(parameters, gradient, strict=True):
            p.data.sub_(g if optimizer == "sgd" else g.sign(), alpha=step_size)
    try:
        value = network.loss_of(batch)
        later = network.gradients(value, graph=False)
    finally:
        for p, before in zip(parameters, here, strict=True):
            p.data.copy_(before)
    return float(averaged([value])[0]), later
