"""How unlike the draws of its own type the values of a module are: where a search for the one at fault begins."""

import math
from collections.abc import Mapping, Sequence

import torch
from torch import Tensor, nn

from theta0._moments import real_entries
from theta0._randomness import streams
from theta0._weights import trained_tensors
from theta0.treatment.draws import draw_defaults

_MOST = 10.0  # of a scale that is zero or a spread that is none: beyond any ratio of sizes that is tried first
_ZERO = 2.0  # of a weight that is zero, as many are on purpose


def unlikeness(model: nn.Module, found: Mapping[str, Sequence[str]]) -> dict[str, float]:
    """Compare each module's values with a draw of its type's initialization; the model's values are replaced by it.

    Logarithms, so that scales of modules can be compared: of the ratio of root mean squares, of the mean over the
    spread times the root of the fan-in (what weights of one sign add to a unit), and of a bias over one, the size of a
    preactivation; of copied units, ten times their share.

    Args:
        model: the network, whose user puts it back.
        found: the names of the parameters of each module.

    Returns:
        The largest of these for each module; 0 for values as they are drawn.
    """
    named = {name: parameter for name, (_, _, parameter) in trained_tensors(model).items()}
    before = {name: real_entries(named[name].detach()).double().clone() for names in found.values() for name in names}
    draw_defaults(model, streams(0), only=list(before))
    return {
        path: max(_unlike(before[name], real_entries(named[name].detach()).double()) for name in names)
        for path, names in found.items()
    }


def _unlike(values: Tensor, drawn: Tensor) -> float:
    if not bool(torch.isfinite(values).all()):
        return _MOST
    size, usual = float(values.square().mean().sqrt()), float(drawn.square().mean().sqrt())
    if values.dim() < 2:
        return _ratio(size, usual) if usual else max(0.0, math.log(max(size, 1e-300)))
    if not size:
        return _ZERO if usual else 0.0
    spread, fan = float(values.std(correction=0)), values[0].numel()
    leaning = float(values.mean().abs()) / spread * math.sqrt(fan) if spread > 1e-6 * size else math.inf
    distinct = len(torch.unique(values.flatten(1), dim=0))
    copies = _MOST * (1 - distinct / len(values))
    return max(_ratio(size, usual), min(_MOST, math.log(max(leaning, 1.0))), copies)


def _ratio(size: float, usual: float) -> float:
    return min(_MOST, abs(math.log(size / usual))) if size and usual else _MOST
