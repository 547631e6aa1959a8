"""The normalisations that section 6 of kutsuna2019lcw compares, and the start that each is given."""

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Literal

import torch
from torch import nn
from torch.nn.utils import parametrize

from theta0.initializers import unit_variance_, weight_norm_start_
from theta0.layers import Standardization
from theta0.parametrizations import parametrize_

Weights = Literal["lcw", "weight-norm", "cwn", "spectral-norm"]
STANDARDIZATION = partial(Standardization, affine=True)  # the source took torch's batch normalization as it comes
Start = Literal["glorot", "unit-variance", "data-dependent"]


@dataclass(frozen=True)
class Variant:
    """A network's normalisation.

    Attributes:
        start: by what the weights are scaled: not at all after Glorot's draw, one factor a layer (section 4.3), or one
            factor and a bias per unit (Salimans & Kingma 2016).
        weights: what is done to weights; None for plain ones.
        before: makes what normalises the preactivations.
        after: makes what normalises the activations.
        colour: of its curve.
        long: whether the directions v of normalised weights start as long as the weights g · v / ‖v‖ themselves.
        unit_gain: whether gains are 1 and stay there.
        whole: whether the last layer's weights are like the others'.
    """

    start: Start
    colour: str
    weights: Weights | None = None
    before: Callable[[int], nn.Module] | None = None
    after: Callable[[int], nn.Module] | None = None
    long: bool = False
    unit_gain: bool = False
    whole: bool = False


VARIANTS: dict[str, Variant] = {
    "plain": Variant("glorot", "#7a7a7a"),
    "unit variance": Variant("unit-variance", "#b9a98c"),
    "absorbing biases": Variant("data-dependent", "#2b2b2b"),  # section 2: a start without shift, nothing keeps it so
    "LCW": Variant("unit-variance", "#c1521c", "lcw"),
    "BN": Variant("glorot", "#1f5a94", before=nn.BatchNorm1d),
    "SL": Variant("glorot", "#3c7d3c", after=STANDARDIZATION),
    "LN": Variant("glorot", "#8a5aa8", before=nn.LayerNorm),
    "WN": Variant("data-dependent", "#d09a1e", "weight-norm"),
    "CWN": Variant("data-dependent", "#d4687c", "cwn"),
    "SN": Variant("glorot", "#4bb3b3", "spectral-norm"),
    "BN+LCW": Variant("unit-variance", "#c1521c", "lcw", before=nn.BatchNorm1d),
    "BN+WN": Variant("data-dependent", "#d09a1e", "weight-norm", before=nn.BatchNorm1d),
    "BN+CWN": Variant("data-dependent", "#d4687c", "cwn", before=nn.BatchNorm1d),
    "BN+SN": Variant("glorot", "#4bb3b3", "spectral-norm", before=nn.BatchNorm1d),
    "BN+SL": Variant("glorot", "#3c7d3c", before=nn.BatchNorm1d, after=STANDARDIZATION),
}

# What else could be meant where the source trains and we do not (CWN, SL), and WN beside it.
SETTINGS: dict[str, Variant] = {
    "SL": VARIANTS["SL"],
    "SL, no scale": replace(VARIANTS["SL"], after=Standardization),
    "CWN": VARIANTS["CWN"],
    "CWN, last layer too": replace(VARIANTS["CWN"], whole=True),
    "CWN, gain 1": replace(VARIANTS["CWN"], start="glorot", unit_gain=True),
    "CWN, v as long as w": replace(VARIANTS["CWN"], long=True),
    "WN": VARIANTS["WN"],
    "WN, v as long as w": replace(VARIANTS["WN"], long=True),
    "LCW": VARIANTS["LCW"],
}


def start_(model: nn.Module, variant: Variant, batches: list[Any]) -> nn.Module:
    """Put a variant's weights and start onto a network with Glorot's weights (kutsuna2019lcw, section 6.1).

    The last layer's weights stay plain: no unit reads its output, so that its mean is no activation shift. (With them
    constrained too, one of two starts of the sigmoid network did not train.)

    Args:
        model: changed in place.
        variant: which.
        batches: a minibatch or several, which the starts by data are taken on.

    Returns:
        The model.
    """
    if variant.weights is not None:
        last = [name for name, layer in model.named_modules() if isinstance(layer, nn.Linear)][-1]
        parametrize_(model, variant.weights, skip=[] if variant.whole else [last])
    if variant.start == "unit-variance":
        unit_variance_(model, batches)
    if variant.start == "data-dependent":
        weight_norm_start_(model, batches)
    with torch.no_grad():
        for layer in normalised_layers(model):
            gain = layer.parametrizations.weight.original0
            if variant.unit_gain:
                gain.fill_(1.0).requires_grad_(False)
            if variant.long:
                layer.weight = layer.weight.clone()  # gain and direction of a weight are its length and itself
    return model


def normalised_layers(model: nn.Module) -> list[Any]:
    """The layers whose weights are a gain times a direction (WN, CWN)."""
    return [m for m in model.modules() if parametrize.is_parametrized(m, "weight") and _has_gain(m)]


def _has_gain(layer: Any) -> bool:
    return hasattr(layer.parametrizations.weight, "original1")
