"""Products with the Hessian of a loss, by differentiating its gradient."""

from collections.abc import Sequence

import torch
from torch import Tensor

from theta0._batches import Batch
from theta0.curvature.problem import (
    Curvature,
    Problem,
    differentiated,
    flat,
    over_parameters,
    require_sound_graph,
    split,
)

_Gradient = tuple[Sequence[Tensor | None], float]


def hessian(problem: Problem, recompute: bool) -> Curvature:
    """∂²ℓ/∂θ∂θ of the mean loss, on kept graphs or on graphs built anew in each product."""
    passes = float(len(problem.batches))
    held = None if recompute else [_gradient(problem, batch) for batch in problem.batches]

    def multiply(v: Tensor) -> Tensor:
        parts, total = split(v, problem.parameters), torch.zeros_like(v)
        for gradient, share in held if held is not None else (_gradient(problem, b) for b in problem.batches):
            together = zip(gradient, parts, strict=True)
            pairs = [(g, part) for g, part in together if g is not None and g.requires_grad]
            if pairs:
                found = torch.autograd.grad(
                    [g for g, _ in pairs],
                    problem.parameters,
                    [part for _, part in pairs],
                    retain_graph=held is not None,
                    allow_unused=True,
                )
                total += flat(found, problem.parameters).mul_(share)
        return total

    setup, product = (0.0, passes * 3) if recompute else (passes, passes * 2)

    def gradient() -> Tensor:
        graphs = held if held is not None else [_gradient(problem, b) for b in problem.batches]
        return torch.stack([flat(found, problem.parameters).detach() * share for found, share in graphs]).sum(0)

    return over_parameters(
        problem,
        multiply,
        gradient,
        semidefinite=False,
        setup=setup,
        product=product,
        gradient_cost=passes if recompute else 0.0,
    )


def _gradient(problem: Problem, batch: Batch) -> _Gradient:
    value, _ = problem.forward(batch)
    if not value.requires_grad:
        raise ValueError(
            f"batch {batch.number}: expected a loss that depends on the trained parameters, got one that does not; "
            "does forward() detach its outputs?"
        )
    found = differentiated(lambda: torch.autograd.grad(value, problem.parameters, create_graph=True, allow_unused=True))
    require_sound_graph(value, found, twice=True)
    return found, problem.share(batch)
