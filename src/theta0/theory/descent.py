"""How fast gradient descent goes down a quadratic, by the extreme eigenvalues of its curvature."""

import math

from jaxtyping import Float
from torch import Tensor


def condition_number(eigenvalues: Float[Tensor, " n"], *, tolerance: float = 1e-10) -> float:
    r"""$κ = λ_{max} / λ_{min}$ over the eigenvalues that are not zero: the directions in which the loss changes at all.

    Near a minimum gradient descent at rate η multiplies the error along an eigenvector by 1 - ηλ; at 1/λ_max the
    slowest direction keeps the share 1 - 1/κ (furusho2020thesis, section 2.4). Of a Fisher matrix
    E[∇f ∇fᵀ] over n samples the eigenvalues that are not zero are those of the n × n Gram matrix of gradients over n:
    `torch.linalg.eigvalsh(measurements.gradient_gram(...)) / n`.

        >>> import torch
        >>> condition_number(torch.tensor([0.0, 0.5, 2.0]))
        4.0

    Args:
        eigenvalues: of a matrix that is positive semidefinite.
        tolerance: of the largest, below which an eigenvalue is taken for zero.

    Returns:
        κ ≥ 1.

    Raises:
        ValueError: if an eigenvalue is negative beyond the tolerance or not finite, or none is positive.
    """
    values = eigenvalues.detach().double()
    largest = float(values.max()) if values.numel() else 0.0
    if not (math.isfinite(largest) and largest > 0 and float(values.min()) >= -tolerance * largest):
        raise ValueError(
            "eigenvalues: expected those of a positive semidefinite matrix, finite and one of them positive, got "
            f"{[round(v, 6) for v in values.flatten()[:4].tolist()]}"
        )
    return largest / float(values[values > tolerance * largest].min())


def slowest_factor(smallest: float, largest: float, rate: float) -> float:
    r"""$\max_λ |1 - ηλ|$ over [λ_min, λ_max]: what a step of gradient descent leaves of the error at worst.

    Below 1 exactly where 0 < η < 2/λ_max; least, (κ - 1)/(κ + 1), at η = 2/(λ_min + λ_max), and 1 - 1/κ at the thesis's
    1/λ_max (furusho2020thesis, section 2.4).

        >>> slowest_factor(0.5, 2.0, 0.5), slowest_factor(0.5, 2.0, 1.5)
        (0.75, 2.0)

    Args:
        smallest: λ_min ≥ 0.
        largest: λ_max ≥ λ_min.
        rate: η.

    Returns:
        The factor.

    Raises:
        ValueError: if the eigenvalues are out of order or negative.
    """
    if not 0 <= smallest <= largest:
        raise ValueError(f"smallest, largest: expected 0 <= smallest <= largest, got {smallest} and {largest}")
    return max(abs(1 - rate * smallest), abs(1 - rate * largest))


def population_error_bound(theta: float, deviation: float, samples: int, confidence: float) -> float:
    r"""Bound the population error by the training bound Θ: $Θ + σ / \sqrt{nδ}$ with probability 1 - δ.

    From Chebyshev's inequality over the squared distances ‖θ* - θ*_i‖² of the samples' own optima
    (yang2022nio, Theorem 3, eqs. 14-16). As printed; its derivation multiplies the distances by H/2, half the loss's
    smoothness, which eq. 15 leaves out of the second summand: pass (H/2)·σ for what the derivation gives.

        >>> population_error_bound(0.5, 1.0, 400, 0.99)
        1.0

    Args:
        theta: Θ of Theorem 2.
        deviation: σ, the standard deviation over samples of ‖θ* - θ*_i‖².
        samples: n ≥ 1.
        confidence: 1 - δ, between 0 and 1.

    Returns:
        The bound, in units of the loss.

    Raises:
        ValueError: if an argument is out of range.
    """
    if not (samples >= 1 and 0 < confidence < 1 and deviation >= 0):
        raise ValueError(
            "expected samples >= 1, deviation >= 0 and a confidence between 0 and 1, got "
            f"{samples}, {deviation} and {confidence}"
        )
    return theta + deviation / math.sqrt(samples * round(1 - confidence, 15))
