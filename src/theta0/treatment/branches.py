"""Remedies that make residual branches start small."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from theta0._batches import initialised, load_batches
from theta0._errors import InapplicableError
from theta0._randomness import Randomness
from theta0._state import transaction
from theta0._weights import scale_weight
from theta0.measurements.residual_stream import residual_stream
from theta0.treatment.results import Applied


def branch_scale(
    model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None
) -> Applied:
    r"""Multiply the end of each residual branch by $1/\sqrt L$, L the number of branches.

    A stack of L branches of equal variance then adds as much to its input as one branch did (Hanin & Rolnick, 2018,
    section 3; De & Smith, 2020).
    """
    return _scaled_branches(model, batches, lambda count: 1 / math.sqrt(count))


def branch_zero(model: nn.Module, batches: Iterable[Any], loss: Any = None, *, generator: Randomness = None) -> Applied:
    """Start each residual branch at zero, so that the network starts as its shortcuts (Zhang et al., 2019, Fixup)."""
    return _scaled_branches(model, batches, lambda count: 0.0)


def _scaled_branches(model: nn.Module, batches: Iterable[Any], factor: Callable[[int], float]) -> Applied:
    inner = initialised(model)
    endings = residual_stream(inner, load_batches(batches, inner, max_batches=1)[0]).endings
    trained = {name for name, p in inner.named_parameters(remove_duplicate=False) if p.requires_grad}
    usable = [ending for ending in endings if ending.name in trained]
    if len(usable) < 2:
        raise InapplicableError(f"expected at least two residual branches that end with a weight, got {len(usable)}")
    left: dict[str, str] = {ending.name: "frozen" for ending in endings if ending.name not in trained}
    with transaction(inner):
        for ending in usable:
            try:
                scale_weight(ending.module, ending.attribute, factor(len(usable)))
            except ValueError as error:
                left[ending.name] = str(error)
            else:
                if ending.bias is not None and isinstance(ending.bias, nn.Parameter) and ending.bias.requires_grad:
                    ending.bias.data.mul_(factor(len(usable)))
        if len(left) == len(endings):
            raise ValueError("; ".join(f"{name}: {why}" for name, why in left.items()))
    return Applied(left)
