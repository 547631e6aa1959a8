"""Optimizers, short training runs from where a model stands, and what work costs; the caller puts the model back."""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from torch import Tensor, nn

from theta0._batches import Batch
from theta0._losses import Loss, backward, loss_of
from theta0._progress import require_time
from theta0._records import Shown
from theta0._trace.interpreter import without_checkpoints

OptimizerName = Literal["sgd", "momentum", "adam", "adamw", "rmsprop"]
OPTIMIZERS = get_args(OptimizerName)
Maker = Callable[[list[nn.Parameter], float], torch.optim.Optimizer]  # from trained parameters and a rate
RATES = tuple(10 ** (exponent / 2) for exponent in range(-6, 1))  # 1e-3 … 1, two a decade


def count_gradients(gradients: int | float = 0, *, forward: int | float = 0, backward: int | float = 0) -> float:
    """The cost of passes over the mean batch, in gradients: a forward pass is a third of one, a backward pass the rest.

    A backward pass makes two products for each one of the forward pass: with the weights and with the inputs.
    """
    return float(gradients + forward / 3 + 2 * backward / 3)


@dataclass(frozen=True)
class OptimizerSettings:
    """An optimizer's settings, named as in torch.

    Attributes:
        optimizer: "sgd", "momentum" (heavy ball), "adam", "adamw" or "rmsprop".
        momentum: β of heavy ball.
        nesterov: Nesterov's momentum instead.
        betas: β₁ and β₂ of Adam.
        alpha: of RMSprop.
        eps: ε of the adaptive ones.
        weight_decay: decoupled in AdamW, part of the gradient otherwise.
    """

    optimizer: str
    momentum: float = 0.9
    nesterov: bool = False
    betas: tuple[float, float] = (0.9, 0.999)
    alpha: float = 0.99
    eps: float = 1e-8
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        """Refuse settings that cannot be used."""
        checked_optimizer(self.optimizer)
        if not all(0 <= share < 1 for share in (self.momentum, *self.betas, self.alpha)):
            raise ValueError(
                "momentum, betas, alpha: expected numbers from 0 to below 1, got "
                f"{self.momentum}, {self.betas}, {self.alpha}"
            )
        decay = self.weight_decay
        if not (decay >= 0 and math.isfinite(decay) and self.eps > 0):
            raise ValueError(f"weight_decay and eps: expected ≥ 0 and > 0, got {decay} and {self.eps}")
        if decay and self.optimizer in ("adam", "rmsprop"):
            raise ValueError(
                f"weight_decay: expected 0 for {self.optimizer!r}, whose decay is divided by the second moments so "
                f"that no single number describes it, got {decay}; use 'adamw', or leave it out"
            )


@dataclass(frozen=True, repr=False)
class Run(Shown):
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
    """The name, if it is an optimizer's."""
    if not isinstance(name, str) or name not in OPTIMIZERS:
        raise ValueError(f"optimizer: expected one of {', '.join(OPTIMIZERS)}, got {name!r}")
    return name


def checked_positive(value: float | None, name: str) -> float | None:
    """A setting, if it is None or a positive finite number."""
    number = isinstance(value, (int, float)) and not isinstance(value, bool)
    if value is not None and not (number and 0 < value < math.inf):
        raise ValueError(f"{name}: expected a positive number, got {value!r:.100}")
    return None if value is None else float(value)


def make_optimizer(
    settings: str | OptimizerSettings, parameters: Iterable[nn.Parameter], rate: float
) -> torch.optim.Optimizer:
    """A new optimizer, of torch's own defaults where only its name is given."""
    name = settings if isinstance(settings, str) else settings.optimizer
    s = OptimizerSettings(name, weight_decay=0.01 * (name == "adamw")) if isinstance(settings, str) else settings
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, rate, weight_decay=s.weight_decay),
        "momentum": lambda: torch.optim.SGD(
            parameters, rate, momentum=s.momentum, nesterov=s.nesterov, weight_decay=s.weight_decay
        ),
        "adam": lambda: torch.optim.Adam(parameters, rate, betas=s.betas, eps=s.eps),
        "adamw": lambda: torch.optim.AdamW(parameters, rate, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, rate, alpha=s.alpha, eps=s.eps),
    }
    made = makers[s.optimizer]()
    if s.optimizer not in ("sgd", "momentum"):  # those of Adam's kind refuse sparse gradients
        made.register_step_pre_hook(_densify)
    return made


def _densify(optimizer: torch.optim.Optimizer, *given: Any) -> None:
    for parameter in (p for group in optimizer.param_groups for p in group["params"]):
        if parameter.grad is not None and parameter.grad.is_sparse:
            parameter.grad = parameter.grad.to_dense()


def steps_from(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str | OptimizerSettings | Maker,
    rate: float,
    steps: int,
    seed: int = 0,
    penalty: Callable[[nn.Module], Tensor] | None = None,
) -> list[float]:
    """Train in place, batches in turn, in the mode in which the model is.

    The losses before each step are returned, without the penalty that is descended with them, up to the first that is
    not finite. The seed is that of the global generators meanwhile (dropout), so that two starts see the same noise.
    """
    torch.manual_seed(seed)
    trained = [p for p in model.parameters() if p.requires_grad]
    torch_optimizer = optimizer(trained, rate) if callable(optimizer) else make_optimizer(optimizer, trained, rate)
    losses: list[float] = []
    with torch.enable_grad(), without_checkpoints():  # re-entrant ones refuse `inputs=`
        for step in range(steps):
            require_time()
            torch_optimizer.zero_grad(set_to_none=True)
            value, _ = loss_of(model, batches[step % len(batches)], loss)
            losses.append(float(value.detach()))
            if not math.isfinite(losses[-1]):
                break
            objective = value if penalty is None else value + penalty(model)
            backward(objective, inputs=trained)
            torch_optimizer.step()
    return losses


def mean_loss(model: nn.Module, batches: Sequence[Batch], loss: Loss) -> float:
    """Mean loss over batches, without training, in the mode in which the model is; infinite where it is no number."""
    with torch.no_grad():
        total = sum(float(loss_of(model, batch, loss)[0]) for batch in batches) / len(batches)
    return total if not math.isnan(total) else math.inf


def short_run(
    model: nn.Module,
    train: Sequence[Batch],
    verify: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str | Maker,
    rate: float,
    steps: int,
    seed: int = 0,
    name: str = "",
) -> Run:
    """Train in place for a budget and verify on held-out batches; `name` is shown for an optimizer that has none."""
    torch.manual_seed(seed)
    before = mean_loss(model, verify, loss)
    losses = steps_from(model, train, loss, optimizer=optimizer, rate=rate, steps=steps, seed=seed)
    diverged = not math.isfinite(losses[-1])
    after = math.inf if diverged else mean_loss(model, verify, loss)
    shown = optimizer if isinstance(optimizer, str) else name
    return Run(shown, rate, tuple(losses), after, before, cost=count_gradients(len(losses), forward=2 * len(verify)))


def probe_rate(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str | Maker,
    restore: Callable[[], None],
    rates: Sequence[float] = RATES,
    steps: int = 10,
) -> tuple[float, float]:
    """The rate whose few steps lower the loss most, and the cost in gradients.

    The mean loss over the given batches after the steps decides, since single batches differ more than starts do.
    `restore` puts the model back after each rate.
    """
    reached: dict[float, float] = {}
    for rate in rates:
        losses = steps_from(model, batches, loss, optimizer=optimizer, rate=rate, steps=steps)
        finite = math.isfinite(losses[-1])
        reached[rate] = mean_loss(model, batches, loss) if finite else math.inf
        restore()
    return min(reached, key=lambda rate: reached[rate]), count_gradients(steps, forward=len(batches)) * len(rates)
