"""Count, mean and sum of squared deviations, accumulated in float64.

A sum of squares loses everything where the spread is 1e-9 of the mean, which is where the failures are; deviations
merged by the formula of Chan, Golub and LeVeque (1979) do not.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Float64
from torch import Tensor


@dataclass(frozen=True)
class Moments:
    """Moments over samples, for every entry of a sample.

    Attributes:
        count: how many samples.
        mean: their mean.
        squares: the sum of squared deviations from it.
    """

    count: int
    mean: Float64[Tensor, "..."]
    squares: Float64[Tensor, "..."]

    @property
    def variance(self) -> Float64[Tensor, "..."]:
        """The population variance."""
        return self.squares / self.count


def moments(values: Tensor, axis: int = 0) -> Moments:
    """Moments of a tensor over one axis.

    Returns:
        The moments, of the tensor's shape without that axis.
    """
    variance, mean = torch.var_mean(values.detach().double(), dim=axis, correction=0)
    return Moments(values.shape[axis], mean, variance * values.shape[axis])


def merged(a: Moments, b: Moments) -> Moments:
    """Moments of two disjoint sets of samples together.

    Returns:
        The moments over `a.count + b.count` samples.
    """
    count = a.count + b.count
    step = b.mean - a.mean
    return Moments(
        count, a.mean + step * (b.count / count), a.squares + b.squares + step**2 * (a.count * b.count / count)
    )


def pooled(m: Moments, axis: int | None = None) -> Moments:
    """Moments over the entries of an axis as well, as if each entry were a further sample.

    Args:
        m: the moments.
        axis: the axis to pool; None pools everything into one number.

    Returns:
        The moments of what is left.
    """
    mean, squares = (m.mean.flatten(), m.squares.flatten()) if axis is None else (m.mean, m.squares)
    axis = 0 if axis is None else axis
    entries = mean.shape[axis]
    grand = mean.mean(axis)
    between = (mean - grand.unsqueeze(axis)).square().sum(axis) * m.count
    return Moments(m.count * entries, grand, squares.sum(axis) + between)
