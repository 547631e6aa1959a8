"""What the Gram matrix G_ij = g_i · g_j of gradients says: alignment, norms, noise, Fisher eigenvalues, a bound."""

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor

from theta0.measurements.gram_products import Route


@dataclass(frozen=True, eq=False)
class GradientGram:
    """The inner products of per-sample gradients.

    Attributes:
        gram: G_ij = g_i · g_j over all trainable parameters.
        routes: how each trainable parameter's share was found (see `gram_products.gram_of`); "per-sample" where
            gradients were stored, "unused" where the loss does not depend on it.
        size: how many samples a row stands for: 1, or a sub-batch's length.
        cost: in gradients (forward and backward) of the mean batch: passes over samples, and multiplications in
            products relative to those that the same parameters' gradients take.
    """

    gram: Float64[Tensor, "n n"]
    routes: Mapping[str, Route]
    size: int
    cost: float


def gradient_norms(gram: GradientGram) -> Float64[Tensor, " n"]:
    """‖g_i‖ of every sample.

    Returns:
        The norms.
    """
    return gram.gram.diagonal().clamp_min(0).sqrt()


def gradcosine(gram: GradientGram) -> float:
    r"""$(1/n^2) \sum_{ij} \cos∠(g_i, g_j)$ (yang2022nio, section 3): 1 where all samples pull the same way.

    A sample without gradient counts as orthogonal to all, itself included.

    Returns:
        The mean cosine, between 0 and 1.
    """
    norms = gradient_norms(gram)
    directions = torch.where(norms > 0, 1 / norms, 0.0)
    return float(directions @ gram.gram @ directions) / len(norms) ** 2


def gradient_noise(gram: GradientGram) -> float:
    r"""$\mathrm{tr}\,Σ / ‖ḡ‖^2$, Σ the covariance of the rows' gradients (n - 1 in its denominator) and ḡ their mean.

    Times `gram.size` it is the batch size at which noise and signal are equal ("simple noise scale").

    Returns:
        The ratio; infinite where the mean gradient vanishes.
    """
    n = len(gram.gram)
    mean = float(gram.gram.sum()) / n**2
    trace = max(0.0, float(gram.gram.trace()) - n * mean) / (n - 1)
    return trace / mean if mean > 0 else math.inf


def fisher_eigenvalues(gram: GradientGram) -> Float64[Tensor, " n"]:
    r"""Eigenvalues of the empirical Fisher matrix $(1/n) \sum_i g_i g_i^⊤$, which are those of G/n, and zeros.

    Returns:
        The n largest, in descending order.
    """
    values: Tensor = torch.linalg.eigvalsh(gram.gram / len(gram.gram))
    return values.flip(0).clamp_min(0)


def path_bound(gram: GradientGram) -> float:
    r"""Theorem 2's bound of the loss that training can reach, in units of its constants: $Θ / (H η^2)$.

    $Θ = \frac{H α^2}{n} \sum_{ij} (α/β - \cos∠(p_i, p_j))$ (yang2022nio, section A.2, eq. 13), p_i the path from the
    start to the optimum of sample i alone, α and β the longest and the shortest. Each path is taken as one step of
    gradient descent at rate η, $p_i ≈ -η g_i$ (its eq. 3), and H bounds the curvature: neither is known here.

    Returns:
        The number; infinite where a sample has no gradient, since β is then 0.
    """
    norms = gradient_norms(gram)
    longest, shortest = float(norms.max()), float(norms.min())
    if shortest == 0:
        return math.inf
    return longest**2 * len(norms) * (longest / shortest - gradcosine(gram))


def symmetric(gram: Float64[Tensor, "n n"]) -> Float64[Tensor, "n n"]:
    """The Gram matrix without what rounding does to its symmetry.

    Returns:
        A symmetric matrix.

    Raises:
        ValueError: if it is not finite.
    """
    if not bool(torch.isfinite(gram).all()):
        raise ValueError("gradients: expected finite inner products, got NaN or infinite ones; run diagnose first")
    return (gram + gram.T) / 2
