"""Is a matrix known by its products symmetric, and does it agree with finite differences in float64?"""

import copy
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace

import torch
from jaxtyping import Float
from torch import Tensor

from theta0._batches import Batch, cast_batches
from theta0._state import twice_differentiable
from theta0._weights import trained_parameters
from theta0.curvature.loss_curvature import LossCurvature, Outputs, loss_curvature
from theta0.curvature.problem import Curvature, Problem, flat, split

ASYMMETRY = 1e-3
DIFFERENCE = 1e-2
_STEP = 1e-7  # of the parameters' norm: short, so that hardly a ReLU of 10⁵ switches, and 1e-9 of rounding


@dataclass(frozen=True)
class SelfTest:
    """How wrong products are, relative to their size.

    Attributes:
        asymmetry: 2 |⟨u, Av⟩ - ⟨v, Au⟩| / (‖Av‖ + ‖Au‖) for u and v of independent standard normal entries; about
            ‖A - Aᵀ‖ / ‖A‖ in the Frobenius norm.
        difference: of dᵀAd, d a random direction over the parameters, and finite differences in float64.
    """

    asymmetry: float
    difference: float


def self_test(curvature: Curvature, problem: Problem, generator: torch.Generator) -> SelfTest:
    """Test products by three random vectors.

    dᵀAd is compared, for the Hessian, with the difference along d of the gradients' components along d, and otherwise
    with (Jd)ᵀ H (Jd), where Jd is a difference of outputs. Both are taken on a float64 copy of the network.

    Raises:
        ValueError: if either is too large, or the network cannot be copied.
    """

    def normal(size: int, like: Tensor) -> Tensor:
        return torch.randn(size, generator=generator, dtype=torch.float64).to(like)

    u, v = normal(curvature.size, curvature.vectors), normal(curvature.size, curvature.vectors)
    au, av = curvature.multiply(u), curvature.multiply(v)
    asymmetry = 2 * abs(float(u @ av - v @ au)) / max(float(au.norm() + av.norm()), 1e-300)
    first = problem.parameters[0]
    direction = normal(sum(p.numel() for p in problem.parameters), first)
    if curvature.in_parameters:
        form = float(direction @ curvature.multiply(direction))
    else:
        form = float(curvature.from_parameters(direction).square().sum())
    truth = _by_differences(problem, direction.double())
    difference = abs(form - truth) / max(abs(truth), 1e-300)
    if not (asymmetry <= ASYMMETRY and difference <= DIFFERENCE):
        raise ValueError(
            f"model: the curvature's self-test failed: asymmetry {asymmetry:.2g}, {difference:.2g} away from finite "
            f"differences (at most {ASYMMETRY:g} and {DIFFERENCE:g}): some operation has a wrong double backward, or "
            "the forward pass draws random numbers that differ in float64"
        )
    return SelfTest(asymmetry, difference)


def _by_differences(problem: Problem, direction: Float[Tensor, " n"]) -> float:
    try:
        model = copy.deepcopy(problem.model).double()
    except RuntimeError as error:
        raise ValueError(
            f"model: expected one that can be copied, for the self-test in float64, but copying it raised: {error}"
        ) from error
    if problem.inverse is not None:
        direction = direction * problem.inverse.double().sqrt()
    copied = replace(
        problem,
        model=model,
        batches=cast_batches(problem.batches, torch.float64),
        parameters=trained_parameters(model),
        inverse=None,
    )
    size = max(float(flat(copied.parameters, copied.parameters).detach().norm()), 1.0)
    step = _STEP * size / float(direction.norm())
    form = _hessian_form if problem.matrix == "hessian" else _gauss_newton_form
    with twice_differentiable(model):
        return sum(copied.share(batch) * form(copied, batch, direction, step) for batch in copied.batches)


def _hessian_form(problem: Problem, batch: Batch, direction: Tensor, step: float) -> float:
    def slope() -> float:
        value, _ = problem.forward(batch)
        found = torch.autograd.grad(value, problem.parameters, allow_unused=True)
        return float((flat(found, problem.parameters) @ direction).detach())

    with _moved(problem, direction, step):
        ahead = slope()
    with _moved(problem, direction, -step):
        behind = slope()
    return (ahead - behind) / (2 * step)


def _gauss_newton_form(problem: Problem, batch: Batch, direction: Tensor, step: float) -> float:
    def curved() -> LossCurvature:
        value, outputs = problem.forward(batch)
        return loss_curvature(problem.loss, value, outputs, batch)

    with _moved(problem, direction, step):
        ahead = _detached(curved().outputs)
    with _moved(problem, direction, -step):
        behind = _detached(curved().outputs)
    moved = tuple((a - b) / (2 * step) for a, b in zip(ahead, behind, strict=True))
    products = curved().multiply(moved)
    return sum(float((m * p).sum()) for m, p in zip(moved, products, strict=True))


def _detached(outputs: Outputs) -> Outputs:
    return tuple(f.detach().clone() for f in outputs)


@contextmanager
def _moved(problem: Problem, direction: Tensor, step: float) -> Iterator[None]:
    """Within the block the parameters are at θ + step·direction."""
    kept = [p.detach().clone() for p in problem.parameters]
    with torch.no_grad():
        for p, part in zip(problem.parameters, split(direction, problem.parameters), strict=True):
            p.add_(part, alpha=step)
    try:
        yield
    finally:
        with torch.no_grad():
            for p, value in zip(problem.parameters, kept, strict=True):
                p.copy_(value)
