"""Outputs of a linear map under weight noise, without drawing the weights."""

from typing import Any

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

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
    r"""Z = H Wᵀ + 1 bᵀ + L Z with L Lᵀ = K = σ_w² H Hᵀ + σ_b² 1 1ᵀ and Z iid standard normal.

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
    numbers = normal(noise, (source.shape[-2], len(weight)), source.detach())
    result: Tensor = _GramNoise.apply(  # type: ignore[no-untyped-call]
        source, weight, bias, numbers, weight_std, bias_std, layer
    )
    return result


class _GramNoise(torch.autograd.Function):  # autograd's own way through the factor takes twice the passes over H
    @staticmethod
    def forward(
        ctx: Any, source: Tensor, weight: Tensor, bias: Tensor | None, numbers: Tensor, *stds_and_layer: Any
    ) -> Tensor:
        weight_std, bias_std, layer = stds_and_layer
        factor = _factor(source, weight_std, bias_std, layer)
        ctx.save_for_backward(source, weight, numbers, factor)
        ctx.weight_std, ctx.biased = weight_std, bias is not None
        mean = torch.nn.functional.linear(source, weight, bias)
        if source.dim() == 2:
            mean, factor = mean.expand_as(numbers), factor.expand(len(numbers), -1, -1)
        else:
            return mean.baddbmm_(factor, numbers)
        return torch.baddbmm(mean, factor, numbers)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *gradients: Any) -> Any:
        source, weight, numbers, factor = ctx.saved_tensors
        (upstream,) = gradients
        rows = upstream.sum(0) if source.dim() == 2 else upstream  # H, and with it the mean, is the same for all
        by_source = None
        if ctx.needs_input_grad[0]:
            of_factor = torch.bmm(upstream, numbers.mT)
            of_kernel = _through_factor(of_factor.sum(0) if source.dim() == 2 else of_factor, factor)
            by_source = rows @ weight
            multiply = by_source.addmm_ if source.dim() == 2 else by_source.baddbmm_
            by_source = multiply(of_kernel.to(source.dtype), source, alpha=2 * ctx.weight_std**2)
        flat = rows.flatten(0, -2)
        by_weight = flat.mT @ source.flatten(0, -2) if ctx.needs_input_grad[1] else None
        by_bias = flat.sum(0) if ctx.biased and ctx.needs_input_grad[2] else None
        return by_source, by_weight, by_bias, None, None, None, None


def _through_factor(of_factor: Tensor, factor: Tensor) -> Tensor:
    """∂/∂K from ∂/∂L: the symmetric part of L⁻ᵀ Φ(Lᵀ L̄) L⁻¹, Φ the lower triangle with half its diagonal."""
    wide = factor.to(torch.promote_types(factor.dtype, torch.float32))
    inner = (wide.mT @ of_factor.to(wide.dtype).tril()).tril_()
    inner.diagonal(dim1=-2, dim2=-1).mul_(0.5)
    inner = torch.linalg.solve_triangular(wide.mT, inner, upper=True)
    inner = torch.linalg.solve_triangular(wide, inner, upper=False, left=False)
    symmetric: Tensor = (inner + inner.mT) / 2
    return symmetric


def _factor(source: Tensor, weight_std: float, bias_std: float, layer: str) -> Tensor:
    """The Cholesky factor of K; the jitter grows until every K has one."""
    wide = source.to(torch.promote_types(source.dtype, torch.float32))
    kernel = (wide @ wide.mT).mul_(weight_std**2).add_(bias_std**2)
    diagonal = kernel.diagonal(dim1=-2, dim2=-1)
    added = diagonal + diagonal.mean(-1, keepdim=True).clamp_min(torch.finfo(wide.dtype).tiny * 1e6)
    so_far = 0.0
    for jitter in _JITTERS.get(wide.dtype, _SINGLE_JITTERS):
        diagonal.add_(added, alpha=jitter - so_far)
        so_far = jitter
        factor, info = torch.linalg.cholesky_ex(kernel)
        if not bool(info.any()):
            found: Tensor = factor.to(source.dtype)
            return found
    how = "holds values that are not finite" if not bool(torch.isfinite(kernel).all()) else "has no Cholesky factor"
    raise ValueError(
        f"layer {layer!r}: expected inputs with a finite Gram matrix, got one that {how}; look for exploding "
        "activations with theta0.diagnose, or lower the scale of the perturbation"
    )
