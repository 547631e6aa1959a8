"""Weight normalization's data-dependent start: every unit's preactivation gets mean 0 and variance 1 on a minibatch."""

import math
from collections.abc import Collection, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
from jaxtyping import Bool, Float64
from torch import Tensor, nn
from torch.nn.utils import parametrize

from theta0._models import in_place
from theta0._moments import Moments, moments
from theta0._randomness import Randomness
from theta0._trace.calls import LinearCall
from theta0._weights import has_value
from theta0.initializers._layerwise import Drawing, Goal, Key, layerwise, multiply, per_unit, refuse_constant

_NAME = "weight_norm_start_"
_TOLERANCE = 0.1
_DRAWN_STD = 0.05


@dataclass(frozen=True)
class WeightNormStart:
    """What `weight_norm_start_` did.

    Attributes:
        scales: for each layer the smallest and the largest factor put on a unit's weights.
        guarded: units whose output hardly varies, which were not scaled, by layer.
        unshifted: layers without a bias that can be set, whose units keep their means.
        skipped: layers left as they were, and why.
        unconverged: layers with a unit whose mean or deviation is more than 0.1 off.
        sweeps: how many forward passes over the batches were needed.
    """

    scales: dict[str, tuple[float, float]]
    guarded: dict[str, tuple[int, ...]]
    unshifted: tuple[str, ...]
    skipped: dict[str, str]
    unconverged: tuple[str, ...]
    sweeps: int


def weight_norm_start(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    draw: str | None = None,
    floor: float = 0.01,
    skip: Collection[str] = (),
    max_batches: int | None = 1,
    generator: Randomness = None,
) -> WeightNormStart:
    r"""Give every unit's preactivation mean 0 and variance 1, layer by layer in execution order.

    $w ← w / σ$ and $b ← -μ / σ$ for each unit (a channel of a convolution), μ and σ those of $w·a$ over samples and
    positions (Salimans & Kingma 2016, section 3; kutsuna2019lcw, section 6.1 starts its weight-normalised and centred
    weight-normalised networks so). Under torch's `weight_norm` and `centered_weight_norm` the factor goes to the gain g
    and the direction v stays; plain weights are scaled row by row; other parametrizations by assignment. Unlike
    `unit_variance_` it takes away the differences between units.

    A unit that hardly varies on the batch, such as a channel that is silent in it, would get an enormous gain and
    explode when it first speaks: its weights are left alone, and it is reported. Without a bias that can be set, a
    unit's mean stays.

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored; every initializer takes the same arguments.
        draw: None keeps the weights' directions; "normal" (deviation 0.05, as the source draws v) or "orthogonal" (of
            gain 0.05) draws new ones first.
        floor: a unit is left alone where σ is at most this share of its layer's root mean square σ.
        skip: paths of layers to leave alone, or of modules with all that is in them.
        max_batches: how many batches are read, one in the source; None reads all.
        generator: for `draw`: a seed, a generator or None.

    Returns:
        What was done.

    Raises:
        ValueError: if no unit of a layer varies, or its output is not finite; it names the layer. If
            `skip` names what the model does not have.

    >>> layer = nn.Linear(2, 1)
    >>> x = torch.tensor([[1.0, 3.0], [2.0, -1.0], [0.0, 0.5]])
    >>> z = weight_norm_start_(layer, [x])(x)
    >>> abs(round(z.mean().item(), 4)), round(z.std(correction=0).item(), 4)
    (0.0, 1.0)
    """
    if not 0 <= floor < 1:
        raise ValueError(f"floor: expected a share of the layer's deviation, from 0 to below 1, got {floor}")
    units, law = _Units(floor), Drawing(draw, _DRAWN_STD, generator)
    sweeps = layerwise(model, batches, _by_unit, units.adjust, units.is_off, law, skip, max_batches)
    names = sweeps.names
    silent = {names[key]: ~varies for key, varies in units.varies.items() if not varies.all()}
    return WeightNormStart(
        scales={names[key]: (float(s.min()), float(s.max())) for key, s in units.scales.items()},
        guarded={name: tuple(units.nonzero().flatten().tolist()) for name, units in silent.items()},
        unshifted=tuple(names[key] for key, shifted in units.shifted.items() if not shifted),
        skipped=sweeps.skipped,
        unconverged=tuple(names[key] for key in sweeps.unconverged),
        sweeps=sweeps.count,
    )


weight_norm_start_ = in_place(weight_norm_start)


@dataclass
class _Units:  # shared by the observers of the passes
    """What each layer's units got, by the key of its weight."""

    floor: float
    varies: dict[Key, Bool[Tensor, " units"]] = field(default_factory=dict)
    shifted: dict[Key, bool] = field(default_factory=dict)
    scales: dict[Key, Float64[Tensor, " units"]] = field(default_factory=dict)

    def is_off(self, key: Key, pooled: Moments) -> bool:
        spread = (pooled.variance.sqrt() - 1)[self.varies[key]].abs()
        mean = pooled.mean[self.varies[key]].abs() if self.shifted[key] else spread
        return not bool((spread <= _TOLERANCE).all() and (mean <= _TOLERANCE).all())

    def adjust(self, call: LinearCall, key: Key, goal: Goal) -> bool:
        """Bring the units of a weight's first call to their wanted means and deviations, output and all."""
        found = _by_unit(call)
        deviation = found.variance.sqrt()
        typical = float(deviation.square().mean().sqrt())
        rounding = 8 * torch.finfo(call.output.dtype).eps * float(found.mean.abs().max())
        if not math.isfinite(typical) or typical <= rounding:
            refuse_constant(_NAME, call, typical if not math.isfinite(typical) else 0.0)
        # What varied in an earlier pass is kept in the last one's goals.
        varies = self.varies.setdefault(key, deviation > max(self.floor * typical, rounding))
        scale = torch.where(varies, goal.deviation.to(deviation) / deviation, 1.0)
        wanted = torch.where(varies, goal.mean.to(deviation), 0.0)
        bias = call.bias if call.bias is not None and _settable(call.bias, len(scale)) else None
        self.shifted[key] = bias is not None
        off = (scale - 1).abs().max() >= _TOLERANCE / 5
        if bias is not None:
            off |= (found.mean * scale - wanted).abs().max() >= _TOLERANCE / 5
        if not off:
            return False
        self.scales[key] = self.scales.get(key, torch.ones_like(scale)) * scale
        _scale(call, scale)
        _move(call, bias, found.mean, scale, wanted)
        return True


def _scale(call: LinearCall, scale: Float64[Tensor, " units"]) -> None:
    """Scale a weight's units: the gains of a weight normalization where they are per unit, else the weight itself."""
    owner = call.owner
    factor = per_unit(call, scale.to(call.weight))
    if parametrize.is_parametrized(owner.module, owner.attribute):
        parts: nn.ModuleDict = owner.module.parametrizations  # type: ignore[assignment]
        part = parts[owner.attribute]
        gain, direction = getattr(part, "original0", None), getattr(part, "original1", None)
        if isinstance(gain, Tensor) and isinstance(direction, Tensor) and gain.numel() == len(scale):
            before = gain.detach().clone()
            gain.mul_(scale.to(gain).view_as(gain))
            reached = getattr(owner.module, owner.attribute)
            wanted = call.weight * factor
            if reached.shape == wanted.shape and has_value(reached, wanted):
                return
            gain.copy_(before)
    multiply(call, factor, _NAME)


def _move(
    call: LinearCall, bias: Tensor | None, mean: Tensor, scale: Tensor, wanted: Float64[Tensor, " units"]
) -> None:
    """Set the bias, and the call's output to what the new weight and bias make of its input."""
    along = [-1] + [1] * (-call.unit_axis - 1)
    factor = scale.view(along)
    output = call.output.double()
    if bias is not None:
        shifted = (output - mean.view(along)) * factor + wanted.view(along)
        bias.copy_((bias.double() - mean) * scale + wanted)
    else:  # a frozen bias is added to the scaled sum
        kept = 0.0 if call.bias is None else call.bias.double().reshape(along)
        shifted = (output - kept) * factor + kept
    call.output.copy_(shifted)


def _settable(bias: Tensor, units: int) -> bool:
    return bias.requires_grad and bias.shape == (units,)


def _by_unit(call: LinearCall) -> Moments:
    return moments(
        call.output.movedim(call.unit_axis, -1).flatten(0, -2) if call.output.dim() > 1 else call.output[None]
    )
