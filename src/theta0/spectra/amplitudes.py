"""Fourier amplitudes of a function on a uniform grid of one or two coordinates."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Literal

import torch
from jaxtyping import Float
from torch import Tensor, nn

from theta0._errors import guarded
from theta0._models import main_output
from theta0._state import preserve_state

Window = Literal["none", "hann"]
Normalization = Literal["amplitude", "unit", "none"]


@dataclass(frozen=True, eq=False)
class Spectrum:
    """Fourier amplitudes over frequencies.

    Attributes:
        frequencies: in cycles per unit of the grid, from 0 to the Nyquist frequency.
        amplitudes: one row of frequencies for each output of the function.
        window: what the values were multiplied by.
        normalization: what the amplitudes were divided by.
    """

    frequencies: Float[Tensor, " k"]
    amplitudes: Float[Tensor, "*outputs k"]
    window: Window = "none"
    normalization: Normalization = "amplitude"

    def at(self, frequency: float | int) -> Float[Tensor, "*outputs"]:
        """The amplitudes at the frequency of the grid that is nearest."""
        return self.amplitudes[..., int((self.frequencies - frequency).abs().argmin())]


def fourier_amplitude(
    f: Callable[..., Any],
    grid: Float[Tensor, " n"],
    *,
    target: Float[Tensor, "n ..."] | None = None,
    window: Window = "none",
    normalization: Normalization = "amplitude",
    batch_size: int | None = None,
) -> Spectrum:
    r"""Fourier amplitudes of $t \mapsto f(t)$ on a uniform grid, for every output of f.

    The discrete transform takes $n$ points at distance $h$ as one period $nh$, so leave the right end of a period out
    (`torch.arange(n) / n`, not `linspace(0, 1, n)`); frequencies are multiples of $1 / nh$. A function that does not
    return to its start jumps there, which leaks into all frequencies; the Hann window fades both ends out, at the price
    of lines three frequencies wide. The mean is kept out of the window and stands at frequency 0 alone: a constant has
    no other frequency.

    * `normalization="amplitude"`: $2|\hat f_k| / \sum_j w_j$ with window w (half of that at frequency 0 and at
      the Nyquist frequency): the sine $a \sin(2\pi k t + \varphi)$ with whole k has amplitude a at k.
    * `"unit"`: each output's amplitudes divided by their ℓ₂ norm (furusho2020thesis, section 3.3.2).
    * `"none"`: $|\hat f_k|$, the bare transform.

    For a network along a curve, compose: `fourier_amplitude(lambda t: model(segment(a, b)(t)), grid)`. A module given
    as f itself (a network of one input) is evaluated in evaluation mode and left untouched.

        >>> spectrum = fourier_amplitude(lambda t: 3 * torch.sin(2 * torch.pi * 5 * t), torch.arange(64) / 64)
        >>> round(spectrum.at(5).item(), 4)
        3.0

    Args:
        f: takes coordinates `[m, 1]`, returns `[m]` or `[m, ...]`, row by row.
        grid: at least two increasing points at equal distances.
        target: values at the grid's points, taken off before the transform: the spectrum is then the error's.
        window: "none" or "hann".
        normalization: see above.
        batch_size: how many points f is given at once; all by default.

    Returns:
        The frequencies and, for outputs `[n, *outputs]`, amplitudes `[*outputs, k]`.

    Raises:
        ValueError: the grid is not uniform, has fewer than two points, or a value of f is not finite.
    """
    spacing = _spacing(grid, "grid")
    values = _values(f, grid.unsqueeze(1), batch_size)
    if target is not None:
        values = _error(values, target)
    weights = _window(window, len(grid), values)
    mean = values.mean(0)
    transform = torch.fft.rfft((values - mean).movedim(0, -1) * weights)
    transform[..., 0] += mean * weights.sum()
    transform = transform.abs()
    frequencies = torch.fft.rfftfreq(len(grid), spacing, dtype=transform.dtype, device=transform.device)
    if normalization == "amplitude":
        transform = transform * _folding(len(grid), transform) / weights.sum()
    elif normalization == "unit":
        transform = transform / torch.linalg.vector_norm(transform, dim=-1, keepdim=True).clamp_min(1e-30)
    elif normalization != "none":
        raise ValueError(f"normalization: expected 'amplitude', 'unit' or 'none', got {normalization!r}")
    return Spectrum(frequencies, transform, window, normalization)


def radial_spectrum(
    f: Callable[..., Any],
    first: Float[Tensor, " n"],
    second: Float[Tensor, " m"],
    *,
    target: Float[Tensor, "n m ..."] | None = None,
    window: Window = "none",
    batch_size: int | None = None,
) -> Spectrum:
    r"""Fourier amplitudes of f on a 2-D slice, by the length of the frequency: the root of the power of a whole ring.

    A plane wave $a \sin(2\pi k \cdot x + \varphi)$ with whole periods on the grid has amplitude a in the ring
    $[r - \frac12, r + \frac12)\,\Delta$ that holds $|k|$, Δ being the coarser of the two frequency steps; rings end at
    the smaller Nyquist frequency. The power in a ring is $\sum 2|\hat f|^2 / (\sum w)^2$ over half the plane, so that
    the amplitudes of waves in one ring add in squares.

    Args:
        f: takes coordinates `[p, 2]`, for instance `lambda c: model(plane(a, b, c0)(c))`; returns `[p]` or `[p, ...]`.
        first: uniform grid of the first coordinate.
        second: uniform grid of the second.
        target: values on the grid, taken off before the transform.
        window: "none" or "hann", along both coordinates.
        batch_size: how many points f is given at once; all by default.

    Returns:
        The rings' middle frequencies and, for outputs `[*outputs]`, amplitudes `[*outputs, k]`.

    Example:
        A plane wave of amplitude 3 with four periods along the first coordinate:

        >>> import torch
        >>> grid = torch.arange(32, dtype=torch.float64) / 32
        >>> found = radial_spectrum(lambda c: 3 * torch.sin(2 * torch.pi * 4 * c[:, 0]), grid, grid)
        >>> round(found.amplitudes[4].item(), 6)
        3.0
    """
    steps = [_spacing(grid, name) for grid, name in ((first, "first"), (second, "second"))]
    n, m = len(first), len(second)
    points = torch.cartesian_prod(first, second)
    values = _values(f, points, batch_size)
    values = values.reshape(n, m, *values.shape[1:])
    if target is not None:
        values = _error(values, target)
    mean = values.mean((0, 1))
    weights = _window(window, n, values)[:, None] * _window(window, m, values)
    transform = torch.fft.fft2((values - mean).movedim((0, 1), (-2, -1)) * weights) / weights.sum()
    transform[..., 0, 0] += mean
    transform = transform.abs()
    along = [torch.fft.fftfreq(k, step, dtype=weights.dtype) for k, step in zip((n, m), steps, strict=True)]
    lengths = torch.linalg.vector_norm(torch.cartesian_prod(*along), dim=1)
    width = max(1 / (k * step) for k, step in zip((n, m), steps, strict=True))
    rings = (lengths / width + 0.5).floor().long().to(transform.device)
    count = int(min(1 / step for step in steps) / 2 / width + 1e-9) + 1
    power = transform.flatten(-2).square()
    sums = power.new_zeros(*power.shape[:-1], max(count, int(rings.max()) + 1)).index_add_(-1, rings, power)[
        ..., :count
    ]
    frequencies = torch.arange(count, dtype=weights.dtype, device=transform.device) * width
    scale = torch.where(frequencies > 0, 2.0, 1.0)  # a real wave's power lies at k and at -k
    return Spectrum(frequencies, (sums * scale).sqrt(), window)


def _spacing(grid: Any, name: str) -> float:
    if not isinstance(grid, Tensor) or not grid.is_floating_point():
        came = f"one of {grid.dtype}" if isinstance(grid, Tensor) else type(grid).__name__
        raise ValueError(
            f"{name}: expected a tensor of floating numbers, got {came}; use torch.as_tensor(grid, dtype=torch.float64)"
        )
    if grid.dim() != 1 or len(grid) < 2:
        raise ValueError(f"{name}: expected at least two points on one axis, got shape {tuple(grid.shape)}")
    points = grid.detach().double()
    gaps = points.diff()
    rounding = 8 * torch.finfo(grid.dtype).eps * float(points.abs().max())
    spacing = float((points[-1] - points[0]) / (len(points) - 1))
    worst = int((gaps - spacing).abs().argmax())
    if not spacing > 0 or not abs(float(gaps[worst]) - spacing) <= 1e-6 * spacing + rounding:
        raise ValueError(
            f"{name}: expected increasing points at equal distances, got {float(gaps[worst]):.6g} between points "
            f"{worst} and {worst + 1} where the mean distance is {spacing:.6g}; transforms need a uniform grid"
        )
    return spacing


def _values(f: Callable[..., Any], points: Tensor, batch_size: int | None) -> Float[Tensor, "n ..."]:
    """What f puts out at the points, in double precision where it is half."""
    if batch_size is not None and batch_size < 1:
        raise ValueError(f"batch_size: expected at least 1 or None, got {batch_size}")
    if isinstance(f, nn.Module):
        network = f
        with preserve_state(network):
            network.eval()
            where = (
                f"f, given coordinates as inputs [n, {points.shape[1]}] (for others: lambda t: f(segment(a, b)(t))),"
            )
            return _checked(lambda part: guarded(where, lambda: network(part)), points, batch_size)
    return _checked(f, points, batch_size)


def _checked(f: Callable[..., Any], points: Tensor, batch_size: int | None) -> Tensor:
    parts = []
    with torch.no_grad():
        for part in torch.split(points, batch_size or len(points)):
            given = f(part)
            out = main_output(given)
            if out is None or len(out) != len(part):
                came = given if out is None else out
                kind = f"{came.dtype} of shape {tuple(came.shape)}" if isinstance(came, Tensor) else type(came).__name__
                raise ValueError(f"f: expected one floating output for each of {len(part)} points, got {kind}")
            parts.append(out.detach())
    values = torch.cat(parts)
    values = values if values.dtype in (torch.float32, torch.float64) else values.float()
    bad = (~torch.isfinite(values)).flatten(1).any(1) if values.dim() > 1 else ~torch.isfinite(values)
    if bool(bad.any()):
        where = [round(c, 6) for c in points[int(bad.nonzero()[0])].tolist()]
        raise ValueError(
            f"f: expected finite values, got NaN or infinity at {int(bad.sum())} of {len(points)} points, "
            f"first at {where}"
        )
    return values


def _error(values: Tensor, target: Tensor) -> Tensor:
    if target.numel() != values.numel():
        raise ValueError(f"target: expected the outputs' shape {tuple(values.shape)}, got {tuple(target.shape)}")
    if not bool(torch.isfinite(target).all()):
        raise ValueError("target: expected finite values, got NaN or infinity")
    return values - target.to(values).reshape(values.shape)


def _window(window: str, n: int, values: Tensor) -> Float[Tensor, " n"]:
    if window == "none":
        return torch.ones(n, dtype=values.dtype, device=values.device)
    if window == "hann":
        return torch.hann_window(n, periodic=True, dtype=values.dtype, device=values.device)
    raise ValueError(f"window: expected 'none' or 'hann', got {window!r}")


def _folding(n: int, transform: Tensor) -> Float[Tensor, " k"]:
    """2 where a real signal's frequency stands for itself and its negative, else 1."""
    factors = torch.full((n // 2 + 1,), 2.0, dtype=transform.dtype, device=transform.device)
    factors[0] = 1.0
    if n % 2 == 0:
        factors[-1] = 1.0
    return factors
