"""Remedies by name: each changes a model's start in place, and leaves it as it was if it cannot."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn
from torch.nn import Conv1d, Conv2d, Conv3d, Linear

from theta0._batches import initialised, materialised
from theta0._layers import Layer, layers
from theta0._models import unwrapped
from theta0._randomness import Randomness
from theta0._untouched import snapshot
from theta0.initializers.unit_variance import unit_variance_
from theta0.parametrizations.linearly_constrained import linearly_constrained

Remedy = Callable[..., nn.Module]

# The findings that name each remedy; treat(with_="auto") tries them in this order.
ANSWERS: Mapping[str, tuple[str, ...]] = {
    "activation-shift": ("lcw", "unit-variance"),
    "vanishing-activations": ("unit-variance", "lcw"),
    "exploding-activations": ("unit-variance", "lcw"),
    "saturated-units": ("unit-variance", "lcw"),
    "dead-units": ("unit-variance", "lcw"),
    "constant-output": ("unit-variance", "lcw"),
    "initial-loss": ("unit-variance",),
    "vanishing-gradients": ("lcw", "unit-variance"),
    "exploding-gradients": ("unit-variance", "lcw"),
}


def lcw_(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> nn.Module:
    """Linearly constrained weights on every Linear and Conv layer but the last, then unit variance.

    Layers that cannot be constrained (fan-in 1, tied, frozen, or parametrized already) keep plain weights.

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored.
        generator: ignored: nothing is drawn.

    Returns:
        The model.

    Raises:
        ValueError: if no layer can be constrained, or unit variance cannot be reached.
    """
    inner = initialised(model)
    found = materialised(batches, inner)
    restore = snapshot(inner)
    try:
        constrained = constrainable(layers(inner, found[0]))
        if not constrained:
            raise ValueError(
                "lcw: expected a Linear or Conv layer before the last whose weight can be constrained, got none"
            )
        for layer in constrained:
            linearly_constrained(layer.module, layer.attribute)
        unit_variance_(inner, found, skip=silent_layers(inner))
    except BaseException:
        restore()
        raise
    return model


def scaled_(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> nn.Module:
    """`unit_variance_` on all layers but those whose weights are zero on purpose.

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored.
        generator: ignored: nothing is drawn.

    Returns:
        The model.
    """
    return unit_variance_(model, batches, skip=silent_layers(unwrapped(model)))


def constrainable(found: list[Layer]) -> list[Layer]:
    """The layers that LCW constrains: Linear and Conv, all but the last, with a plain, trained, untied weight.

    Returns:
        Those layers, in execution order.
    """
    kinds = (Linear, Conv1d, Conv2d, Conv3d)
    usable = [layer for layer in found if isinstance(layer.module, kinds) and layer.attribute == "weight"]
    return [
        layer for layer in usable[:-1] if layer.fan_in > 1 and not (layer.tied or layer.frozen or layer.parametrized)
    ]


def silent_layers(model: nn.Module) -> list[str]:
    """Modules whose weight is all zero: the start of a residual branch or a head, on purpose.

    Returns:
        Their paths.
    """
    weights = ((path, getattr(module, "weight", None)) for path, module in model.named_modules())
    return [path for path, weight in weights if isinstance(weight, nn.Parameter) and not bool(weight.detach().any())]


REMEDIES: Mapping[str, Remedy] = {"unit-variance": scaled_, "lcw": lcw_}
