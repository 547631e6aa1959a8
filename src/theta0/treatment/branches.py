"""Remedies that make residual branches start small."""

import math
from collections.abc import Callable, Iterable
from typing import Any

from torch import nn

from theta0._batches import initialised, materialised
from theta0._branches import branch_endings
from theta0._randomness import Randomness
from theta0._state import transaction
from theta0.treatment.writing import InapplicableError, Report, scaled_in_place


def branch_scale_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    generator: Randomness = None,
    report: Report | None = None,
) -> nn.Module:
    r"""Multiply the end of each residual branch by $1/\sqrt L$, L the number of branches.

    A stack of L branches of equal variance then adds as much to its input as one branch did (Hanin & Rolnick, 2018,
    section 3; De & Smith, 2020).

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored.
        generator: ignored: nothing is drawn.
        report: receives the endings left as they were, and why.

    Returns:
        The model.
    """
    return _scaled_branches(model, batches, lambda count: 1 / math.sqrt(count), report)


def branch_zero_(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Any = None,
    *,
    generator: Randomness = None,
    report: Report | None = None,
) -> nn.Module:
    """Start each residual branch at zero, so that the network starts as its shortcuts (Zhang et al., 2019, Fixup).

    Args:
        model: changed in place; as it was if anything fails.
        batches: batches with or without targets.
        loss: ignored.
        generator: ignored: nothing is drawn.
        report: receives the endings left as they were, and why.

    Returns:
        The model.
    """
    return _scaled_branches(model, batches, lambda count: 0.0, report)


def _scaled_branches(
    model: nn.Module, batches: Iterable[Any], factor: Callable[[int], float], report: Report | None
) -> nn.Module:
    inner = initialised(model)
    endings = branch_endings(inner, materialised(batches, inner, max_batches=1)[0])
    trained = {name for name, p in inner.named_parameters(remove_duplicate=False) if p.requires_grad}
    usable = [ending for ending in endings if ending.name in trained]
    if len(usable) < 2:
        raise InapplicableError(f"expected at least two residual branches that end with a weight, got {len(usable)}")
    left: dict[str, str] = {ending.name: "frozen" for ending in endings if ending.name not in trained}
    with transaction(inner):
        for ending in usable:
            try:
                scaled_in_place(ending.module, ending.attribute, factor(len(usable)))
            except ValueError as error:
                left[ending.name] = str(error)
            else:
                if ending.bias is not None and isinstance(ending.bias, nn.Parameter) and ending.bias.requires_grad:
                    ending.bias.data.mul_(factor(len(usable)))
        if len(left) == len(endings):
            raise ValueError("; ".join(f"{name}: {why}" for name, why in left.items()))
    if report is not None:
        report(left)
    return model
