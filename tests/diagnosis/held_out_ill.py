"""Starts that fail for a known reason, written before the rules were."""

# ruff: noqa: E501 (a table: one start a line)

from collections.abc import Callable
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from torch import nn
from torch.nn import functional as F

from cases import labels, normal


@dataclass(frozen=True)
class Start:
    """A start, how it is trained, and the codes of which one should be named first; none for a healthy one."""

    # ruff: noqa: E501 (a table: one start a line)

    name: str
    codes: tuple[str, ...]
    build: Callable[[], nn.Module]
    data: Callable[[], list[Any]]
    loss: Any = "cross_entropy"
    optimizer: str = "adam"
    rate: float = 1e-3

    def model(self) -> nn.Module:
        with torch.random.fork_rng():
            torch.manual_seed(0)
            return self.build()


class Net(nn.Module):
    """A module around a function of itself."""

    def __init__(self, forward: Callable[..., Any], **parts: Any) -> None:
        super().__init__()
        self.run = forward
        for name, part in parts.items():
            setattr(self, name, part)

    def forward(self, *inputs):
        return self.run(self, *inputs)


def filled(model: nn.Module, fill: Callable[[torch.Tensor], Any], biases: bool = False) -> nn.Module:
    for p in model.parameters():
        if biases or p.dim() > 1:
            fill(p.data)
    return model


def mlp(*widths: int, phi: Callable[[], nn.Module] = nn.ReLU, last: Callable[[], nn.Module] | None = None):
    parts = [p for i, o in pairwise(widths) for p in (nn.Linear(i, o), phi())]
    return nn.Sequential(*parts[:-1], *([] if last is None else [last()]))


def vectors(n: int = 48, d: int = 12, classes: int = 5, scale: Any = 1.0, shift: float = 0.0):
    """Clouds around one centre a class."""
    centres = normal(classes, d, seed=99)

    def batches():
        found = []
        for i in range(3):
            y = labels(n, classes=classes, seed=50 + i)
            found.append(((normal(n, d, seed=i) / 2 + centres[y]) * torch.as_tensor(scale) + shift, y))
        return found

    return batches


def regression(n: int = 48, d: int = 12, scale: float = 1.0, shift: float = 0.0, flat: bool = False):
    w = normal(d, 1, seed=7) / d**0.5

    def batches():
        found = [(x, torch.tanh(x @ w) * scale + shift) for x in (normal(n, d, seed=i) for i in range(3))]
        return [(x, y[:, 0] if flat else y) for x, y in found]

    return batches


def waves(n: int = 24, channels: int = 2, length: int = 32, classes: int = 4):
    t = torch.arange(length) / length

    def batches():
        found = []
        for i in range(3):
            y = labels(n, classes=classes, seed=20 + i)
            wave = torch.sin(2 * torch.pi * (y[:, None] + 1) * t)[:, None]
            found.append((wave + 0.3 * normal(n, channels, length, seed=i), y))
        return found

    return batches


def images(n: int = 24, side: int = 12, scale: float = 1.0):
    def batches():
        found = []
        for i in range(3):
            y = labels(n, classes=3, seed=30 + i)
            bars = torch.zeros(n, 1, side, side)
            for k, c in enumerate(y.tolist()):
                bars[k, 0, 4 * c : 4 * c + 3] = 1
            found.append(((bars + 0.2 * torch.rand(n, 1, side, side, generator=G(i))) * scale, y))
        return found

    return batches


def G(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def first_token(n: int = 24, length: int = 60, classes: int = 3):
    def batches():
        found = []
        for i in range(3):
            x, y = 0.3 * normal(n, length, classes, seed=i), labels(n, classes=classes, seed=40 + i)
            x[torch.arange(n), 0, y] += 3
            found.append((x, y))
        return found

    return batches


def tokens(n: int = 16, length: int = 9, vocabulary: int = 60):
    def batches():
        return [(t[:, :-1], t[:, 1:].flatten()) for t in (labels(n, length + 1, classes=vocabulary, seed=i) for i in range(3))]  # fmt: skip

    return batches


def deep_conv1d(groups: bool, phi=nn.GELU, depth: int = 12):
    parts: list[nn.Module] = [nn.Conv1d(2, 24, 3, padding=1), phi()]
    for _ in range(depth // (2 if groups else 1)):
        parts += [nn.Conv1d(24, 24, 3, padding=1, groups=24 if groups else 1), phi()]
        parts += [nn.Conv1d(24, 24, 1), phi()] if groups else []
    for part in parts:
        if groups and isinstance(part, nn.Conv1d):
            nn.init.kaiming_normal_(part.weight, mode="fan_out")
            nn.init.zeros_(part.bias)
            if part.groups > 1:
                part.weight.data.div_(24**0.5)
    return nn.Sequential(*parts, nn.AdaptiveAvgPool1d(2), nn.Flatten(), nn.Linear(48, 4))


def tied_lm():
    net = Net(
        lambda s, t: s.head(s.norm(s.rnn(s.embed(t))[0])).flatten(0, 1),
        embed=nn.Embedding(60, 160), rnn=nn.GRU(160, 160, batch_first=True), norm=nn.LayerNorm(160),
        head=nn.Linear(160, 60, bias=False),
    )  # fmt: skip
    net.head.weight = net.embed.weight
    return net


def channel_gate():
    return Net(
        lambda s, x: s.head((F.gelu(s.conv(x)) * F.relu(s.gate)[None, :, None]).mean(2)),
        conv=nn.Conv1d(2, 16, 5), gate=nn.Parameter(torch.zeros(16)), head=nn.Linear(16, 4),
    )  # fmt: skip


def zero_adapter():
    base = mlp(12, 32, 5)
    base.requires_grad_(False)
    return Net(
        lambda s, x: s.base[2](h + s.up(s.down(h))) if (h := F.relu(s.base[0](x))) is not None else None,
        base=base, down=filled(nn.Linear(32, 4, bias=False), nn.init.zeros_),
        up=filled(nn.Linear(4, 32, bias=False), nn.init.zeros_),
    )  # fmt: skip


class Block(nn.Module):
    def __init__(self, d: int, heads: int = 2) -> None:
        super().__init__()
        self.attend = nn.MultiheadAttention(d, heads, batch_first=True)
        self.up, self.down = nn.Linear(d, 2 * d), nn.Linear(2 * d, d)
        self.first, self.second = nn.LayerNorm(d), nn.LayerNorm(d)

    def forward(self, x):
        h = self.first(x)
        x = x + self.attend(h, h, h, need_weights=False)[0]
        return x + self.down(F.gelu(self.up(self.second(x))))


def transformer(d: int = 32, depth: int = 3):
    return Net(
        lambda s, t: s.head(s.norm(s.blocks(s.embed(t)))).flatten(0, 1),
        embed=nn.Embedding(60, d), blocks=nn.Sequential(*(Block(d) for _ in range(depth))), norm=nn.LayerNorm(d),
        head=nn.Linear(d, 60),
    )  # fmt: skip


def residual_conv(depth: int = 20):
    net = Net(
        lambda s, x: s.head(s.body(s.stem(x), s).mean(2)), stem=nn.Conv1d(2, 12, 3, padding=1), head=nn.Linear(12, 4),
        first=nn.ModuleList(nn.Conv1d(12, 12, 3, padding=1) for _ in range(depth)),
        second=nn.ModuleList(nn.Conv1d(12, 12, 3, padding=1) for _ in range(depth)),
    )  # fmt: skip
    net.body = lambda x, s: [x := x + b(F.relu(a(x))) for a, b in zip(s.first, s.second, strict=True)][-1]
    return filled(net, lambda w: nn.init.kaiming_normal_(w))


def cosine(scale: float):
    return Net(
        lambda s, x: scale * F.normalize(s.body(x), dim=1) @ F.normalize(s.classes, dim=1).T,
        body=mlp(12, 32, 16), classes=nn.Parameter(normal(30, 16, seed=5)),
    )  # fmt: skip


def frozen_norms():
    parts = [p for i in range(10) for p in (nn.Conv2d(1 if i == 0 else 12, 12, 3, padding=1), nn.BatchNorm2d(12), nn.ReLU())]  # fmt: skip
    net = nn.Sequential(*parts, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(12, 3))
    for part in net:
        if isinstance(part, nn.BatchNorm2d):
            part.eval()
    return net


def recurrent(kind: type[nn.RNNBase], inputs: int, width: int, outputs: int, **options: Any):
    return Net(
        lambda s, x: s.head(s.rnn(x)[0][:, -1]), rnn=kind(inputs, width, batch_first=True, **options),
        head=nn.Linear(width, outputs),
    )  # fmt: skip


def changed(model: nn.Module, change: Callable[[Any], Any]) -> nn.Module:
    with torch.no_grad():
        change(model)
    return model


def poisson(outputs, targets):
    return (outputs.exp() - targets * outputs).mean()


def counts():
    return [(normal(48, 6, seed=i) * 3000, torch.poisson(torch.full((48, 1), 3.0), generator=G(i))) for i in range(3)]


def masks():
    return [(x, (x[:, :1] > 0.8).float()) for x, _ in images()()]


def small_batches():
    return [(normal(2, 12, seed=i), labels(2, classes=5, seed=i)) for i in range(4)]


def halves(batches):
    return lambda: [(x.half(), y) for x, y in batches()]


def conv_net():
    return nn.Sequential(nn.Conv2d(1, 8, 3), nn.ReLU(), nn.Conv2d(8, 8, 3), nn.ReLU(), nn.Flatten(), nn.Linear(512, 3))


def mean_square(outputs, targets):
    return ((outputs - targets) ** 2).mean()


def last_relu():
    return changed(mlp(12, 24, 1, last=nn.ReLU), lambda m: m[2].bias.fill_(-4))
