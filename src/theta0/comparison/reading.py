"""A data source read from a fixed seed: a race asked for again sees the same batches, and its store is found."""

import random
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
from torch import nn

from theta0._batches import Batch, load_batches, own_generators
from theta0._models import Step
from theta0._state import preserve_randomness, seed_draws

_SEED = 1729  # not one of the runs': the data must not be drawn as the weights are


@contextmanager
def seeded(source: Any = None) -> Iterator[None]:
    """Within the block every global generator, and those that a DataLoader holds, start from a fixed seed.

    Afterwards they are as they were, also when the block raises.
    """
    with preserve_randomness(), own_generators(source) as own:
        seed_draws(_SEED)
        np.random.seed(_SEED)
        random.seed(_SEED)
        for generator in own:
            generator.manual_seed(_SEED)
        yield


def read(batches: Iterable[Any], model: nn.Module, *, max_batches: int | None, step: Step | None = None) -> list[Batch]:
    """Read a data source, shuffled the same way each time."""
    with seeded(batches):
        return load_batches(batches, model, max_batches=max_batches, step=step)
