"""Starting points by name, with what was done to the model."""

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from torch import nn

from theta0._losses import Loss
from theta0._randomness import Randomness
from theta0.initializers.gradinit import gradinit
from theta0.initializers.metainit import metainit
from theta0.initializers.mmd import mmd
from theta0.initializers.nio import nio
from theta0.initializers.random_labels import random_labels
from theta0.initializers.unit_variance import unit_variance
from theta0.initializers.weight_norm_start import weight_norm_start

INITIALIZERS: Mapping[str, Callable[..., Any]] = {
    "unit-variance": unit_variance,
    "weight-norm-start": weight_norm_start,
    "mmd": mmd,
    "random-labels": random_labels,
    "nio": nio,
    "gradinit": gradinit,
    "metainit": metainit,
}


def initialize(
    name: str,
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    generator: Randomness = None,
    **options: Any,
) -> Any:
    """Change a model's start in place, as the initializer `name_` does, and return what was done.

    A search that finds nothing better raises nothing here: its result has `kept` False and a `reason`, and the model is
    as it was. Likewise a training that the user interrupts (Ctrl-C): its result has `interrupted` True.

    Args:
        name: "unit-variance", "weight-norm-start", "mmd", "random-labels", "nio", "gradinit" or "metainit".
        model: changed in place; as it was if anything fails.
        batches: as the initializer takes them.
        loss: likewise.
        generator: a seed, a generator or None.
        options: the initializer's own.

    Returns:
        The initializer's frozen result: `UnitVariance`, `WeightNormStart`, `Mmd`, `RandomLabels` or `ScaleSearch`.

    Raises:
        ValueError: if there is no initializer of that name, or it raises one.

    >>> import torch
    >>> initialize("unit-variance", nn.Linear(2, 2), [torch.eye(2)]).unconverged
    ()
    """
    if name not in INITIALIZERS:
        raise ValueError(f"name: expected one of {', '.join(INITIALIZERS)}, got {name!r}")
    return INITIALIZERS[name](model, batches, loss, generator=generator, **options)
