"""How much variance an elementwise activation passes on, forward and backward (kutsuna2019lcw, section 4.2)."""

import copy
import math
import sys
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.integrate import quad_vec
from torch import Tensor, nn

Activation = Callable[[Tensor], Tensor]

# The integral runs over ±20 standard deviations (tail mass 1e-88). The inner points keep narrow features between
# quadrature nodes from being missed; 0 is where most kinks lie, the others are found by bisection.
_REACH = 20.0
_POINTS = (-8.0, -4.0, -2.0, -1.0, 0.0, 1.0, 2.0, 4.0, 8.0)
_TOLERANCE = 1e-11


@dataclass(frozen=True)
class VarianceFactors:
    """Variance out over variance in, for z ~ N(0, σ²).

    Attributes:
        forward: V(φ(z)) / V(z).
        backward: V(∇z) / V(∇a) = E[φ'(z)²], for a gradient ∇a of mean 0 that is independent of z.
        sigma: σ.
        mean: E[φ(z)], the γ that a layer behind it sees in every input.
    """

    forward: float
    backward: float
    sigma: float
    mean: float


def variance_factors(activation: Activation, sigma: float = 1.0) -> VarianceFactors:
    """Forward factor V(φ(z))/σ² and backward factor E[φ'(z)²] of an activation φ for z ~ N(0, σ²).

    Source: kutsuna2019lcw, section 4.2, eqs. for ReLU: ½(1 - 1/π) = 0.3408 and ½. The figures it prints for the
    sigmoid, (0.236, 0.237), (0.208, 0.211) and (0.157, 0.170) at σ = 0.5, 1 and 2, are the square roots of these
    factors, ratios of standard deviations: the variance factors are (0.0558, 0.0560), (0.0434, 0.0448) and
    (0.0246, 0.0290). The 0.21 of its section 4.3 is the same.

    Computed in float64 by adaptive Gauss-Kronrod quadrature, which bisects towards a kink wherever it lies (a fixed
    Gauss-Hermite rule converges slowly there); φ' by autograd. A module is copied and evaluated in
    evaluation mode, so that a randomised activation gives its mean behaviour.

    Args:
        activation: a module, a functional or any callable from a tensor to a tensor of the same shape, elementwise.
        sigma: standard deviation σ > 0 of the preactivation.

    Returns:
        The two factors, σ and E[φ(z)].

    Raises:
        ValueError: if sigma is not positive and finite; if the activation fails, is not elementwise, has no autograd
            derivative, is not finite, or varies too fast to be integrated.

    >>> factors = variance_factors(torch.relu)
    >>> f"{factors.forward:.4f} {factors.backward:.4f}"
    '0.3408 0.5000'
    """
    if not 0 < sigma < math.inf:
        raise ValueError(f"sigma must be a positive, finite standard deviation, got {sigma}")
    if isinstance(activation, nn.Module):
        activation = copy.deepcopy(activation).double().eval()
    offset, scale = _probe(activation, sigma)

    def integrand(t: float) -> Float[np.ndarray, "3"]:
        value, slope = _value_and_slope(activation, torch.tensor([sigma * t], dtype=torch.float64))
        centred = (value.item() - offset) / scale
        weight = math.exp(-t * t / 2) / math.sqrt(2 * math.pi)
        steepness = slope.item() * sigma / scale
        return np.array([centred, centred * centred, steepness * steepness]) * weight

    rounding = 16 * sys.float_info.epsilon * abs(offset) / scale  # of φ(z) - φ(0) beside its size
    with np.errstate(invalid="ignore", over="ignore"):  # a result that is not finite is reported below
        (mean, square, backward), _, info = quad_vec(
            integrand,
            -_REACH,
            _REACH,
            epsabs=1e-13,
            epsrel=_TOLERANCE + rounding,
            norm="max",
            limit=2000,
            points=_POINTS,
            full_output=True,
        )
    if rounding > 1e-6 or not info.success or not math.isfinite(square + backward):
        raise ValueError(
            f"the integral over z ~ N(0, {sigma}²) did not converge for activation {activation}: {info.message} "
            "Expected a piecewise smooth function of moderate growth that changes visibly over one sigma; "
            "try another sigma"
        )
    unit = (scale / sigma) ** 2
    return VarianceFactors(float(square - mean**2) * unit, float(backward) * unit, sigma, offset + scale * float(mean))


def _value_and_slope(
    activation: Activation, z: Float[Tensor, " n"]
) -> tuple[Float[Tensor, "..."], Float[Tensor, " n"]]:  # the value's shape is the caller's to check
    with torch.enable_grad():
        leaf = z.requires_grad_()
        value = activation(leaf.clone())  # a clone, because in-place activations refuse a leaf
        (slope,) = torch.autograd.grad(value.sum(), leaf)
    return value.detach(), slope


def _probe(activation: Activation, sigma: float) -> tuple[float, float]:
    """Check that the activation can be integrated; its value at 0 and the unit of the integrals.

    The value is subtracted before squaring, so that a large offset costs no digits; the unit is how far the activation
    moves from there within ±3 standard deviations, sigma if it does not.

    Raises:
        ValueError: if the activation fails, is not elementwise, is not differentiable or is not finite.
    """
    grid = sigma * torch.tensor([0.0, -3.1, -1.3, -0.4, 0.7, 1.9, 2.8], dtype=torch.float64)
    problem = None
    try:
        together, slope = _value_and_slope(activation, grid.clone())
        alone = [_value_and_slope(activation, z.clone())[0] for z in torch.tensor_split(grid, len(grid))]
    except (RuntimeError, TypeError, IndexError, AttributeError) as error:  # the last one: a class, not an instance
        raise ValueError(
            "expected an elementwise activation that takes a float64 tensor and is differentiable by autograd, "
            f"got {activation}, which failed on a tensor of shape (7,): {error}"
        ) from error
    if together.shape != grid.shape or not torch.allclose(together, torch.cat(alone), rtol=1e-9, equal_nan=True):
        problem = "is not elementwise: its value at a point depends on the other points, or its shape differs"
    elif not (together.isfinite().all() and slope.isfinite().all()):
        problem = f"is not finite on ±3 standard deviations of {sigma}: values {together.tolist()}"
    if problem:
        raise ValueError(f"activation {activation} {problem}; pass an elementwise, finite function")
    return float(together[0]), float((together - together[0]).abs().max()) or sigma
