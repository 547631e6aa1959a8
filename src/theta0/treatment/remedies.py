"""Remedies by name: each changes a model's start in place, and leaves it as it was if it cannot."""

from collections.abc import Callable, Iterable, Mapping
from functools import partial
from typing import Any

from torch import nn
from torch.nn import Conv1d, Conv2d, Conv3d, Linear

from theta0._batches import initialised, load_batches
from theta0._errors import InapplicableError
from theta0._models import unwrapped
from theta0._randomness import Randomness
from theta0._state import transaction
from theta0._trace.layers import Layer, layers
from theta0._weights import assign_weight
from theta0.diagnosis.results import Diagnosis
from theta0.diagnosis.rules import rule_of
from theta0.initializers.unit_variance import unit_variance
from theta0.parametrizations.linearly_constrained import linearly_constrained
from theta0.treatment.branches import branch_scale, branch_zero
from theta0.treatment.draws import break_zero_gradients, redraw, type_defaults
from theta0.treatment.recurrences import long_memory, recurrent
from theta0.treatment.results import Applied
from theta0.treatment.scales import gain_guard, head_scale, tied_scale
from theta0.treatment.searches import SEARCHES

# `remedy(model, batches, loss, *, generator)` changes the model in place, or leaves it as it was if anything fails. It
# raises an `InapplicableError` where the model has nothing of the kind that it changes; its result says where it found
# nothing better.
Remedy = Callable[..., Applied]


def lcw(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> Applied:
    """Linearly constrained weights on every Linear and Conv layer but the last, then unit variance.

    Layers that cannot be constrained (fan-in 1, tied, frozen, or parametrized already) keep plain weights.
    """
    inner = initialised(model)
    found = load_batches(batches, inner)
    with transaction(inner):
        constrained, plain = constrainable(layers(inner, found[0]))
        if not constrained:
            why = "; ".join(f"layer {path!r}: {reason}" for path, reason in plain.items()) or "there is no such layer"
            raise InapplicableError(
                f"expected a Linear or Conv layer before the last whose weight can be constrained, got none ({why})"
            )
        for layer in constrained:
            linearly_constrained(layer.module, layer.attribute)
        unit_variance(inner, found, skip=silent_layers(inner))
    return Applied(plain)


def centre(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> Applied:
    """As `lcw`, but only at the start: units' weights are centred once, then scaled to unit variance, and stay free."""
    inner = initialised(model)
    found = load_batches(batches, inner)
    constrained, plain = constrainable(layers(inner, found[0]))
    if not constrained:
        raise InapplicableError("expected a Linear or Conv layer before the last that can be centred, got none")
    with transaction(inner):
        for layer in constrained:
            weight = getattr(layer.module, layer.attribute)
            axes = tuple(range(1, weight.dim()))
            assign_weight(layer.module, layer.attribute, weight - weight.mean(axes, keepdim=True))
        unit_variance(inner, found, skip=silent_layers(inner))
    return Applied(plain)


def scaled(
    model: nn.Module, batches: Iterable[Any], loss: Any = None, *, draw: str | None = None, generator: Randomness = None
) -> Applied:
    """Unit variance on all layers but those whose weights are zero on purpose, or whose output never varies.

    "lsuv" draws orthogonal weights first (Mishkin & Matas, 2016).
    """
    skip = silent_layers(unwrapped(model))
    return Applied(unit_variance(model, batches, draw=draw, skip=skip, generator=generator).skipped)


def constrainable(found: list[Layer]) -> tuple[list[Layer], dict[str, str]]:
    """The layers that LCW constrains: Linear and Conv, all but the last, with a plain, trained, untied weight.

    With them comes, for each other one before the last, why it keeps a plain weight.
    """
    kinds = (Linear, Conv1d, Conv2d, Conv3d)
    usable = [layer for layer in found if isinstance(layer.module, kinds) and layer.attribute == "weight"][:-1]
    reasons = {layer.path: reason for layer in usable if (reason := _plain_because(layer)) is not None}
    return [layer for layer in usable if layer.path not in reasons], reasons


def _plain_because(layer: Layer) -> str | None:
    if layer.fan_in < 2:
        return f"fan-in {layer.fan_in}, where only the zero weight sums to zero"
    named = {"tied": layer.tied, "frozen": layer.frozen, "parametrized already": layer.parametrized}
    return next((reason for reason, holds in named.items() if holds), None)


def silent_layers(model: nn.Module) -> list[str]:
    """Modules whose weight is all zero: the start of a residual branch or a head, on purpose."""
    # Not by getattr: spectral normalization moves its buffers when its weight is only looked at.
    weights = ((path, module._parameters.get("weight")) for path, module in model.named_modules())
    return [path for path, weight in weights if weight is not None and not bool(weight.detach().any())]


# A further remedy is one line here:
# `treat --with NAME` applies it and `compare --starts NAME` races it.
REMEDIES: Mapping[str, Remedy] = {
    "unit-variance": scaled,
    "lcw": lcw,
    "centre": centre,
    "lsuv": partial(scaled, draw="orthogonal"),
    "branch-scale": branch_scale,
    "branch-zero": branch_zero,
    "head-scale": head_scale,
    "tied-scale": tied_scale,
    "gain-guard": gain_guard,
    "recurrent": recurrent,
    "long-memory": long_memory,
    "redraw": redraw,
    "wake": break_zero_gradients,
    "type-defaults": type_defaults,
    **SEARCHES,
}


def named_by(diagnosis: Diagnosis) -> list[str]:
    """The remedies that answer a diagnosis's errors and warnings, in the findings' order."""
    serious = [rule_of(finding.code) for finding in diagnosis.findings if finding.severity != "note"]
    return list(dict.fromkeys(remedy for rule in serious if rule is not None for remedy in rule.remedies))
