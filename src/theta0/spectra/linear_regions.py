"""Linear pieces of a network along a line of inputs: K(θ) of the bound on its Fourier coefficients."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from jaxtyping import Float64
from torch import Tensor, nn

from theta0._models import main_output
from theta0._state import preserve_state
from theta0._trace.interpreter import Handler, Step, trace
from theta0.spectra.curves import segment

_KINKED = ("relu", "leaky_relu", "prelu")  # one kink, at 0
_TOLERANCE = 1e-9  # of the outputs' range: float64 leaves about 1e-14


@dataclass(frozen=True, eq=False)
class LinearRegions:
    """The pieces on which a network is linear along a segment.

    Attributes:
        breakpoints: t in (0, 1) at which the slope changes, rising.
        slopes: the derivative of every output by t on each piece, flat.
    """

    breakpoints: Float64[Tensor, " kinks"]
    slopes: Float64[Tensor, "pieces outputs"]

    @property
    def count(self) -> int:
        """K, the number of pieces."""
        return len(self.slopes)

    @property
    def lipschitz(self) -> float:
        """The largest norm of a slope: the Lipschitz constant along the segment, by t."""
        return float(self.slopes.norm(dim=1).max())


def linear_regions(model: nn.Module, first: Tensor, last: Tensor, *, most: int = 100_000) -> LinearRegions:
    r"""Count the linear pieces of a network along the segment between two inputs, exactly.

    A network of linear maps and ReLU is piecewise linear, and so is what any of its ReLUs takes. Call by call, zeros
    of what a ReLU takes are found by interpolation between the kinks that lie before it, which is exact; kinks at
    which no output changes its slope are dropped. Pieces in all of input space are not counted: the number along a
    line is what the spectrum along it depends on.

    Source: K(θ) in furusho2020thesis, Theorem 3; Rahaman et al., 2019, https://arxiv.org/abs/1806.08734.

        >>> model = nn.Sequential(nn.Linear(1, 2), nn.ReLU(), nn.Linear(2, 1))
        >>> with torch.no_grad():
        ...     _ = model[0].weight.copy_(torch.ones(2, 1)), model[0].bias.copy_(torch.tensor([-0.25, -0.5]))
        ...     _ = model[2].weight.fill_(1.0)
        >>> found = linear_regions(model, torch.zeros(1), torch.ones(1))
        >>> found.count, found.breakpoints.tolist(), found.lipschitz
        (3, [0.25, 0.5], 2.0)

    Args:
        model: in evaluation mode meanwhile, in double precision; left as it was.
        first: an input without a batch axis, t = 0.
        last: another, t = 1.
        most: of kinks; more are refused.

    Returns:
        Breakpoints and slopes.

    Raises:
        ValueError: if the network is not piecewise linear by ReLU alone, or has more than `most` kinks.
    """
    along = segment(first.detach().double(), last.detach().double())
    with _in_double(model) as network:
        times = torch.tensor([0.0, 1.0], dtype=torch.float64, device=first.device)
        number = 0
        while True:
            taken, outputs = _taken(network, along, times)
            if number == len(taken):
                break
            times = _with_zeros(times, taken[number])
            if len(times) > most:
                raise ValueError(
                    f"model: expected at most {most} kinks along the segment, got {len(times)}; raise most"
                )
            number += 1
        between = (times[1:] + times[:-1]) / 2
        _require_linear(outputs, _taken(network, along, between)[1])
    return _pieces(times, outputs)


@contextmanager
def _in_double(model: nn.Module) -> Iterator[nn.Module]:
    """The network in evaluation mode with float64 parameters and buffers, which are put back."""
    with preserve_state(model), torch.no_grad():
        values = {t: t.data for t in (*model.parameters(), *model.buffers()) if t.is_floating_point()}
        try:
            for tensor, value in values.items():
                tensor.data = value.double()
            yield model.eval()
        finally:
            for tensor, value in values.items():
                tensor.data = value


def _taken(model: nn.Module, along: Callable[[Tensor], Tensor], times: Tensor) -> tuple[list[Tensor], Tensor]:
    """What each ReLU takes at the points, flat, and the outputs."""
    seen: list[Tensor] = []

    def before(step: Step) -> None:
        if step.name.rstrip("_") in _KINKED and step.tensors and len(step.tensors[0]) == len(times):
            seen.append(step.tensors[0].detach().flatten(1).clone())

    with trace(model, Handler(before=before)):
        given: Any = model(along(times.unsqueeze(1)))
    outputs = main_output(given)
    if outputs is None or len(outputs) != len(times):
        raise ValueError("model: expected one output for each input of a batch, got another number")
    return seen, outputs.detach().flatten(1)


def _with_zeros(times: Tensor, values: Tensor) -> Tensor:
    """The points, and those between neighbours at which a value that is linear there is zero."""
    left, right = values[:-1], values[1:]
    crossing = (left * right) < 0
    share = left / torch.where(crossing, left - right, torch.ones_like(left))
    zeros = times[:-1, None] + share * (times[1:] - times[:-1])[:, None]
    every: Tensor = torch.unique(torch.cat([times, zeros[crossing]]))
    return every


def _require_linear(ends: Tensor, middles: Tensor) -> None:
    off = float((middles - (ends[1:] + ends[:-1]) / 2).abs().max())
    scale = float(ends.max() - ends.min())
    if not off <= _TOLERANCE * max(scale, 1.0):
        raise ValueError(
            "model: expected one that is linear between the kinks of its ReLUs, got outputs that are off by "
            f"{off:.3g} between two of them; other nonlinearities (tanh, GELU, pooling by maxima, attention) have no "
            "such pieces"
        )


def _pieces(times: Tensor, outputs: Tensor) -> LinearRegions:
    """Slopes between the points, and the points at which they change."""
    slopes = (outputs[1:] - outputs[:-1]) / (times[1:] - times[:-1])[:, None]
    scale = slopes.abs().max().clamp_min(torch.finfo(torch.float64).tiny)
    changes = (
        ((slopes[1:] - slopes[:-1]).abs().amax(1) > 1e-6 * scale) if len(slopes) > 1 else slopes.new_zeros(0).bool()
    )
    first = torch.cat([changes.new_ones(1), changes])
    return LinearRegions(times[1:-1][changes], slopes[first])
