"""How large a learning rate each optimizer bears at a top curvature of λ, and the share of it to start with."""

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass

import torch
from torch import nn

OPTIMIZERS = ("sgd", "momentum", "adam", "adamw", "rmsprop")
ADAPTIVE = ("adam", "adamw", "rmsprop")


@dataclass(frozen=True)
class Settings:
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


def largest_rate(settings: Settings, top: float) -> float:
    """The rate below which the iteration is stable along a direction of curvature λ.

    Gradient descent 2/λ; heavy ball 2(1+β)/λ; Nesterov 2(1+β)/((1+2β)λ), λ including the weight decay. RMSprop 2/λ and
    Adam (2+2β₁)/((1-β₁)λ) with λ of the preconditioned curvature (Cohen et al., 2022, "Adaptive gradient methods at
    the edge of stability"); AdamW's decay adds to λ what it amounts to there.

    Returns:
        The bound.
    """
    beta, first, decay = settings.momentum, settings.betas[0], settings.weight_decay
    if settings.optimizer in ("adam", "adamw"):
        averaged = (1 - first) / (1 + first)
        return 2 / (averaged * top + decay)
    if settings.optimizer == "momentum":
        return 2 * (1 + beta) / ((1 + 2 * beta if settings.nesterov else 1) * (top + decay))
    return 2 / (top + decay)


def start_share(settings: Settings, matrix: str) -> float:
    """The share of the bound to start with.

    A half for gradient descent (1/λ, the fastest on the quadratic) and RMSprop. With momentum 1-β, a half at most: near
    the bound it oscillates for 1/(1-β) steps while the curvature grows. Adam an eighth. The last two are not theory but
    what `benchmarks/bench_rates.py` found on five problems.

    With the Gauss-Newton matrix the first two are halved: it leaves out the network's own curvature, and λ at the start
    was up to 2.5 times smaller than the Hessian's.

    Returns:
        A number between 0 and 1.
    """
    if settings.optimizer in ("adam", "adamw"):
        return 1 / 8
    if settings.optimizer == "momentum":
        return min(1 / 2, 1 - settings.momentum) * (1 if matrix == "hessian" else 1 / 2)
    return 1 / 2 if settings.optimizer == "rmsprop" or matrix == "hessian" else 1 / 4


def stepper(settings: Settings, parameters: Iterable[nn.Parameter], rate: float) -> torch.optim.Optimizer:
    """The optimizer that the settings describe.

    Returns:
        A new one.
    """
    s = settings
    makers: dict[str, Callable[[], torch.optim.Optimizer]] = {
        "sgd": lambda: torch.optim.SGD(parameters, rate, weight_decay=s.weight_decay),
        "momentum": lambda: torch.optim.SGD(
            parameters, rate, momentum=s.momentum, nesterov=s.nesterov, weight_decay=s.weight_decay
        ),
        "adam": lambda: torch.optim.Adam(parameters, rate, betas=s.betas, eps=s.eps),
        "adamw": lambda: torch.optim.AdamW(parameters, rate, betas=s.betas, eps=s.eps, weight_decay=s.weight_decay),
        "rmsprop": lambda: torch.optim.RMSprop(parameters, rate, alpha=s.alpha, eps=s.eps),
    }
    return makers[s.optimizer]()


def checked_settings(settings: Settings) -> Settings:
    """The settings, if they can be used.

    Returns:
        The same.

    Raises:
        ValueError: if not.
    """
    s = settings
    if s.optimizer not in OPTIMIZERS:
        raise ValueError(f"optimizer: expected one of {', '.join(OPTIMIZERS)}, got {s.optimizer!r}")
    if not (0 <= s.momentum < 1 and 0 <= s.betas[0] < 1 and 0 <= s.betas[1] < 1 and 0 <= s.alpha < 1):
        raise ValueError(
            f"momentum, betas, alpha: expected numbers from 0 to below 1, got {s.momentum}, {s.betas}, {s.alpha}"
        )
    if not (s.weight_decay >= 0 and math.isfinite(s.weight_decay) and s.eps > 0):
        raise ValueError(f"weight_decay and eps: expected ≥ 0 and > 0, got {s.weight_decay} and {s.eps}")
    if s.weight_decay and s.optimizer in ("adam", "rmsprop"):
        raise ValueError(
            f"weight_decay: expected 0 for {s.optimizer!r}, whose decay is divided by the second moments so that no "
            f"single number describes it, got {s.weight_decay}; use 'adamw', or leave it out"
        )
    return s
