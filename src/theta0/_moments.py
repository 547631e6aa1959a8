"""Count, mean and sum of squared deviations: rows in their own precision, merged in float64.

A sum of squares loses everything where the spread is 1e-9 of the mean, which is where the failures are; deviations
merged by the formula of Chan, Golub and LeVeque (1979) do not. Large tensors are reduced in rows that are short enough
for their own precision (a relative error of 1e-7), and centred first where a difference of squares would cancel.

Whether it would is a question to the numbers. On another device than the CPU each such question waits for all that the
device still has to do: there tensors are reduced in float64 throughout, and what they come to stays there as a tensor
without axes until it is `fetched` with others.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import groupby

import torch
from jaxtyping import Float, Float64
from torch import Tensor

_EXACT = 2**16  # entries up to which a float64 copy costs nothing to speak of
_ROW = 2**11  # entries that are summed up in their own precision
_CANCELLED = 1e-2  # of a sum of squares, below which the difference of two is not relied on
_SMALLEST, _LARGEST = 1e-15, 1e15  # root mean squares whose squares have full precision in float32


Number = float | Tensor  # a tensor without axes where it was computed on another device than the CPU


def readable(values: Tensor) -> bool:
    """Whether the numbers of a tensor can be read without waiting for a device."""
    return values.device.type == "cpu"


def fetched(tensors: Sequence[Tensor]) -> list[Tensor]:
    """Tensors of real numbers on the CPU, by one copy from each device; those that are readable as they are."""
    found = list(tensors)
    away = sorted((i for i, t in enumerate(found) if not readable(t)), key=lambda i: str(found[i].device))
    for _, group in groupby(away, key=lambda i: found[i].device):
        places = list(group)
        numbers = torch.cat([found[i].detach().reshape(-1).double() for i in places]).cpu()
        for i, part in zip(places, torch.split(numbers, [found[i].numel() for i in places]), strict=True):
            found[i] = part.reshape(found[i].shape).to(found[i].dtype)
    return found


def floats(numbers: Sequence[Number]) -> list[float]:
    """Numbers as floats, with one wait for each device."""
    tensors = [number.double() for number in numbers if isinstance(number, Tensor)]
    read = iter(torch.stack(fetched(tensors)).tolist() if tensors else ())
    return [next(read) if isinstance(number, Tensor) else number for number in numbers]


def _number(value: Tensor) -> Number:
    return float(value) if readable(value) else value


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
    squares: Number

    @property
    def entries(self) -> int:
        """How many values there are."""
        return self.count * self.mean.numel()

    @property
    def units(self) -> "SampleMoments":
        """The same values with every position of a sample taken for a sample of its own."""
        mean = self.mean.mean(0, keepdim=True)
        between = _number((self.mean - mean).square().sum()) * self.count
        return SampleMoments(self.count * len(self.mean), mean, self.squares + between)


def sample_moments(values: Float[Tensor, "..."], sample_axis: int, unit_axis: int) -> SampleMoments:
    """Moments over the samples of a layer's output; axes over neither samples nor units run over positions.

    They are not finite where the values are not.
    """
    values = values.detach()
    count, deviations, mean = values.shape[sample_axis], *_over_samples(values, sample_axis)
    units = unit_axis - (unit_axis > sample_axis)
    return SampleMoments(count, mean.double().movedim(units, -1).reshape(-1, values.shape[unit_axis]), deviations)


def _over_samples(values: Tensor, axis: int) -> tuple[Number, Tensor]:
    """The sum of squared deviations from the mean over an axis, and that mean."""
    if not readable(values):
        variance, mean = torch.var_mean(values.double(), dim=axis, correction=0)
        return variance.sum() * values.shape[axis], mean
    values = values.double() if values.numel() <= _EXACT else _wide(values)
    mean, squares = values.mean(axis), square_sum(values)
    deviations = squares - values.shape[axis] * square_sum(mean)
    return (deviations if deviations > _CANCELLED * squares else _centred(values, mean, axis)), mean


def merged_samples(a: SampleMoments, b: SampleMoments) -> SampleMoments:
    """Moments of two disjoint sets of samples together."""
    count = a.count + b.count
    step = b.mean - a.mean
    squares = a.squares + b.squares + _number(step.square().sum()) * (a.count * b.count / count)
    return SampleMoments(count, a.mean + step * (b.count / count), squares)


def real_entries(values: Tensor) -> Tensor:
    """A dense tensor of the same real numbers: of a sparse one with its zeros, of a complex one both parts."""
    dense = values.to_dense() if values.layout != torch.strided else values
    return torch.view_as_real(dense.resolve_conj()) if dense.is_complex() else dense


def squares_of(values: Tensor) -> Number:
    """As `square_sum`, left on its device."""
    if readable(values):
        return square_sum(values)
    norm: Tensor = torch.linalg.vector_norm(values, dtype=torch.float64)
    return norm.square()


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


def mean_of(values: Tensor) -> Number:
    """The mean of all entries, to 1e-7 of their size."""
    if _is_exact(values) or not readable(values):
        return _number(values.mean(dtype=torch.float64))
    rows, rest = _rows(_wide(values))
    return float(rows.mean(1).double().sum() * rows.shape[1] + rest.sum(dtype=torch.float64)) / values.numel()


def spread_of(values: Tensor) -> tuple[Number, Number, Number]:
    """Mean, variance and mean square over all entries.

    The variance stays precise where it is far below the mean square.
    """
    values = values.detach()
    if not readable(values):
        variance, middle = torch.var_mean(values.double(), correction=0)
        return middle, variance, variance + middle.square()
    values = values.double() if _is_exact(values) else values  # one copy is cheaper than two reductions that convert
    mean, mean_square = float(mean_of(values)), square_sum(values) / max(1, values.numel())
    spread = mean_square - mean**2
    if spread > _CANCELLED * mean_square or not math.isfinite(spread):
        return mean, spread, mean_square
    return mean, float(values.double().var(correction=0)), mean_square


def largest_magnitude(values: Tensor) -> Number:
    """The largest absolute value; NaN if there is a NaN, 0 for an empty tensor."""
    if not values.numel():
        return 0.0
    low, high = torch.aminmax(values.detach())
    return larger(-_number(low), _number(high))


def larger(a: Number, b: Number) -> Number:
    """The larger of two numbers; the first where the second is not a number."""
    if isinstance(a, Tensor) or isinstance(b, Tensor):
        device = a.device if isinstance(a, Tensor) else b.device if isinstance(b, Tensor) else None
        a, b = (torch.as_tensor(x, device=device).double() for x in (a, b))
        return torch.where(b > a, b, a)
    return max(a, b)


def bad_entries(values: Tensor) -> Number:
    """How many entries are not finite."""
    return _number((~torch.isfinite(values)).sum())


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
