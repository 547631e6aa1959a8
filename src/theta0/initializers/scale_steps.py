"""Steps of the scales: relative to the scale, each kind of step with moments of its own, and a look-out for stalls."""

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from jaxtyping import Float64
from torch import Tensor

_BETAS = (0.9, 0.999)
_TINY = 1e-8
_WINDOW = 16  # steps over which a stall is looked for
_BALANCE = (0.25, 0.75)  # share of constraint steps, within which the two kinds of steps work against each other
_PROGRESS = 0.25  # of the path's length; a random walk of 16 steps gets as far


@dataclass(frozen=True, eq=False)
class Steps:
    """Where a search stands.

    Attributes:
        scales: the present scales.
        rate: the largest relative change of a scale in one step; where `raw`, Adam's rate on the scale itself.
        lower: the least scale; its inverse is the largest, unless `raw`.
        raw: whether steps are Adam's on the scales and share their moments, as in the research code.
        stalls: how often the rate was halved because steps cancelled.
        path: the last steps in the scales' logarithms, with their kinds.
        moments: Adam's first and second moments and the number of steps behind them, by kind of step.
    """

    scales: Float64[Tensor, " scales"]
    rate: float
    lower: float
    raw: bool = False
    stalls: int = 0
    path: tuple[tuple[bool, Float64[Tensor, " scales"]], ...] = ()
    moments: Mapping[bool, tuple[Tensor, Tensor, int]] = field(default_factory=dict)


def stepped(steps: Steps, slopes: Float64[Tensor, " scales"], constrained: bool) -> Steps:
    """One Adam step down along slopes over the logarithms of the scales, clipped to ±1 each.

    The objective and the constraint have moments of their own: a norm's slopes are far larger than a mean cosine's,
    and with shared ones a few steps on the constraint would leave the objective none.

    Args:
        steps: where the search stands.
        slopes: the derivative.
        constrained: whether it is the constraint's.

    Returns:
        Where it stands then; with half the rate if the last steps alternated between the two kinds and cancelled.
    """
    kind = constrained and not steps.raw
    clipped = (slopes / steps.scales if steps.raw else slopes).clamp(-1, 1)
    zero = torch.zeros_like(slopes)
    first, second, count = steps.moments.get(kind, (zero, zero, 0))
    first, second = first.lerp(clipped, 1 - _BETAS[0]), second.lerp(clipped.square(), 1 - _BETAS[1])
    count += 1
    direction = first / (1 - _BETAS[0] ** count) / ((second / (1 - _BETAS[1] ** count)).sqrt() + _TINY)
    new = replace(steps, moments={**steps.moments, kind: (first, second, count)})
    if steps.raw:
        return replace(new, scales=(steps.scales - steps.rate * direction).clamp_min(steps.lower))
    before, edge = steps.scales.log(), -math.log(steps.lower)
    after = (before - steps.rate * direction.clamp(-1, 1)).clamp(-edge, edge)
    path = (*steps.path[1 - _WINDOW :], (constrained, after - before))
    if _stalled(path):
        return replace(new, scales=after.exp(), rate=steps.rate / 2, stalls=steps.stalls + 1, path=())
    return replace(new, scales=after.exp(), path=path)


def _stalled(path: tuple[tuple[bool, Tensor], ...]) -> bool:
    """Whether the last steps alternated between objective and constraint and came back to where they began."""
    if len(path) < _WINDOW:
        return False
    share = sum(constrained for constrained, _ in path) / len(path)
    moves = torch.stack([move for _, move in path])
    away, length = float(moves.sum(0).norm()), float(moves.norm(dim=1).sum())
    return _BALANCE[0] <= share <= _BALANCE[1] and away < _PROGRESS * length
