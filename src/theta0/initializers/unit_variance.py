"""Scale every layer so that its preactivations have unit variance on the data."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

from torch import nn

from theta0._models import in_place
from theta0._moments import Moments, moments
from theta0._randomness import Randomness
from theta0._trace.calls import LinearCall
from theta0.initializers._layerwise import Drawing, Goal, Key, layerwise, multiply, refuse_constant

_NAME = "unit_variance_"
_TOLERANCE = 0.1


@dataclass(frozen=True)
class UnitVariance:
    """What `unit_variance_` did.

    Attributes:
        scales: the factor put on each layer's weight.
        deviations: the standard deviation reached at each layer.
        skipped: layers left as they were, and why.
        unconverged: layers whose deviation is more than 10 % off.
        sweeps: how many forward passes over the batches were needed.
    """

    scales: dict[str, float]
    deviations: dict[str, float]
    skipped: dict[str, str]
    unconverged: tuple[str, ...]
    sweeps: int


def unit_variance(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    std: float = 1.0,
    draw: str | None = None,
    skip: Collection[str] = (),
    max_batches: int | None = 4,
    generator: Randomness = None,
) -> UnitVariance:
    r"""Rescale weights, layer by layer in execution order, until every preactivation has the wanted variance.

    One factor per layer, $w ← w · \mathrm{std} / \sqrt{V(z)}$, V pooled over units, samples and positions about the
    grand mean, so that units keep their differences (kutsuna2019lcw, section 4.3); biases become 0. A layer called
    several times gets the factor that suits all its calls together, found by repeated sweeps. Frozen weights and
    biases, embeddings and fused recurrent layers are left alone; tied weights are scaled once.

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored; every initializer takes the same arguments.
        std: the standard deviation wanted.
        draw: None keeps the weights' directions; "normal" or "orthogonal" draws new ones first.
        skip: paths of layers to leave alone, or of modules with all that is in them.
        max_batches: how many batches are read; None reads all.
        generator: for `draw`: a seed, a generator or None.

    Returns:
        What was done.

    Raises:
        ValueError: if a layer's output does not vary, or is not finite; it names the layer. If
            `skip` names what the model does not have.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0.initializers import unit_variance_
        >>> model = unit_variance_(model, batches)
        >>> preactivations = model[0](torch.cat([x for x, _ in batches]))
        >>> bool((preactivations.var() - 1).abs() < 0.01)
        True
    """
    if not (math.isfinite(std) and std > 0):
        raise ValueError(f"std: expected a positive number, got {std}")
    to_std, law = _ToDeviation(std), Drawing(draw, 1.0, generator)
    sweeps = layerwise(model, batches, _pooled, to_std.adjust, to_std.is_off, law, skip, max_batches)
    names = sweeps.names
    return UnitVariance(
        scales={names[key]: scale for key, scale in to_std.scales.items()},
        deviations={names[key]: _deviation(pooled) for key, pooled in sweeps.pooled.items()},
        skipped=sweeps.skipped,
        unconverged=tuple(names[key] for key in sweeps.unconverged),
        sweeps=sweeps.count,
    )


unit_variance_ = in_place(unit_variance)


def _pooled(call: LinearCall) -> Moments:
    return moments(call.output.flatten())


def _deviation(found: Moments) -> float:
    return math.sqrt(float(found.variance))


@dataclass
class _ToDeviation:  # shared by the observers of the passes
    std: float
    scales: dict[Key, float] = field(default_factory=dict)

    def is_off(self, key: Key, pooled: Moments) -> bool:
        return not abs(_deviation(pooled) / self.std - 1) <= _TOLERANCE

    def adjust(self, call: LinearCall, key: Key, goal: Goal) -> bool:
        """Bring a weight's first call to its wanted deviation, output and all; it must vary."""
        had_bias = _remove_bias(call)
        deviation = _deviation(_pooled(call))
        if not (math.isfinite(deviation) and deviation > 0):
            refuse_constant(_NAME, call, deviation)
        scale = self.std * float(goal.deviation) / deviation
        if abs(scale - 1) < _TOLERANCE / 5:
            return had_bias
        multiply(call, scale, _NAME)
        self.scales[key] = self.scales.get(key, 1.0) * scale
        call.output.detach().mul_(scale)
        return True


def _remove_bias(call: LinearCall) -> bool:
    bias = call.bias
    if bias is None or not bias.requires_grad or not bool(bias.any()):
        return False
    call.output.detach().sub_(bias.detach().reshape([-1] + [1] * (-call.unit_axis - 1)))
    bias.data.zero_()  # a forward pass may switch gradients on
    return True
