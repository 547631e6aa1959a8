"""Short training runs from where a model stands; the caller wraps them in `preserve_state`."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, loss_of

OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "rmsprop"]
RATES = tuple(10 ** (exponent / 2) for exponent in range(-6, 1))  # 1e-3 … 1, two a decade

_OPTIMIZERS: dict[str, Callable[[Iterable[nn.Parameter], float], torch.optim.Optimizer]] = {
    "sgd": lambda parameters, rate: torch.optim.SGD(parameters, rate),
    "momentum": lambda parameters, rate: torch.optim.SGD(parameters, rate, momentum=0.9),
    "adam": lambda parameters, rate: torch.optim.Adam(parameters, rate),
    "adamw": lambda parameters, rate: torch.optim.AdamW(parameters, rate),
    "rmsprop": lambda parameters, rate: torch.optim.RMSprop(parameters, rate),
}


@dataclass(frozen=True)
class Run:
    """A short training run from one starting point.

    Attributes:
        optimizer: its name.
        rate: the learning rate.
        losses: the training loss at every step; shorter than asked when it became non-finite.
        held_out: mean loss on the held-out batches after the last step; infinite when the run diverged.
        held_out_start: the same before the first step.
        cost: in gradients.
    """

    optimizer: str
    rate: float
    losses: tuple[float, ...]
    held_out: float
    held_out_start: float
    cost: float = 0.0


def checked_optimizer(name: str) -> str:
    """The name, if it is an optimizer's.

    Returns:
        The same.

    Raises:
        ValueError: if it is not.
    """
    if not isinstance(name, str) or name not in _OPTIMIZERS:
        raise ValueError(f"optimizer: expected one of {', '.join(_OPTIMIZERS)}, got {name!r}")
    return name


def steps_from(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str,
    rate: float,
    steps: int,
    seed: int = 0,
    penalty: Callable[[nn.Module], Tensor] | None = None,
) -> list[float]:
    """Train in place, batches in turn, in the mode in which the model is.

    Args:
        model: changed.
        batches: used one a step, over and over.
        loss: a name or callable.
        optimizer: its name.
        rate: the learning rate.
        steps: how many.
        seed: of the global generators meanwhile (dropout), so that two starts see the same noise.
        penalty: added to the loss that is descended, but not to the losses returned.

    Returns:
        The loss before each step; it ends early with the first that is not finite.
    """
    torch.manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    stepper = _OPTIMIZERS[checked_optimizer(optimizer)](trained, rate)
    losses: list[float] = []
    with torch.enable_grad():
        for step in range(steps):
            stepper.zero_grad(set_to_none=True)
            value, _ = loss_of(model, batches[step % len(batches)], loss)
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                break
            objective = value if penalty is None else value + penalty(model)
            torch.autograd.backward(objective, inputs=trained)
            stepper.step()
    return losses


def mean_loss(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> float:
    """Mean loss over batches, without training, in the mode in which the model is.

    Returns:
        The loss; infinite where it is not a number.
    """
    with torch.no_grad():
        total = sum(float(loss_of(model, batch, loss)[0]) for batch in batches) / len(batches)
    return total if not math.isnan(total) else math.inf


def short_run(
    model: nn.Module,
    train: Sequence[Batch],
    verify: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str,
    rate: float,
    steps: int,
    seed: int = 0,
) -> Run:
    """Train in place for a budget and verify on held-out batches.

    Returns:
        What happened.
    """
    torch.manual_seed(seed)
    before = mean_loss(model, verify, loss)
    losses = steps_from(model, train, loss, optimizer=optimizer, rate=rate, steps=steps, seed=seed)
    diverged = not math.isfinite(losses[-1])
    after = math.inf if diverged else mean_loss(model, verify, loss)
    return Run(optimizer, rate, tuple(losses), after, before, cost=len(losses) + 2 * len(verify) / 3)


def probe_rate(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str,
    restore: Callable[[], None],
    rates: Sequence[float] = RATES,
    steps: int = 10,
) -> tuple[float, float]:
    """The rate whose few steps lower the loss most.

    The mean loss over the given batches after the steps decides, since single batches differ more than starts do.

    Args:
        model: trained in place, and put back by `restore` after each rate.
        batches: the data.
        loss: a name or callable.
        optimizer: its name.
        restore: puts the model back.
        rates: the candidates.
        steps: how many each is given.

    Returns:
        The rate and the cost in gradients.
    """
    reached: dict[float, float] = {}
    for rate in rates:
        losses = steps_from(model, batches, loss, optimizer=optimizer, rate=rate, steps=steps)
        finite = math.isfinite(losses[-1])
        reached[rate] = mean_loss(model, batches, loss) if finite else math.inf
        restore()
    return min(reached, key=lambda rate: reached[rate]), len(rates) * (steps + len(batches) / 3)
