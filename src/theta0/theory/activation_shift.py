"""Activation shift and what a fully connected layer does to variances, forward and backward (kutsuna2019lcw, §§2-4)."""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

from theta0.theory.variance_factors import Activation, variance_factors


@dataclass(frozen=True, eq=False)
class ExpectedPreactivation:
    r"""$E[w·a] = ‖w‖ ‖μ‖ \cos∠(w, μ)$ of every unit of a layer, μ = E[a]; in float64.

    Attributes:
        value: E[w·a].
        weight_norm: ‖w‖.
        mean_norm: ‖μ‖.
        cosine: of the angle between w and μ; 0 where one of them is zero.
    """

    value: Float64[Tensor, " units"]
    weight_norm: Float64[Tensor, " units"]
    mean_norm: float
    cosine: Float64[Tensor, " units"]


@dataclass(frozen=True, eq=False)
class LayerGain:
    """By how much a layer z = Wa multiplies variances, for a of mean γ1 and covariance σ²I; in float64.

    Attributes:
        rows: η = ‖w_i‖², from V(a) to V(z_i) of one unit over the data.
        columns: ξ = ‖w̃_j‖², from V(∇z) to V(∇a_j) of one input.
        forward: from V(a) to the variance of z over units and data together: the mean of η, and γ²/σ² times the
            variance of the row sums, which is the activation shift.
        backward: from V(∇z) to the variance of ∇a over inputs and data together: the mean of ξ.
    """

    rows: Float64[Tensor, " units"]
    columns: Float64[Tensor, " inputs"]
    forward: float
    backward: float


def expected_preactivation(
    weight: Float[Tensor, "units inputs"], mean: Float[Tensor, " inputs"]
) -> ExpectedPreactivation:
    r"""The mean of every unit's preactivation w·a before its bias (kutsuna2019lcw, Proposition 2).

    Proposition 1 is the case μ = γ1. It prints $|γ| \sqrt m ‖w‖ \cos θ$ with θ the angle between w and 1, which has the
    wrong sign for γ < 0: there the angle is that between w and γ1, as in its proof. Proposition 3: zero-sum weights
    give 0 in that case, whatever γ.

    Args:
        weight: W.
        mean: μ.

    Returns:
        Both sides of the proposition.

    >>> found = expected_preactivation(torch.tensor([[3.0, 4.0], [1.0, -1.0]]), torch.tensor([2.0, 2.0]))
    >>> found.value.tolist()
    [14.0, 0.0]
    """
    w, mu = weight.detach().double(), mean.detach().double()
    norms, size = w.norm(dim=1), float(mu.norm())
    products, value = norms * size, w @ mu
    cosine = torch.where(products > 0, value / products.clamp_min(1e-300), 0.0)
    return ExpectedPreactivation(value, norms, size, cosine)


def common_mean_share(mean: Float[Tensor, " inputs"]) -> float:
    """How much of ‖μ‖² lies along the vector of ones, mγ²/‖μ‖² with γ the mean of μ: what zero-sum weights cancel.

    1 is Definition 1's distribution 𝒫_γ, on which zero-sum weights leave no shift (kutsuna2019lcw, Proposition 3); what
    is missing from 1 is shift that they leave. A vector μ = 0 has none to cancel and counts as 1.

    Args:
        mean: μ = E[a].

    Returns:
        A share between 0 and 1.

    Example:
        >>> import torch
        >>> common_mean_share(torch.tensor([0.5, 0.5])), common_mean_share(torch.tensor([0.5, -0.5]))
        (1.0, 0.0)
    """
    mu = mean.detach().double()
    total = float(mu.square().sum())
    return min(1.0, float(mu.sum()) ** 2 / len(mu) / total) if total > 0 else 1.0


def preactivation_variance(
    weight: Float[Tensor, "units inputs"], covariance: float | Float[Tensor, "inputs inputs"]
) -> Float64[Tensor, " units"]:
    """V(z_i) = w_iᵀ Cov(a) w_i of every unit over the data (kutsuna2019lcw, Proposition 4: σ²‖w_i‖²).

    The mean of a does not enter, so that it holds for zero-sum and other weights alike.

    Args:
        weight: W.
        covariance: Cov(a), or σ² where that is σ²I.

    Returns:
        The variances.

    Example:
        >>> import torch
        >>> preactivation_variance(torch.tensor([[3.0, 4.0]]), 0.5).tolist()
        [12.5]
    """
    w = weight.detach().double()
    if isinstance(covariance, Tensor):
        return ((w @ covariance.detach().double()) * w).sum(1)
    return covariance * w.square().sum(1)


def input_gradient_variance(weight: Float[Tensor, "units inputs"], variance: float) -> Float64[Tensor, " inputs"]:
    """V(∇a_j) = σ²‖w̃_j‖² for ∇a = Wᵀ∇z, Cov(∇z) = σ²I of mean 0 (kutsuna2019lcw, Proposition 5).

    Args:
        weight: W.
        variance: σ².

    Returns:
        The variance at every input.

    Example:
        >>> import torch
        >>> input_gradient_variance(torch.tensor([[1.0, 2.0], [1.0, 0.0]]), 0.5).tolist()
        [1.0, 2.0]
    """
    return variance * weight.detach().double().square().sum(0)


def layer_gain(weight: Float[Tensor, "units inputs"], *, mean: float = 0.0, variance: float = 1.0) -> LayerGain:
    """A layer's amplification of variances, forward and backward (kutsuna2019lcw, section 4.1).

    All four numbers grow as κ² when W becomes κW. A square layer has the same mean η and ξ, so forward and backward
    agree where there is no shift: for zero-sum rows, or γ = 0. Otherwise the variance that a rescaling to unit variance
    sees is larger forward, by the shift; the variance of one unit over the data is not, with or without zero sums.

    Args:
        weight: W.
        mean: γ, the mean of every input.
        variance: σ² > 0, their variance.

    Returns:
        The gains.

    Raises:
        ValueError: the variance is not positive and finite, or the mean is not finite.

    Example:
        Zero-sum rows take away what the mean of the inputs adds forward:

        >>> import torch
        >>> weight = torch.tensor([[1.0, 1.0], [1.0, -1.0]])
        >>> layer_gain(weight, mean=0.0).forward, layer_gain(weight, mean=2.0).forward
        (2.0, 6.0)
    """
    if not (0 < variance < math.inf and math.isfinite(mean)):
        raise ValueError(f"expected a finite mean and a positive, finite variance, got {mean} and {variance}")
    w = weight.detach().double()
    rows, columns = w.square().sum(1), w.square().sum(0)
    shift = mean**2 * float(w.sum(1).var(correction=0))
    return LayerGain(rows, columns, float(rows.mean()) + shift / variance, float(columns.mean()))


def relu_variances(preactivation_variance: float, gradient_variance: float) -> tuple[float, float]:
    """V(a) = V(z)/2 · (1 - 1/π) and V(∇z) = V(∇a)/2 through a ReLU (kutsuna2019lcw, Proposition 6).

    Args:
        preactivation_variance: V(z), z normal of mean 0.
        gradient_variance: V(∇a), independent of z, of mean 0.

    Returns:
        V(a) and V(∇z).

    Example:
        >>> [round(variance, 3) for variance in relu_variances(1.0, 1.0)]
        [0.341, 0.5]
    """
    return preactivation_variance / 2 * (1 - 1 / math.pi), gradient_variance / 2


def gradient_gain(activation: Activation, *, zero_sum: bool, sigma: float = 1.0) -> float:
    """Gradient variance of one hidden layer's preactivations over that of the next, at a start of equal variances.

    The numbers of section 4.3 of kutsuna2019lcw, for wide square layers of independent random weights scaled so that
    preactivations have variance σ² over units and data. The scale needed is σ²/E[φ²] for plain weights, whose shift is
    part of that variance, and σ²/V(φ) for zero-sum ones; back comes E[φ'²] times that. Sigmoid, σ = 1: 0.15 per layer
    against 1.03; over 20 layers 3e-16 against 1.9.

    Args:
        activation: as for `variance_factors`.
        zero_sum: whether the weights of every unit sum to zero.
        sigma: σ.

    Returns:
        The gain per layer: below 1 gradients vanish towards the input, above 1 they grow.

    Raises:
        ValueError: as `variance_factors`, and for a constant activation, which no scale brings to σ².

    >>> [round(gradient_gain(torch.sigmoid, zero_sum=zero_sum), 3) for zero_sum in (False, True)]
    [0.153, 1.034]
    """
    factors = variance_factors(activation, sigma)
    shift = 0.0 if zero_sum else factors.mean**2 / sigma**2
    if factors.forward + shift == 0:
        raise ValueError(f"expected an activation that varies on ±3 standard deviations of {sigma}, got {activation}")
    return factors.backward / (factors.forward + shift)
