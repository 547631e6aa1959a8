"""Count, mean and sum of squared deviations: rows in their own precision, merged in float64.

A sum of squares loses everything where the spread is 1e-9 of the mean, which is where the failures are; deviations
merged by the formula of Chan, Golub and LeVeque (1979) do not. Large tensors are reduced in rows that are short enough
for their own precision (a relative error of 1e-7), and centred first where a difference of squares would cancel.
"""

import math
from dataclasses import dataclass

import torch
from jaxtyping import Float, Float64
from torch import Tensor

_EXACT = 2**16  # entries up to which a float64 copy costs nothing to speak of
_ROW = 2**11  # entries that are summed up in their own precision
_CANCELLED = 1e-2  # of a sum of squares, below which the difference of two is not relied on
_SMALLEST, _LARGEST = 1e-15, 1e15  # root mean squares whose squares have full precision in float32


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
    """Moments of a tensor over one axis."""
    variance, mean = torch.var_mean(values.detach().double(), dim=axis, correction=0)
    return Moments(values.shape[axis], mean, variance * values.shape[axis])


def merged(a: Moments, b: Moments) -> Moments:
    """Moments of two disjoint sets of samples together."""
    count = a.count + b.count
    step = b.mean - a.mean
    return Moments(
        count, a.mean + step * (b.count / count), a.squares + b.squares + step**2 * (a.count * b.count / count)
    )


@dataclass(frozen=True)
class SampleMoments:
    """Moments over samples of a layer's output.

    `mean` is that over samples, at every position of every unit; `squares` sums squared deviations from it over all
    three.
    """

    count: int
    mean: Float64[Tensor, "positions units"]
    squares: float

    @property
    def entries(self) -> int:
        """How many values there are."""
        return self.count * self.mean.numel()

    @property
    def units(self) -> "SampleMoments":
        """The same values with every position of a sample taken for a sample of its own."""
        mean = self.mean.mean(0, keepdim=True)
        between = float((self.mean - mean).square().sum()) * self.count
        return SampleMoments(self.count * len(self.mean), mean, self.squares + between)


def sample_moments(values: Float[Tensor, "..."], sample_axis: int, unit_axis: int) -> SampleMoments:
    """Moments over the samples of a layer's output; axes over neither samples nor units run over positions.

    They are not finite where the values are not.
    """
    values = values.detach()
    values = values.double() if values.numel() <= _EXACT else _wide(values)
    count, mean = values.shape[sample_axis], values.mean(sample_axis)
    squares = square_sum(values)
    deviations = squares - count * square_sum(mean)
    if not deviations > _CANCELLED * squares:
        deviations = _centred(values, mean, sample_axis)
    units = unit_axis - (unit_axis > sample_axis)
    return SampleMoments(count, mean.double().movedim(units, -1).reshape(-1, values.shape[unit_axis]), deviations)


def merged_samples(a: SampleMoments, b: SampleMoments) -> SampleMoments:
    """Moments of two disjoint sets of samples together."""
    count = a.count + b.count
    step = b.mean - a.mean
    squares = a.squares + b.squares + float(step.square().sum()) * (a.count * b.count / count)
    return SampleMoments(count, a.mean + step * (b.count / count), squares)


def real_entries(values: Tensor) -> Tensor:
    """A dense tensor of the same real numbers: of a sparse one with its zeros, of a complex one both parts."""
    dense = values.to_dense() if values.layout != torch.strided else values
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def square_sum(values: Tensor) -> float:
    """The sum of squares, to a relative error of 1e-7 whatever the size of the entries; not finite where one is not."""
    if _is_exact(values):
        return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2
    rows, rest = _rows(_wide(values))
    total = float(torch.linalg.vector_norm(rows, dim=1).double().square().sum())
    total += float(torch.linalg.vector_norm(rest, dtype=torch.float64)) ** 2
    if _SMALLEST**2 * values.numel() < total < _LARGEST**2 * values.numel():
        return total
    return float(torch.linalg.vector_norm(values, dtype=torch.float64)) ** 2


def mean_of(values: Tensor) -> float:
    """The mean of all entries, to 1e-7 of their size."""
    if _is_exact(values):
        return float(values.mean(dtype=torch.float64))
    rows, rest = _rows(_wide(values))
    return float(rows.mean(1).double().sum() * rows.shape[1] + rest.sum(dtype=torch.float64)) / values.numel()


def spread_of(values: Tensor) -> tuple[float, float, float]:
    """Mean, variance and mean square over all entries.

    The variance stays precise where it is far below the mean square.
    """
    values = values.detach()
    values = values.double() if _is_exact(values) else values  # one copy is cheaper than two reductions that convert
    mean, mean_square = mean_of(values), square_sum(values) / max(1, values.numel())
    variance = mean_square - mean**2
    if variance > _CANCELLED * mean_square or not math.isfinite(variance):
        return mean, variance, mean_square
    return mean, float(values.double().var(correction=0)), mean_square


def largest_magnitude(values: Tensor) -> float:
    """The largest absolute value; NaN if there is a NaN, 0 for an empty tensor."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values.detach())
    return max(-float(low), float(high))


def _is_exact(values: Tensor) -> bool:
    """Whether a tensor is reduced in float64: where it is small, or is float64 already."""
    return values.numel() <= _EXACT or values.dtype == torch.float64


def _wide(values: Tensor) -> Tensor:
    """Half precision is reduced in float32."""
    return values.to(torch.promote_types(values.dtype, torch.float32))


def _rows(values: Tensor) -> tuple[Tensor, Tensor]:
    """All entries as rows of equal length, in the order in which they lie in memory, and what is left."""
    order = sorted(range(values.dim()), key=values.stride, reverse=True)
    flat = values.permute(order).reshape(-1)  # a view of any tensor without gaps
    whole = flat.numel() // _ROW * _ROW
    return flat[:whole].view(-1, _ROW), flat[whole:]


def _centred(values: Tensor, mean: Tensor, axis: int) -> float:
    """The sum of squared deviations from the mean over an axis, sample by sample."""
    total, drift = 0.0, torch.zeros_like(mean)
    for sample in values.unbind(axis):
        deviation = sample - mean
        total += square_sum(deviation)
        drift += deviation  # n times the rounding error of the mean
    squares = total - square_sum(drift) / values.shape[axis]
    return 0.0 if squares < 0 else squares  # NaN stays
