"""Closed forms for the Fisher information of a residual net at its start (furusho2020thesis, section 4.2, appendix B).

The net is h⁰ = W⁰x, hˡ = Wˡφ(hˡ⁻¹) + hˡ⁻¹ for l = 1..L, f = 1ᵀhᴸ: D inputs of mean 0 and variance 1, width D, ReLU,
no biases, W⁰ ~ N(0, 1/D), Wˡ ~ N(0, 2/D) (eqs. 12, 26). With batch normalization φ acts on BN(hˡ⁻¹) (eq. 13); with
stochastic depth the branch is multiplied by βˡ = 0 or 1 (eq. 14). The Fisher matrix is F = E_x[∇f ∇fᵀ] (eq. 19), the
curvature of the loss ½(f - y)² where the residual is small; the closed forms are about E_θ F, for which
λ_max(E_θ F) ≤ E_θ λ_max(F).

They hold in the limit of wide layers: the mean eigenvalue of simulated ReLU nets lies above Theorem 6 by a share that
falls as 1/D and grows with depth (1.2/D for L = 4, 2.5/D for L = 6).
"""

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import Literal

Dropping = Literal["exactly", "bernoulli"]

GAUSSIAN_VARIANCE_PER_LAYER = 1 - 1 / math.pi
"""2 Var(φ(z)) for z ~ N(0, 1) and ReLU φ: what a layer adds to the variance of a unit over the batch."""


@dataclass(frozen=True)
class FisherBounds:
    """The mean eigenvalue of the expected Fisher matrix and what it says about the largest.

    Attributes:
        mean: m, the mean of all eigenvalues: the trace divided by the number of parameters.
        lower: lower bound of the largest eigenvalue, m.
        upper: upper bound of the largest eigenvalue, the trace P·m.
        parameters: P = (L + 1)D².
    """

    mean: float
    lower: float
    upper: float
    parameters: int


@dataclass(frozen=True)
class Moments:
    """Second moments of the signals on both sides of each weight matrix, layers 0..L.

    Attributes:
        forward: E[(uˡ_j)²], of what Wˡ multiplies; the entry 0 is the input x, of second moment 1.
        backward: E[(δˡ_i)²], of δˡ = ∂f/∂hˡ.
    """

    forward: tuple[float, ...]
    backward: tuple[float, ...]


def resnet_moments(depth: int) -> Moments:
    """Forward 2ˡ⁻² for l ≥ 1 and backward 2ᴸ⁻ˡ (furusho2020thesis, Lemma 2).

    Returns:
        The moments for L = `depth` ≥ 0; pure numbers.

    >>> resnet_moments(2)
    Moments(forward=(1.0, 0.5, 1.0), backward=(4.0, 2.0, 1.0))
    """
    _whole("depth", depth, 0)
    backward = tuple(_power(2.0, depth - layer) for layer in range(depth + 1))
    return Moments((1.0, *(2.0 ** (layer - 2) for layer in range(1, depth + 1))), backward)


def batch_norm_moments(depth: int, *, variance_per_layer: float = 1.0) -> Moments:
    """Forward ½ for l ≥ 1 and backward Π_{k>l} (1 + 1/v_{k-1}), v_l = 1 + c·l the variance of hˡ_i.

    The source takes c = 1, which gives (L + 1)/(l + 1) (furusho2020thesis, Lemma 3). That is the variance over
    parameters and inputs together; batch normalization divides by the variance over the batch alone, to which a layer
    adds c = 1 - 1/π when its input is Gaussian (`GAUSSIAN_VARIANCE_PER_LAYER`): smaller divisors, larger errors.

    Args:
        depth: number of residual layers L ≥ 0.
        variance_per_layer: c > 0.

    Returns:
        The moments; pure numbers. The batch statistics count as constants, as in the source.

    Raises:
        ValueError: if the depth is not a whole number ≥ 0 or c is not positive and finite.

    >>> batch_norm_moments(3).backward
    (4.0, 2.0, 1.3333333333333333, 1.0)
    """
    _whole("depth", depth, 0)
    if not 0 < variance_per_layer < math.inf:
        raise ValueError(f"variance_per_layer must be positive and finite (1 in the source), got {variance_per_layer}")
    backward = [1.0]
    for k in range(depth, 0, -1):
        backward.append(backward[-1] * (1 + 1 / (1 + variance_per_layer * (k - 1))))
    return Moments((1.0, *(0.5,) * depth), tuple(reversed(backward)))


def stochastic_depth_moments(depth: int, survival: float, *, dropping: Dropping = "exactly") -> Moments:
    """Moments over the drops too, for layer l of the whole net.

    `"bernoulli"`, each layer kept with probability p on its own (furusho2020thesis, eq. 14): the source's path count
    (appendix B.3) with each layer weighed by p gives forward p(1+p)ˡ⁻¹/2 and backward (1+p)ᴸ⁻ˡ.
    `"exactly"`, pL of the L layers kept, every set alike: forward (p/2)·E[2ᴺ] with N the layers kept before l when l
    is kept, backward E[2ᴺ] with N those kept after l; both N are hypergeometric. A layer's two moments are then
    dependent: when it is kept, E[u²δ²] = 2^{pL}/4, which is what Theorem 8 sums.

    Args:
        depth: number of residual layers L ≥ 0.
        survival: probability p that a layer is kept, 0..1.
        dropping: the law of the drops.

    Returns:
        The moments; pure numbers.

    >>> stochastic_depth_moments(2, 0.5, dropping="bernoulli")
    Moments(forward=(1.0, 0.25, 0.375), backward=(2.25, 1.5, 1.0))
    """
    _whole("depth", depth, 0)
    _probability(survival)
    layers = range(1, depth + 1)
    if not _exactly(dropping):
        _power(1 + survival, depth)
        forward = [survival * (1 + survival) ** (layer - 1) / 2 for layer in layers]
        return Moments((1.0, *forward), tuple((1 + survival) ** (depth - layer) for layer in range(depth + 1)))
    kept = kept_layers(depth, survival)
    _power(2.0, kept)
    forward = [survival / 2 * _mean_power_of_two(depth - 1, kept - 1, layer - 1) if kept else 0.0 for layer in layers]
    return Moments((1.0, *forward), tuple(_mean_power_of_two(depth, kept, depth - layer) for layer in range(depth + 1)))


def printed_stochastic_depth_moments(depth: int, survival: float) -> Moments:
    """Forward p·2ˡ⁻² for l ≥ 1 and backward 2^{pL-l}, as the source prints them (furusho2020thesis, Lemma 4).

    They are those of the l-th layer of a net of pL layers, with the factor p of a drop: their products sum to
    Theorem 8, but for a layer of the whole net they are not the moments (the backward one falls below 1 for l > pL,
    although the skip alone carries 1). `stochastic_depth_moments` gives those.

    Args:
        depth: number of residual layers L ≥ 0.
        survival: probability p that a layer is kept, 0..1, with pL whole.

    Returns:
        The moments; pure numbers.

    >>> printed_stochastic_depth_moments(2, 0.5)
    Moments(forward=(1.0, 0.25, 0.5), backward=(2.0, 1.0, 0.5))
    """
    kept = kept_layers(depth, survival)
    _power(2.0, max(kept, depth))
    forward = (survival * 2.0 ** (layer - 2) for layer in range(1, depth + 1))
    return Moments((1.0, *forward), tuple(2.0 ** (kept - layer) for layer in range(depth + 1)))


def resnet_bounds(depth: int, width: int) -> FisherBounds:
    """Mean m = (L+4)/(4L+4)·2ᴸ and m ≤ λ_max ≤ (L+1)D²m (furusho2020thesis, Theorem 6).

    Args:
        depth: number of residual layers L ≥ 0.
        width: number D ≥ 1 of inputs and of units in every layer.

    Returns:
        The bounds, in units of curvature of the loss ½(f - y)².

    >>> resnet_bounds(2, 10)
    FisherBounds(mean=2.0, lower=2.0, upper=600.0, parameters=300)
    """
    _whole("depth", depth, 0)
    return _bounds((depth + 4) / (4 * depth + 4) * _power(2.0, depth), depth, width)


def batch_norm_resnet_bounds(depth: int, width: int, *, variance_per_layer: float = 1.0) -> FisherBounds:
    """Mean m = (H_{L+1} + 1)/2, H the harmonic number, and m ≤ λ_max ≤ (L+1)D²m (furusho2020thesis, Theorem 7).

    Real networks grow faster: see `batch_norm_moments`, whose `variance_per_layer=GAUSSIAN_VARIANCE_PER_LAYER` is their
    limit for wide layers while the statistics count as constants (L = 8: 1.91 in the source, 2.64 with it).

    Args:
        depth: number of residual layers L ≥ 0.
        width: number D ≥ 1 of inputs and of units in every layer.
        variance_per_layer: what a layer adds to the variance of a unit; 1 in the source.

    Returns:
        The bounds, in units of curvature of the loss ½(f - y)².

    >>> batch_norm_resnet_bounds(1, 10)
    FisherBounds(mean=1.25, lower=1.25, upper=250.0, parameters=200)
    """
    moments = batch_norm_moments(depth, variance_per_layer=variance_per_layer)
    products = (u * d for u, d in zip(moments.forward, moments.backward, strict=True))  # Lemma 1, Assumption 1
    return _bounds(math.fsum(products) / (depth + 1), depth, width)


def stochastic_depth_bounds(depth: int, width: int, survival: float, *, dropping: Dropping = "exactly") -> FisherBounds:
    """Bounds m ≤ λ_max ≤ (L+1)D²m for a residual net that drops layers in training.

    `"exactly"`: m = (pL+4)/(4L+4)·2^{pL} when pL layers are kept (furusho2020thesis, Theorem 8).
    `"bernoulli"`: m = [(1+p)ᴸ + Lp(1+p)ᴸ⁻¹/2]/(L+1) for independent drops (eq. 14; the source's count with each layer
    weighed by p). It is the larger one: 2^N averaged over the number N of kept layers exceeds 2 to the average N.

    Args:
        depth: number of residual layers L ≥ 0.
        width: number D ≥ 1 of inputs and of units in every layer.
        survival: probability p that a layer is kept, 0..1.
        dropping: the law of the drops.

    Returns:
        The bounds, in units of curvature of the loss ½(f - y)². Weights of dropped layers count, with gradient 0.

    >>> stochastic_depth_bounds(6, 10, 0.5).mean, stochastic_depth_bounds(6, 10, 0.5, dropping="bernoulli").mean
    (2.0, 3.25446428...)
    """
    _whole("depth", depth, 0)
    _probability(survival)
    if _exactly(dropping):
        kept = kept_layers(depth, survival)
        return _bounds((kept + 4) / (4 * depth + 4) * _power(2.0, kept), depth, width)
    growth = _power(1 + survival, depth)
    return _bounds(growth * (1 + depth * survival / (2 * (1 + survival))) / (depth + 1), depth, width)


def max_learning_rate(bounds: FisherBounds) -> float:
    """2 divided by the upper bound of λ_max: gradient descent on the mean of ½(f - y)² is stable at any smaller rate.

    Source: furusho2020thesis, sections 2.4 and 4.3.3. The mean of (f - y)², torch's `mse_loss`, has twice the
    curvature and tolerates half of it. A real net tolerates more, because its λ_max lies below the trace.

    Returns:
        The rate.

    >>> max_learning_rate(resnet_bounds(0, 1))
    2.0
    """
    return 2 / bounds.upper


def kept_layers(depth: int, survival: float) -> int:
    """The number pL of layers that stay when exactly the share p is kept.

    Returns:
        The product pL as an integer.

    Raises:
        ValueError: if pL is not whole.

    >>> kept_layers(10, 0.3)
    3
    """
    _whole("depth", depth, 0)
    _probability(survival)
    kept = round(survival * depth)
    if abs(survival * depth - kept) > 1e-9 * max(depth, 1):
        raise ValueError(
            f"exactly survival·depth layers can be kept only if this is whole, got {survival}·{depth}; "
            'change one of them or use dropping="bernoulli"'
        )
    return kept


def _mean_power_of_two(layers: int, kept: int, window: int) -> float:
    """Expectation over N of 2ᴺ, where N of the `kept` layers fall among `window` out of `layers`."""
    most = min(kept, window)
    total = sum(math.comb(kept, n) * math.comb(layers - kept, window - n) << n for n in range(most + 1))
    return float(Fraction(total, math.comb(layers, window)))


def _bounds(mean: float, depth: int, width: int) -> FisherBounds:
    _whole("width", width, 1)
    parameters = (depth + 1) * width**2
    return FisherBounds(mean, mean, parameters * mean, parameters)


def _power(base: float, exponent: int) -> float:
    try:
        return base**exponent
    except OverflowError:
        raise ValueError(
            f"depth too large: {base}**{exponent} exceeds the range of floats; use a smaller one"
        ) from None


def _exactly(dropping: str) -> bool:
    if dropping not in {"exactly", "bernoulli"}:
        raise ValueError(f'dropping must be "exactly" or "bernoulli", got {dropping!r}')
    return dropping == "exactly"


def _probability(survival: float) -> None:
    if not 0 <= survival <= 1:
        raise ValueError(f"survival must be a probability between 0 and 1, got {survival}")


def _whole(name: str, value: int, least: int) -> None:
    if not isinstance(value, int) or value < least:
        raise ValueError(f"{name} must be a whole number of at least {least}, got {value!r}")
