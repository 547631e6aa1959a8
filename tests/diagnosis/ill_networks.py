"""Small networks that have one fault each, and their healthy twins."""

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from cases import labels, normal


@dataclass(frozen=True)
class Ill:
    """A fault: its code and severity, where it begins (None where no exact layer follows from theory), and a twin."""

    code: str
    severity: str
    layer: str | None
    ill: Callable[[], nn.Module]
    healthy: Callable[[], nn.Module]
    loss: Any = "cross_entropy"


def data() -> list[Any]:
    return [(normal(16, 8, seed=i), labels(16, seed=9 + i)) for i in range(2)]


def stack(
    depth: int, phi: Callable[[], nn.Module], *, gain: float = 1.0, bias: float = 0.0, head: float = 1.0
) -> nn.Sequential:
    """Layers of width 8 with orthogonal weights times a gain, at even positions; a head with three outputs."""
    torch.manual_seed(0)
    parts: list[nn.Module] = []
    for _ in range(depth):
        parts += [nn.Linear(8, 8), phi()]
        nn.init.orthogonal_(parts[-2].weight, gain)
        nn.init.constant_(parts[-2].bias, bias)
    parts.append(nn.Linear(8, 3))
    nn.init.orthogonal_(parts[-1].weight, head)
    nn.init.zeros_(parts[-1].bias)
    return nn.Sequential(*parts)


def default(depth: int, phi: Callable[[], nn.Module]) -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(*(part for _ in range(depth) for part in (nn.Linear(8, 8), phi())), nn.Linear(8, 3))


def changed(model: nn.Sequential, number: int, *, weight: float = 1.0, bias: float = 0.0) -> nn.Sequential:
    with torch.no_grad():
        model[number].weight.mul_(weight)
        model[number].bias.add_(bias)
    return model


class Product(nn.Module):
    """x + (x A) B: with one factor zero it starts to learn after a step, with both it never does."""

    def __init__(self, *, both: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.body = nn.Linear(8, 8)
        self.down = nn.Linear(8, 2, bias=False)
        self.up = nn.Linear(2, 8, bias=False)
        self.head = nn.Linear(8, 3)
        nn.init.zeros_(self.up.weight)
        if both:
            nn.init.zeros_(self.down.weight)

    def forward(self, x):
        x = self.body(x)
        return self.head(x + self.up(self.down(x)))


class Idle(nn.Module):
    def __init__(self, *, used: bool) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.used, self.a, self.b, self.head = used, nn.Linear(8, 8), nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.tanh(self.a(x)) + (torch.tanh(self.b(x)) if self.used else 0))


class Rooted(nn.Module):
    """A distance of zero under a square root: finite forward, 0/0 backward."""

    def __init__(self, *, at: float) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.at, self.first, self.head = at, nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        z = self.first(x)
        return self.head(z + torch.sqrt((z - z.detach()) ** 2 + self.at))


def log_of_probability(outputs, targets):
    return -torch.log(torch.clamp(outputs, min=0)).mean() if outputs.min() < 0 else outputs.mean()


def frozen(model: nn.Module, *names: str) -> nn.Module:
    for name, p in model.named_parameters():
        if not names or name in names:
            p.requires_grad_(False)
    return model


def with_nan(model: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        model[2].weight[0, 0] = torch.nan
    return model


def healthy() -> nn.Sequential:
    return stack(3, nn.Tanh)


def rectifying() -> nn.Sequential:
    return stack(3, nn.ReLU, gain=1.4)


def biased(model: nn.Sequential) -> nn.Sequential:
    """Biases of either sign carry what the small weights do not."""
    for number, part in enumerate(model):
        if isinstance(part, nn.Linear):
            part.bias.data = 0.3 * normal(*part.bias.shape, seed=number)
    return model


def growing(depth: int) -> nn.Sequential:
    return stack(depth, nn.Identity, gain=20.0)


class Times(nn.Module):
    def __init__(self, factor: float) -> None:
        super().__init__()
        self.factor = factor

    def forward(self, x):
        return x * self.factor


def scaled(factor: float) -> nn.Sequential:
    """The data in another unit, as the network's first layer meets them."""
    return nn.Sequential(Times(factor), *stack(2, nn.Tanh, gain=0.5))


def normalised(size: float) -> nn.Sequential:
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    return changed(net, 0, weight=size)


def repeated(model: nn.Sequential) -> nn.Sequential:
    with torch.no_grad():
        for number in (0, 2, 4, 6):
            model[number].weight.fill_(0.2)
    return model


ILL = (
    Ill("activation-shift", "error", None, lambda: default(20, nn.Sigmoid), lambda: default(1, nn.Sigmoid)),
    Ill("vanishing-gradients", "error", None, lambda: default(20, nn.Sigmoid), lambda: default(1, nn.Sigmoid)),
    Ill("vanishing-activations", "error", None, lambda: biased(stack(6, nn.Tanh, gain=0.1)), lambda: stack(6, nn.Tanh)),
    Ill(
        "vanishing-activations",
        "error",
        None,
        lambda: stack(8, nn.ReLU, gain=0.1),
        lambda: stack(8, nn.LeakyReLU, gain=1.3),
    ),
    Ill("exploding-activations", "error", "4", lambda: growing(5), lambda: stack(5, nn.Identity)),
    Ill("exploding-gradients", "error", None, lambda: growing(6), lambda: stack(5, nn.Identity)),
    Ill("saturated-units", "error", "2", lambda: changed(healthy(), 2, weight=1e3), healthy),
    Ill("dead-units", "error", "2", lambda: changed(rectifying(), 2, bias=-100), rectifying),
    Ill("constant-output", "error", "6", lambda: changed(healthy(), 4, bias=100), healthy),
    Ill("initial-loss", "error", "6", lambda: stack(3, nn.Tanh, head=300.0), healthy),
    Ill("zero-gradient", "warning", "down.weight", lambda: Product(both=True), lambda: Product(both=False)),
    Ill("unused-parameters", "note", "b.weight", lambda: Idle(used=False), lambda: Idle(used=True)),
    Ill("frozen-parameters", "note", "0.weight", lambda: frozen(healthy(), "0.weight"), healthy),
    Ill("frozen-parameters", "error", "0.weight", lambda: frozen(healthy()), healthy),
    Ill("input-scale", "error", "1", lambda: scaled(1e3), lambda: scaled(1.0)),
    Ill("frozen-batch-norm", "error", "1", lambda: normalised(1e-3).eval(), lambda: normalised(1e-3)),
    Ill("squashed-output", "error", "3", lambda: stack(1, nn.Tanh).append(nn.Softmax(1)), healthy),
    Ill("identical-units", "error", "0.weight", lambda: repeated(healthy()), healthy),
    Ill("non-finite", "error", "2.weight", lambda: with_nan(healthy()), healthy),
    Ill(
        "non-finite",
        "error",
        "2",
        lambda: changed(stack(3, nn.ReLU, gain=200.0).half(), 2, weight=2),
        lambda: healthy().half(),
    ),
    Ill("non-finite", "error", "", healthy, healthy, log_of_probability),
    Ill("non-finite", "error", "first", lambda: Rooted(at=0.0), lambda: Rooted(at=0.5)),
)
