"""The decay of a ReLU network's Fourier coefficients with frequency, by its slope and its number of linear pieces."""

import math


def fourier_coefficient_bound(frequency: float, *, lipschitz: float, regions: int, dimension: int = 1) -> float:
    r"""What bounds a Fourier coefficient of a ReLU network, up to a constant factor.

    $\sum_{d=1}^{D} ‖k‖^{-(d+1)} \, ‖f‖_{Lip} \, K(θ)$ (furusho2020thesis, Theorem 3; Rahaman et al., 2019,
    https://arxiv.org/abs/1806.08734). For D = 1 the factor is 2 where f vanishes at both ends of its support: the
    second derivative of a piecewise linear f is a sum of K + 1 impulses, of which none exceeds 2 ‖f‖_Lip and the two
    outer ones are at most ‖f‖_Lip, so that $|\tilde f(k)| ≤ 2 K ‖f‖_{Lip} / k^2$.

        >>> fourier_coefficient_bound(10.0, lipschitz=2.0, regions=5)
        0.1

    Args:
        frequency: ‖k‖ > 0, in radians per unit of the input.
        lipschitz: ‖f‖_Lip, for example `spectra.linear_regions(...).lipschitz` or `measurements.lipschitz_bounds`.
        regions: K(θ), the number of linear pieces.
        dimension: D of the input; 1 along a line.

    Returns:
        The sum, in units of the output times the input's to the power D.

    Raises:
        ValueError: if an argument is out of range.
    """
    wanted = {
        "frequency": (frequency, frequency > 0 and math.isfinite(frequency), "a positive number"),
        "lipschitz": (lipschitz, lipschitz >= 0, "a number of at least 0"),
        "regions": (regions, regions >= 1, "at least 1"),
        "dimension": (dimension, dimension >= 1, "at least 1"),
    }
    for name, (value, holds, expected) in wanted.items():
        if not holds:
            raise ValueError(f"{name}: expected {expected}, got {value}")
    return lipschitz * regions * math.fsum(frequency ** -(d + 1) for d in range(1, dimension + 1))
