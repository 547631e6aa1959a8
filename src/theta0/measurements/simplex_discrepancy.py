"""How far points of the simplex are from uniform: the maximum mean discrepancy, value and derivative in one pass."""

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from torch import Tensor

_LARGEST, _SMALLEST = 4, -4  # bandwidths 2^i γ, i from -4 to 4
_FEW_CLASSES = 8  # up to which squared distances are summed class by class, which cancels nothing


def uniform_simplex(
    samples: int, points: int, classes: int, generator: torch.Generator, dtype: torch.dtype = torch.float32
) -> Float[Tensor, "samples points classes"]:
    """Uniform points of the simplex for each sample, normalised exponentials (lee2023mmd, equation 2), on the CPU."""
    drawn = torch.empty(samples, points, classes, dtype=dtype).exponential_(generator=generator)
    return drawn / drawn.sum(-1, keepdim=True)


def discrepancy(
    points: Float[Tensor, "samples points classes"], uniform: Float[Tensor, "samples uniform classes"]
) -> Float[Tensor, " samples"]:
    r"""Unbiased MMD² between the points and the uniform ones, sample by sample (lee2023mmd, equations 3 and 9).

    The kernel is $\sum_{i=-4}^{4} \exp(-\|u-v\|^2 / (2 (2^i γ)^2))$ with γ the median distance over all pairs of two
    points, of two uniform ones and of one of each (appendix C.1; the lower of the two middle ones), held constant in
    the derivative. Means are taken over pairs of different points, so the result may be negative. Each sample needs two
    points; no derivative is taken with respect to the uniform ones.
    """
    value: Tensor = _Discrepancy.apply(points, uniform)  # type: ignore[no-untyped-call]
    return value


class _Discrepancy(torch.autograd.Function):  # value and derivative share their exponentials
    @staticmethod
    def forward(ctx: Any, points: Tensor, uniform: Tensor) -> Tensor:
        dtype = torch.promote_types(points.dtype, torch.float32)
        wide, other = points.detach().to(dtype).contiguous(), uniform.to(points.device, dtype).contiguous()
        pairs = _pairs(points.shape[1], uniform.shape[1], wide)
        found = [_one_sample(v, u, pairs) for v, u in zip(wide, other, strict=True)]
        ctx.save_for_backward(torch.stack([slope for _, slope in found]))
        return torch.stack([value for value, _ in found]).to(points.dtype)

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        (slopes,) = ctx.saved_tensors
        (gradient,) = gradients
        return (slopes.to(gradient) * gradient[:, None, None]), None


@dataclass(frozen=True, eq=False)
class _Pairs:
    """Where pairs lie: points among themselves, points × uniform, uniform among themselves, in one vector.

    `inner` and `outer` are flat places of pairs i < j among the points and among the uniform ones. The rest is room for
    squared distances, the kernel's powers, their sum, derivatives and two matrices of differences: memory fresh at
    every step costs as much as the arithmetic.
    """

    inner: Tensor
    outer: Tensor
    squares: Tensor
    power: Tensor
    kernel: Tensor
    slope: Tensor
    grid: Tensor


def _pairs(points: int, uniform: int, like: Tensor) -> _Pairs:
    def upper(count: int) -> Tensor:
        places = torch.triu_indices(count, count, 1, device=like.device)
        return places[0] * count + places[1]

    inner, outer = upper(points), upper(uniform)
    total = len(inner) + points * uniform + len(outer)
    squares, power, kernel, slope = (like.new_empty(total) for _ in range(4))
    grid = like.new_empty(2, max(points, uniform) ** 2)
    return _Pairs(inner, outer, squares, power, kernel, slope, grid)


def _one_sample(points: Tensor, uniform: Tensor, pairs: _Pairs) -> tuple[Tensor, Tensor]:
    """MMD² of one sample and its derivative in the points."""
    count, others = len(points), len(uniform)
    first, last = len(pairs.inner), len(pairs.inner) + count * others
    squares = pairs.squares
    torch.take(_squares(points, points, pairs.grid), pairs.inner, out=squares[:first])
    squares[first:last] = _squares(points, uniform, pairs.grid).flatten()
    torch.take(_squares(uniform, uniform, pairs.grid), pairs.outer, out=squares[last:])
    half_inverse = 0.5 / _median(squares).clamp_min(torch.finfo(points.dtype).tiny * 1e6)
    kernel, slope = _kernel(squares, half_inverse, pairs)
    weights = 2 / (count * (count - 1)), -2 / (count * others), 2 / (others * (others - 1))
    value = weights[0] * kernel[:first].sum() + weights[1] * kernel[first:last].sum() + weights[2] * kernel[last:].sum()
    inner = pairs.grid[0, : count * count].zero_()
    inner[pairs.inner] = slope[:first]
    inner = inner.view(count, count)  # the upper triangle of a symmetric matrix
    cross = slope[first:last].view(count, others)
    rows = points.mT.contiguous()  # classes × points: the products are several times as fast this way round
    derivative = ((inner.sum(1) + inner.sum(0)) * rows - rows @ inner.mT - rows @ inner).mT
    derivative = weights[0] * derivative + weights[1] * (cross.sum(1) * rows - uniform.mT.contiguous() @ cross.mT).mT
    return value, derivative.mul_(-2 * half_inverse)


def _kernel(squares: Tensor, half_inverse: Tensor, pairs: _Pairs) -> tuple[Tensor, Tensor]:
    """The sum of nine Gaussians, and minus its derivative with respect to half_inverse · squares.

    Exponents are bounded below so that no power is a denormal number, which costs a hundred times a normal one. Three
    exponentials and fourth powers suffice.
    """
    floor = 0.24 * math.log(torch.finfo(squares.dtype).tiny)
    power, kernel, slope = pairs.power, pairs.kernel.zero_(), pairs.slope.zero_()
    for bandwidth in range(_LARGEST, _SMALLEST - 1, -3):
        torch.mul(squares, -half_inverse * 0.25**bandwidth, out=power)
        power.clamp_min_(floor).exp_()
        for narrower in range(3):
            if narrower:
                if narrower == 2:
                    power.clamp_min_(math.exp(floor))
                power.mul_(power)
                power.mul_(power)
            kernel += power
            slope.add_(power, alpha=0.25 ** (bandwidth - narrower))
    return kernel, slope


def _squares(one: Tensor, other: Tensor, grid: Tensor) -> Tensor:
    """‖u - v‖² for all u and v, in the room given."""
    if one.shape[1] > _FEW_CLASSES:
        return torch.cdist(one, other, compute_mode="donot_use_mm_for_euclid_dist").square_()
    total, difference = grid[:, : len(one) * len(other)].view(2, len(one), len(other)).unbind(0)
    total.zero_()
    for a, b in zip(one.T[:, :, None], other.T[:, None, :], strict=True):
        torch.sub(a, b, out=difference)
        total.addcmul_(difference, difference)
    return total


def _median(values: Tensor) -> Tensor:
    """The lower median; numpy's partition took a twelfth of torch.median's time on a CPU."""
    if values.device.type != "cpu":
        return values.median()
    middle = (values.numel() - 1) // 2
    return torch.tensor(np.partition(values.numpy(), middle)[middle], dtype=values.dtype)
