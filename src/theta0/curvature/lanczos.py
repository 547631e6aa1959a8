"""The largest eigenvalues of a symmetric matrix known by its products: Lanczos with full reorthogonalisation."""

import math
from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Float
from scipy.linalg import eigh_tridiagonal
from torch import Tensor

from theta0._errors import NoCurvatureError
from theta0._progress import require_time

_ASYMMETRY = 1e-2  # of the largest Ritz value; rounding in float32 networks stays below 1e-4


@dataclass(frozen=True, eq=False)
class Ritz:
    """Approximate eigenpairs.

    Attributes:
        values: the largest first.
        residuals: ‖A u - θ u‖ for each.
        errors: what each may be off by, min(r, r²/g).
        vector: the eigenvector of the first, of length 1.
        products: how many were taken.
        converged: whether the errors are below what was asked.
    """

    values: tuple[float, ...]
    residuals: tuple[float, ...]
    errors: tuple[float, ...]
    vector: Float[Tensor, " n"]
    products: int
    converged: bool


def lanczos(
    multiply: Callable[[Tensor], Tensor],
    start: Float[Tensor, " n"],
    fresh: Callable[[], Tensor],
    *,
    wanted: int = 1,
    tolerance: float = 1e-2,
    least: int = 4,
    most: int = 100,
    precision: torch.dtype = torch.float32,
) -> Ritz:
    """Lanczos' iteration from a start vector, until the wanted eigenvalues have converged.

    An eigenvalue lies within min(r, r²/g) of a Ritz value θ with residual r = ‖Au - θu‖ and gap g to the next Ritz
    value (Kato and Temple; exact where g is the gap to the next eigenvalue). Converged means that this is at most
    tolerance·θ, and the growth of θ in the last product a third of it: a plateau at the second eigenvalue, or between
    two close ones, shows small residuals before the first has emerged. The tridiagonal matrix is kept in float64.

    Args:
        multiply: v ↦ A v.
        start: not zero.
        fresh: draws a vector for a further invariant subspace, when the first is exhausted.
        wanted: how many eigenvalues.
        tolerance: of the eigenvalues, relative.
        least: at least so many products (unless the space is exhausted).
        most: at most so many.
        precision: in which products are rounded.

    Raises:
        ValueError: if the matrix is zero, not finite, or not symmetric.
    """
    rounding = 100 * torch.finfo(precision).eps
    most = min(most, start.numel())
    basis = [start / start.norm()]
    diagonal: list[float] = []
    beside: list[float] = []
    earlier = np.zeros(0)
    while True:
        require_time()
        w = multiply(basis[-1])
        _require_finite(w)
        alpha, beta, w, asymmetry = _orthogonalised(w, basis, beside[-1] if beside else 0.0)
        diagonal.append(alpha)
        theta, y = _ritz(diagonal, beside)
        scale = float(np.abs(theta).max())
        if asymmetry > max(_ASYMMETRY * scale, 1e3 * torch.finfo(precision).tiny):
            raise ValueError(_asymmetric(asymmetry / max(scale, 1e-300)))
        exhausted = beta <= rounding * scale or len(basis) == start.numel()
        beta = 0.0 if exhausted else beta
        residuals = beta * np.abs(y[-1])
        errors = _errors(theta, residuals)
        done = len(theta) >= wanted and (exhausted or _settled(theta, earlier, wanted, tolerance))
        done = done and bool((errors[:wanted] <= tolerance * np.abs(theta[:wanted])).all())
        earlier = theta
        if (done and (len(basis) >= least or exhausted)) or len(basis) >= most:
            return _pairs(basis, theta, (residuals, errors), y, wanted, done)
        w = _orthogonal_to(fresh(), basis) if exhausted else w
        basis.append(w / w.norm())
        beside.append(beta)


def _orthogonalised(w: Tensor, basis: list[Tensor], previous: float) -> tuple[float, float, Tensor, float]:
    """Project out the basis, twice.

    Returns:
        α, β, the rest, and the largest coefficient that a symmetric matrix would not have.
    """
    alpha = float(w @ basis[-1])
    asymmetry = abs(float(w @ basis[-2]) - previous) if len(basis) > 1 else 0.0
    for q in basis[:-2]:
        asymmetry = max(asymmetry, abs(float(w @ q)))
    for q in basis[::-1]:
        w = w - (w @ q) * q
    w = _orthogonal_to(w, basis)
    return alpha, float(w.norm()), w, asymmetry


def _orthogonal_to(w: Tensor, basis: list[Tensor]) -> Tensor:
    for q in basis:
        w = w - (w @ q) * q
    return w


def _ritz(diagonal: list[float], beside: list[float]) -> tuple[np.ndarray, np.ndarray]:
    """Eigenvalues of the tridiagonal matrix, the largest first, and its eigenvectors as columns."""
    theta, y = eigh_tridiagonal(np.array(diagonal), np.array(beside))
    return theta[::-1], y[:, ::-1]


def _errors(theta: np.ndarray, residuals: np.ndarray) -> np.ndarray:
    """min(r, r²/g) for each Ritz value, g its distance to the nearest other one."""
    apart = np.abs(np.diff(theta))
    gaps = np.minimum(np.append(apart, np.inf), np.append(np.inf, apart))
    errors: np.ndarray = np.minimum(residuals, residuals**2 / np.maximum(gaps, np.finfo(float).tiny))
    return errors


def _settled(theta: np.ndarray, earlier: np.ndarray, wanted: int, tolerance: float) -> bool:
    if len(earlier) < wanted:
        return False
    return bool((np.abs(theta - np.append(earlier, 0))[:wanted] <= tolerance * np.abs(theta[:wanted]) / 3).all())


def _pairs(
    basis: list[Tensor],
    theta: np.ndarray,
    off: tuple[np.ndarray, np.ndarray],
    y: np.ndarray,
    wanted: int,
    converged: bool,
) -> Ritz:
    if not np.abs(theta).max() > 0:
        raise NoCurvatureError(
            "model: expected a curvature, got zero: the outputs do not change with the trained parameters, or the "
            "loss does not change with the outputs (a constant output, dead units throughout, a saturated softmax)"
        )
    vector = sum(float(c) * q for c, q in zip(y[:, 0], basis, strict=True))
    assert isinstance(vector, Tensor)  # the basis has at least one vector
    return Ritz(
        tuple(map(float, theta[:wanted])),
        tuple(map(float, off[0][:wanted])),
        tuple(map(float, off[1][:wanted])),
        vector / vector.norm(),
        len(basis),
        bool(converged),
    )


def _require_finite(w: Tensor) -> None:
    if not torch.isfinite(w).all():
        raise ValueError(
            "model: expected finite curvature, got NaN or infinite products although the loss is finite; a derivative "
            "overflows or is undefined (a norm or root at zero, exploding gradients); theta0.diagnose says where"
        )


def _asymmetric(share: float) -> str:
    return (
        f"model: expected a symmetric curvature matrix, got products that are not (by {share:.2g} of its largest "
        "eigenvalue): an operation has a wrong double backward, or the forward pass is not the same each time; "
        "look for custom autograd functions"
    )


def products_for(epsilon: float, delta: float, size: int) -> int:
    """Products after which a random start has missed more than a share ε of λ_max with probability at most δ.

    The least k with 1.648 √n e^(-√ε (2k-1)) ≤ δ, for positive semidefinite matrices of n rows (Kuczyński and
    Woźniakowski, 1992, Theorem 4.2).
    """
    k = math.ceil((math.log(1.648 * math.sqrt(size) / delta) / math.sqrt(epsilon) + 1) / 2)
    return min(max(k, 1), size)
