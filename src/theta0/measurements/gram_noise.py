"""Outputs of a linear map under weight noise, without drawing the weights."""

import torch
from torch import Tensor

from theta0.measurements.perturbation_noise import Noise, normal

# What one random number costs beside one multiplication in a matrix product: drawing, storing, reading it back.
_NUMBER = 64
_JITTERS = {torch.float64: (1e-10, 1e-8, 1e-6, 1e-4)}
_SINGLE_JITTERS = (1e-5, 1e-4, 1e-3)


def gram_is_cheaper(rows: int, fan_in: int, fan_out: int) -> bool:
    """Whether the Gram-Cholesky route costs less than explicit weights, in multiplications a perturbation.

    Gram: rows² (fan_in + fan_out) + rows³ / 3 and rows · fan_out random numbers. Explicit: fan_in · fan_out random
    numbers. Both multiply the inputs with the mean weight once.

    Args:
        rows: samples × positions that one perturbation's weights are applied to.
        fan_in: columns of the weight.
        fan_out: rows of the weight.

    Returns:
        Whether.
    """
    gram = rows * rows * (fan_in + fan_out) + rows**3 / 3 + _NUMBER * rows * fan_out
    return gram < _NUMBER * fan_in * fan_out


def gram_route(
    source: Tensor, weight: Tensor, bias: Tensor | None, weight_std: float, bias_std: float, noise: Noise, layer: str
) -> Tensor:
    r"""z = H Wᵀ + 1 bᵀ + L Z with L Lᵀ = K = σ_w² H Hᵀ + σ_b² 1 1ᵀ and Z iid standard normal.

    With H (rows × fan-in) given and iid weight noise of variance σ_w², the outputs of one perturbed map are jointly
    Gaussian: the rows have covariance K, the units are independent. This samples exactly that distribution (up to a
    jitter of 1e-5 of K's diagonal, 1e-10 in float64), with rows · fan-out random numbers in place of fan-in · fan-out,
    and keeps one ε for all rows, which lee2023mmd's equation 14 needs.

    Args:
        source: H of each perturbation, perturbations × rows × fan-in; or rows × fan-in where it is the same for all.
        weight: fan-out × fan-in.
        bias: fan-out, if any.
        weight_std: σ_w.
        bias_std: σ_b; zero without a perturbed bias.
        noise: draws Z.
        layer: named in errors.

    Returns:
        perturbations × rows × fan-out.
    """
    mean = torch.nn.functional.linear(source, weight, bias)
    factor = _factor(source, weight_std, bias_std, layer)
    numbers = normal(noise, mean.shape[-2:], mean.detach())
    count = len(noise.generators)
    if source.dim() == 2:
        mean, factor = mean.expand(count, -1, -1), factor.expand(count, -1, -1)
    return torch.baddbmm(mean, factor, numbers)


def _factor(source: Tensor, weight_std: float, bias_std: float, layer: str) -> Tensor:
    """The Cholesky factor of K; the jitter grows until every K has one."""
    double = torch.promote_types(source.dtype, torch.float32)
    wide = source.to(double)
    kernel = wide @ wide.mT * weight_std**2 + bias_std**2
    scale = kernel.detach().diagonal(dim1=-2, dim2=-1)
    floor = scale.mean(-1, keepdim=True).clamp_min(torch.finfo(double).tiny * 1e6)
    for jitter in _JITTERS.get(double, _SINGLE_JITTERS):
        factor, info = torch.linalg.cholesky_ex(kernel + torch.diag_embed(jitter * (scale + floor)))
        if not bool(info.any()):
            return factor.to(source.dtype)
    how = "holds values that are not finite" if not bool(torch.isfinite(kernel).all()) else "has no Cholesky factor"
    raise ValueError(
        f"layer {layer!r}: expected inputs with a finite Gram matrix, got one that {how}; look for exploding "
        "activations with theta0.diagnose, or lower the scale of the perturbation"
    )
