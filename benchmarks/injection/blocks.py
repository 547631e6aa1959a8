"""Building blocks whose faults can be switched on: attention, residual branches, adapters, scales."""

import itertools
import math
from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F


class Attention(nn.Module):
    """Multi-head self-attention, written out."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.heads, self.causal = heads, causal
        self.scale, self.axis, self.inverted, self.fill = (width // heads) ** -0.5, -1, False, -math.inf

    def forward(self, x: Tensor, used: Tensor | None = None) -> Tensor:
        b, t, w = x.shape
        q, k, v = self.qkv(x).reshape(b, t, 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        scores = q @ k.transpose(-2, -1) * self.scale
        seen = torch.ones(t, t, dtype=torch.bool).tril() if self.causal else None
        seen = seen if used is None else used[:, None, None, :]
        if seen is not None:
            scores = scores.masked_fill(seen if self.inverted else ~seen, self.fill)
        return self.out((scores.softmax(self.axis) @ v).transpose(1, 2).reshape(b, t, w))


class Block(nn.Module):
    """Attention and a two-layer network, each on a normalised copy of the stream."""

    def __init__(self, width: int, heads: int, causal: bool = False) -> None:
        super().__init__()
        self.norm1, self.attention = nn.LayerNorm(width), Attention(width, heads, causal)
        self.norm2 = nn.LayerNorm(width)
        self.mlp = nn.Sequential(nn.Linear(width, 2 * width), nn.GELU(), nn.Linear(2 * width, width))

    def forward(self, x: Tensor, used: Tensor | None = None) -> Tensor:
        x = x + self.attention(self.norm1(x), used)
        return x + self.mlp(self.norm2(x))


class Residual(nn.Module):
    """The stream plus a branch."""

    def __init__(self, branch: nn.Module, shortcut: nn.Module | None = None) -> None:
        super().__init__()
        self.branch, self.shortcut = branch, shortcut or nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.shortcut(x) + self.branch(x)


class Adapter(nn.Module):
    """A frozen linear layer and a low-rank correction that starts at zero."""

    def __init__(self, base: nn.Linear, rank: int) -> None:
        super().__init__()
        self.base = base.requires_grad_(False)
        self.down = nn.Linear(base.in_features, rank, bias=False)
        self.up = nn.Linear(rank, base.out_features, bias=False)
        nn.init.zeros_(self.up.weight)

    def forward(self, x: Tensor) -> Tensor:
        return self.base(x) + 2 * self.up(self.down(x))


class Sine(nn.Module):
    def __init__(self, frequency: float) -> None:
        super().__init__()
        self.frequency = frequency

    def forward(self, x: Tensor) -> Tensor:
        return (self.frequency * x).sin()


class Function(nn.Module):
    """A function of a tensor as a module."""

    def __init__(self, function: Callable[..., Any]) -> None:
        super().__init__()
        self.function = function

    def forward(self, *inputs: Any) -> Any:
        return self.function(*inputs)


class After(nn.Module):
    """A module with an operation on its output."""

    def __init__(self, inner: nn.Module, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.operation = inner, operation

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.operation(self.inner(*inputs, **options))


class Before(nn.Module):
    """A module with an operation on its input."""

    def __init__(self, inner: nn.Module, operation: Callable[[Tensor], Tensor]) -> None:
        super().__init__()
        self.inner, self.operation = inner, operation

    def forward(self, x: Any, *inputs: Any, **options: Any) -> Any:
        return self.inner(self.operation(x), *inputs, **options)


class WithoutGradients(nn.Module):
    """A module that runs under `no_grad`."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.inner = inner

    def forward(self, *inputs: Any, **options: Any) -> Any:
        with torch.no_grad():
            return self.inner(*inputs, **options)


class InList(nn.Module):
    """A module kept in a plain list, so that its parameters are not registered."""

    def __init__(self, inner: nn.Module) -> None:
        super().__init__()
        self.parts = [inner]

    def forward(self, *inputs: Any, **options: Any) -> Any:
        return self.parts[0](*inputs, **options)


class Mixer(nn.Module):
    def __init__(self, tokens: int, width: int) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.across = nn.Sequential(nn.Linear(tokens, 32), nn.GELU(), nn.Linear(32, tokens))
        self.within = nn.Sequential(nn.Linear(width, 64), nn.GELU(), nn.Linear(64, width))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.across(self.norm1(x).transpose(1, 2)).transpose(1, 2)
        return x + self.within(self.norm2(x))


def mlp(*widths: int, activation: type[nn.Module] = nn.ReLU) -> nn.Sequential:
    """Linear layers with an activation between them."""
    layers: list[nn.Module] = []
    for a, b in itertools.pairwise(widths):
        layers += [nn.Linear(a, b), activation()]
    return nn.Sequential(*layers[:-1])


def patches(x: Tensor, size: int) -> Tensor:
    """(N, C, H, W) to (N, patches, C size²)."""
    return F.unfold(x, size, stride=size).transpose(1, 2)
