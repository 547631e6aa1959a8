"""The starts that can be raced, by name, and how one is made for a seed."""

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from theta0._batches import Batch, initialised
from theta0._losses import Loss
from theta0._randomness import Randomness
from theta0._state import preserve_randomness, seed_draws, snapshot
from theta0.treatment.remedies import REMEDIES, Remedy
from theta0.treatment.results import Applied

Factory = Callable[[], nn.Module]


def as_given(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    generator: Randomness = None,
) -> Applied:
    """Leave the model's own start."""
    return Applied()


class UnmadeError(ValueError):
    """A method refuses to make a start, or finds none."""


# A method that makes a start is one line here.
STARTS: Mapping[str, Remedy] = {"default": as_given, **REMEDIES}


@dataclass(frozen=True)
class Made:
    """A start that was made.

    `state` puts the model into it; `gradients` is the cost where the method reports it.
    """

    model: nn.Module
    state: Callable[[], None]
    seconds: float
    gradients: float | None


class Makers:  # a class because starts that were made are kept until the race is over
    """Starts by name and seed. Each that was made is kept: one copy of the parameters and buffers."""

    def __init__(self, source: nn.Module | Factory, batches: Sequence[Batch], loss: Loss) -> None:
        self.source, self.batches, self.loss = source, batches, loss
        self.made: dict[tuple[str, int], Made] = {}
        self.restore = snapshot(initialised(source)) if isinstance(source, nn.Module) else lambda: None

    def plain(self, seed: int) -> nn.Module:
        """The model as it comes for a seed; a factory must return a module."""
        if isinstance(self.source, nn.Module):
            self.restore()
            return initialised(self.source)
        with preserve_randomness():
            seed_draws(seed)
            model = self.source()
        if not isinstance(model, nn.Module):
            raise ValueError(f"model: expected a module or a function that returns one, got {type(model).__name__}")
        return initialised(model)

    def make(self, start: str, seed: int) -> Made:
        """A start, made once, or an `UnmadeError`; its model stands at it until another start of it is made."""
        if (start, seed) not in self.made:
            model = self.plain(seed)
            torch.manual_seed(seed)  # dropout, while a start is made; `compare` puts the random state back
            began = time.perf_counter()
            try:
                done = STARTS[start](model, list(self.batches), self.loss, generator=seed)
            except ValueError as error:
                raise UnmadeError(str(error)) from error
            if not done.kept:
                raise UnmadeError(done.reason)
            seconds = time.perf_counter() - began
            self.made[start, seed] = Made(model, snapshot(model), seconds, done.cost)
        return self.made[start, seed]
