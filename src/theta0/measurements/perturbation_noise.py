"""Gaussian noise on parameters: deviations, draws that do not depend on how work is split, and a map under it."""

import math
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable

from theta0._models import outputs_of
from theta0._trace.calls import LinearCall, trace_calls

_MASK = 2**62
# What one random number costs beside one multiplication in a matrix product: drawing, storing, reading it back.
_NUMBER = 64
_MANY = 2**18  # numbers, from which threads that draw them pay
_JITTERS = {torch.float64: (1e-10, 1e-8, 1e-6, 1e-4)}
_SINGLE_JITTERS = (1e-5, 1e-4, 1e-3)


@dataclass(frozen=True, eq=False)
class Noise:
    """The perturbations ε₁ … ε_P of one pass.

    `deviations` are σ by the identity of the parameter; those without one are not perturbed. There is a generator a
    perturbation, so that a draw depends neither on the others nor on who draws them; `drawn` holds whole draws, so that
    every use of a parameter sees the same one.
    """

    deviations: Mapping[int, float]
    generators: Sequence[torch.Generator]
    drawn: dict[int, Tensor] = field(default_factory=dict)


def noise_from(deviations: Mapping[int, float], seeds: Tensor) -> Noise:
    """Noise whose i-th perturbation is drawn from the i-th seed."""
    return Noise(deviations, [torch.Generator().manual_seed(seed) for seed in seeds.tolist()])


def perturbation_seeds(count: int, generator: torch.Generator) -> Tensor:
    """A seed for each perturbation."""
    return torch.randint(_MASK, (count,), generator=generator)


def normal(noise: Noise, shape: Sequence[int], like: Tensor) -> Tensor:
    """Standard normal numbers of a shape for each perturbation, drawn on the CPU in float32 at least.

    Torch draws them on one thread; here its other threads take their share of the perturbations.
    """
    dtype = torch.promote_types(like.dtype, torch.float32)
    numbers = torch.empty(len(noise.generators), *shape, dtype=dtype)
    threads = torch.get_num_threads() if numbers.numel() > _MANY else 1

    def fill(first: int) -> None:
        for part, generator in zip(numbers[first::threads], noise.generators[first::threads], strict=True):
            part.normal_(generator=generator)

    if threads == 1:
        fill(0)
    else:
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(fill, range(threads)))
    return numbers.to(like)


def draw(noise: Noise, parameter: Tensor) -> Tensor:
    """ε of a parameter, one draw for all its uses."""
    key = id(parameter)
    if key not in noise.drawn:
        noise.drawn[key] = normal(noise, parameter.shape, parameter.detach()) * noise.deviations[key]
    return noise.drawn[key]


def deviations_of(model: nn.Module, inputs: object, scale: float) -> dict[int, float]:
    r"""σ of every trained parameter: scale / √fan-in for weights, scale / √fan-out for biases (lee2023mmd, §3.3).

    The source defines both for fully connected layers. Here a convolution's fan-in is that of its kernel; an embedding,
    which looks one row up, has its width instead; a vector (bias, gain and shift of a normalisation) has its length; of
    any other parameter the last axis counts. Frozen parameters are not perturbed. σ is by the identity of the
    parameter. The model is run once, as the caller has prepared it, to see which function applies which weight.
    """
    fans: dict[str, int] = {}

    def observe(call: LinearCall) -> None:
        for name in call.owner.parameters:
            fans.setdefault(name, _fan(call, parameters[name]))

    parameters = dict(model.named_parameters(remove_duplicate=False))
    with torch.no_grad(), trace_calls(model, observe):
        outputs_of(model, inputs)
    found: dict[int, float] = {}
    for name, parameter in parameters.items():
        if parameter.requires_grad and (id(parameter) not in found or name in fans):
            fan = fans.get(name, parameter.shape[-1] if parameter.dim() else 1)
            found[id(parameter)] = scale / math.sqrt(max(fan, 1))
    return found


def _fan(call: LinearCall, parameter: Tensor) -> int:
    if parameter.dim() < 2:
        return parameter.numel()
    if call.kind == "embedding":
        return parameter.shape[-1]
    if call.kind == "matmul":
        return parameter.shape[0]
    if call.kind == "conv_transpose":  # its weight is in × (out / groups) × kernel
        groups = int(getattr(call.owner.module, "groups", 1))
        return parameter.shape[0] // groups * math.prod(parameter.shape[2:])
    return parameter.numel() // parameter.shape[0]


def gram_is_cheaper(rows: int, fan_in: int, fan_out: int) -> bool:
    """Whether the Gram-Cholesky route costs less than explicit weights, in multiplications a perturbation.

    Gram: rows² (fan_in + fan_out) + rows³ / 3 and rows · fan_out random numbers. Explicit: fan_in · fan_out random
    numbers. Both multiply the inputs with the mean weight once. Rows are the samples × positions that one
    perturbation's weights are applied to.
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
    and keeps one ε for all rows, which lee2023mmd's equation 14 needs. `source` is perturbations × rows × fan-in, or
    rows × fan-in where it is the same for all; the result is perturbations × rows × fan-out.
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
