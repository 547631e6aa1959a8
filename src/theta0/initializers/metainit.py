"""MetaInit: scales under which a step of gradient descent changes the gradient least."""

from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss
from theta0._models import in_place
from theta0._randomness import Randomness
from theta0._ranks import averaged, ranks
from theta0.curvature.problem import differentiated
from theta0.initializers.scale_search import ScaleSearch, SearchSettings, search_scales
from theta0.initializers.scaled_network import SECOND, Gradients, Objective, Quality, ScaledNetwork, Slope, norm_of

_EPSILON = 1e-5  # dauphin2019metainit, equation 4


def metainit(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    learning_rate: float = 0.02,
    steps: int = 100,
    lower_bound: float = 0.01,
    max_batches: int | None = 16,
    generator: Randomness = None,
) -> ScaleSearch:
    r"""One scale for each parameter tensor, found by descending the gradient quotient.

    $GQ = \frac1N \big\| \frac{g - Hg}{g ± ε} - 1 \big\|_1$, the relative change of the gradient in a step of gradient
    descent of unit length, ε with g's sign (dauphin2019metainit, section 3). As in `nio_`, the result is kept only
    where it is lower on held-out batches, and the same is left alone. The gradient norm is not bounded. A step
    differentiates three times and costs about seven gradients; one process only.

    Args:
        model: changed in place; bit for bit as it was if nothing better is found, or anything fails.
        batches: `(inputs, targets)` batches; the last quarter is held out.
        loss: a name, a callable, or None where the model returns its own.
        learning_rate: the largest relative change of a scale in one step.
        steps: how many, batches in turn.
        lower_bound: the least scale; its inverse is the largest.
        max_batches: how many batches are read; None reads all.
        generator: a seed, a generator or None; orders the samples after the first pass over the batches.

    Returns:
        What was found; `kept` is False where that is nothing better, and the start is unchanged.

    Raises:
        ValueError: if an argument is out of range, the network cannot be differentiated so often, the loss is
            constant, or there is a process group; the start is then unchanged.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0.initializers import initialize
        >>> search = initialize("metainit", model, batches, "cross_entropy", steps=5)
        >>> search.kept or bool(search.refusal)  # kept only where it is better on held-out batches
        True
    """
    if ranks() > 1:
        raise ValueError(
            f"metainit: expected one process, got a group of {ranks()}; its quotient is not a mean over samples: "
            "search on one rank and broadcast the start"
        )
    quality_cost = 1 + SECOND
    objective = Objective("metainit", "gradient quotient", False, _slope, _quality, quality_cost)
    settings = SearchSettings(float("inf"), "absolute", learning_rate, steps, lower_bound)
    return search_scales(model, batches, loss, objective, settings, max_batches=max_batches, generator=generator)


metainit_ = in_place(metainit)


def _slope(network: ScaledNetwork, batch: Batch, cap: float) -> Slope:
    quotient, gradient = _quotient(network, batch, graph=True)
    wanted = [network.parameters[name] for name in network.start]
    derivative = differentiated(lambda: torch.autograd.grad(quotient, wanted, materialize_grads=True))
    return Slope(Quality(float(quotient.detach()), norm_of(gradient)), False, list(derivative), 1 + SECOND + 2 * SECOND)


def _quality(network: ScaledNetwork, batch: Batch) -> Quality:
    quotient, gradient = _quotient(network, batch, graph=False)
    return Quality(float(quotient.detach()), norm_of(gradient))


def _quotient(network: ScaledNetwork, batch: Batch, *, graph: bool) -> tuple[Tensor, Gradients]:
    """The gradient quotient over all trained parameters, and the gradient."""
    wanted = list(network.parameters.values())
    gradients = network.gradients(network.loss_of(batch))
    half = sum((g.square().sum() for g in gradients if g.requires_grad), torch.zeros(())) / 2
    products = differentiated(lambda: torch.autograd.grad(half, wanted, create_graph=graph, allow_unused=True))
    total, count = torch.zeros((), dtype=gradients[0].dtype, device=gradients[0].device), 0
    for g, product in zip(gradients, products, strict=True):
        change = torch.zeros_like(g) if product is None else product
        shifted = g + torch.where(g >= 0, _EPSILON, -_EPSILON)
        total = total + ((g - change) / shifted - 1).abs().sum()
        count += g.numel()
    return total / count, averaged(gradients)
