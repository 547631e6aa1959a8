"""Models for the tests of the gradient Gram matrix, and its plain reference."""

import copy
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from theta0.parametrizations import linearly_constrained


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def tokens(*shape: int, vocabulary: int = 7) -> Tensor:
    return torch.randint(0, vocabulary, shape, generator=torch.Generator().manual_seed(3))


class Calls(nn.Module):
    """A module from a function of its children and parameters."""

    def __init__(self, function: Callable[..., Tensor], **parts: nn.Module | nn.Parameter) -> None:
        super().__init__()
        for name, part in parts.items():
            setattr(self, name, part)
        self.function = function

    def forward(self, x: Tensor) -> Tensor:
        return self.function(self, x)


def tied(transposed: bool) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        h = m.mix(m.embedding(x))
        return h @ m.embedding.weight.T if transposed else F.linear(h, m.embedding.weight, m.bias)

    parts = {"embedding": nn.Embedding(7, 5, padding_idx=2), "mix": nn.Linear(5, 5)}
    bias = {} if transposed else {"bias": nn.Parameter(torch.randn(7))}
    return Calls(forward, **parts, **bias)


def attention(batch_first: bool, cross: bool = False) -> nn.Module:
    def forward(m: Any, x: Tensor) -> Tensor:
        x = x if batch_first else x.transpose(0, 1)
        y = m.attention(x, m.other(x), x)[0] if cross else m.attention(x, x, x)[0]
        return y if batch_first else y.transpose(0, 1)

    return Calls(forward, attention=nn.MultiheadAttention(4, 2, batch_first=batch_first), other=nn.Linear(4, 4))


def frozen(model: nn.Sequential) -> nn.Sequential:
    model[0].weight.requires_grad_(False)
    return model


def scaled(layer: nn.Module) -> nn.Module:
    """Affine parameters away from one and zero."""
    for seed, p in enumerate(layer.parameters()):
        p.data = random(*p.shape, seed=seed).to(p.dtype)
    return layer


@dataclass(frozen=True)
class Case:
    """A model, its inputs, and the parameters that must not fall back (all, unless listed)."""

    make: Callable[[], nn.Module]
    inputs: Tensor
    fallback: frozenset[str] = frozenset()


sequence, image = random(6, 5, 4, seed=1), random(6, 4, 7, 7, seed=2)
conv = nn.Conv2d
CASES: dict[str, Case] = {
    "mlp": Case(lambda: nn.Sequential(nn.Linear(4, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)), random(6, 4)),
    "positions": Case(lambda: nn.Sequential(nn.Linear(4, 9), nn.Tanh(), nn.Linear(9, 3)), sequence),
    "as many positions as samples": Case(
        lambda: Calls(lambda m, x: m.f(x.transpose(0, 1)).tanh().transpose(0, 1), f=nn.Linear(4, 9)), random(6, 6, 4)
    ),
    "rows of samples": Case(
        lambda: Calls(lambda m, x: m.f(x.flatten(0, 1)).tanh().view(-1, 5, 3), f=nn.Linear(4, 3)), sequence
    ),
    "rows of positions": Case(
        lambda: Calls(
            lambda m, x: m.f(x.transpose(0, 1).flatten(0, 1)).tanh().view(5, -1, 3).transpose(0, 1), f=nn.Linear(4, 3)
        ),
        sequence,
    ),
    "called twice": Case(lambda: Calls(lambda m, x: m.f(m.f(x).tanh()), f=nn.Linear(4, 4)), random(6, 4)),
    "twice at different lengths": Case(
        lambda: Calls(lambda m, x: m.f(x).mean(1) + m.f(x[:, 0]).tanh(), f=nn.Linear(4, 4)), sequence
    ),
    "bare products": Case(
        lambda: Calls(
            lambda m, x: torch.addmm(m.b, x, m.w).tanh() @ m.w.T,
            w=nn.Parameter(torch.randn(4, 3)),
            b=nn.Parameter(torch.randn(3)),
        ),
        random(6, 4),
    ),
    "convolution": Case(lambda: nn.Sequential(conv(4, 6, 3), nn.ReLU(), conv(6, 2, 3)), image),
    "convolution, few positions": Case(lambda: nn.Sequential(conv(4, 6, 7), nn.ReLU(), conv(6, 8, 1)), image),
    "convolution, groups and stride": Case(lambda: conv(4, 6, 3, groups=2, stride=2, padding=1), image),
    "convolution, depthwise and dilated": Case(lambda: conv(4, 8, 3, groups=4, dilation=2, padding="same"), image),
    "convolution, circular": Case(lambda: conv(4, 3, (3, 2), padding=(1, 0), padding_mode="circular"), image),
    "convolution, called twice": Case(lambda: Calls(lambda m, x: m.f(m.f(x).tanh()), f=conv(4, 4, 3)), image),
    "convolution in time": Case(
        lambda: Calls(lambda m, x: m.f(x.flatten(0, 1)).view(len(x), -1), f=conv(2, 3, 2)), image.view(6, 2, 2, 7, 7)
    ),
    "conv1d": Case(lambda: nn.Conv1d(4, 3, 2), image.flatten(2)[..., :9]),
    "conv3d": Case(lambda: nn.Conv3d(2, 3, 2), random(6, 2, 3, 4, 3)),
    "embedding": Case(lambda: nn.Sequential(nn.Embedding(7, 4, padding_idx=-1), nn.Linear(4, 3)), tokens(6, 5)),
    "tied embedding": Case(lambda: tied(False), tokens(6, 5)),
    "tied embedding, transposed": Case(lambda: tied(True), tokens(6, 5)),
    "lookup with padding from the end": Case(
        lambda: Calls(lambda m, x: F.embedding(x, m.w, -1).tanh(), w=nn.Parameter(torch.randn(7, 4))), tokens(6, 5)
    ),
    "lookup scaled by frequency": Case(
        lambda: Calls(
            lambda m, x: F.embedding(x, m.w, None, None, 2.0, True).tanh(), w=nn.Parameter(torch.randn(7, 4))
        ),
        tokens(6, 5),
        frozenset({"w"}),
    ),
    "columns of a weight": Case(
        lambda: Calls(lambda m, x: F.linear(x[:, :2], m.w[:, 1:3]), w=nn.Parameter(torch.randn(3, 4))),
        random(6, 4),
        frozenset({"w"}),
    ),
    "samples in the last axis": Case(
        lambda: Calls(lambda m, x: (m.w @ x.T).T.tanh(), w=nn.Parameter(torch.randn(3, 4))),
        random(6, 4),
        frozenset({"w"}),
    ),
    "layer norm": Case(lambda: nn.Sequential(nn.Linear(4, 4), scaled(nn.LayerNorm((5, 4))), nn.Linear(4, 2)), sequence),
    "rms norm": Case(lambda: nn.Sequential(nn.Linear(4, 4), scaled(nn.RMSNorm(4))), sequence),
    "group norm": Case(lambda: nn.Sequential(conv(4, 6, 3), scaled(nn.GroupNorm(2, 6)), nn.Tanh()), image),
    "instance norm": Case(lambda: nn.Sequential(scaled(nn.InstanceNorm2d(4, affine=True)), nn.Tanh()), image),
    "batch norm in evaluation": Case(
        lambda: nn.Sequential(conv(4, 6, 3), scaled(nn.BatchNorm2d(6)), nn.Tanh()).eval(), image
    ),
    "prelu": Case(lambda: nn.Sequential(nn.Linear(4, 6), nn.PReLU(6), nn.Linear(6, 2)), random(6, 4)),
    "bare sums and scales": Case(
        lambda: Calls(
            lambda m, x: (m.g * (x + m.p[:, :5]) - m.b).tanh() * m.s,
            g=nn.Parameter(torch.randn(4)),
            p=nn.Parameter(torch.randn(1, 8, 4)),
            b=nn.Parameter(torch.randn(5, 1)),
            s=nn.Parameter(torch.randn(())),
        ),
        sequence,
    ),
    "attention": Case(lambda: attention(True), sequence),
    "attention, length first": Case(lambda: attention(False), sequence),
    "attention, cross": Case(lambda: attention(True, cross=True), sequence),
    "transformer": Case(lambda: nn.TransformerEncoderLayer(4, 2, 8, dropout=0.3, batch_first=True), sequence),
    "transformer in evaluation": Case(lambda: nn.TransformerEncoderLayer(4, 2, 8, batch_first=True).eval(), sequence),
    "dropout": Case(
        lambda: Calls(lambda m, x: F.dropout(m.f(x), 0.5, m.training), f=nn.Sequential(nn.Linear(4, 3), nn.Dropout())),
        random(6, 4),
    ),
    "frozen": Case(lambda: frozen(nn.Sequential(nn.Linear(4, 5), nn.Tanh(), nn.Linear(5, 2))), random(6, 4)),
    "unused": Case(lambda: Calls(lambda m, x: m.f(x), f=nn.Linear(4, 3), g=nn.Linear(2, 2)), random(6, 4)),
    "transposed convolution": Case(lambda: nn.ConvTranspose2d(4, 3, 3, stride=2), image, frozenset({"weight"})),
    "lstm": Case(
        lambda: Calls(lambda m, x: m.r(x)[0], r=nn.LSTM(4, 3, batch_first=True)),
        sequence,
        frozenset({"r.weight_ih_l0", "r.weight_hh_l0", "r.bias_ih_l0", "r.bias_hh_l0"}),
    ),
    "constrained weights": Case(
        lambda: nn.Sequential(linearly_constrained(nn.Linear(4, 5)), nn.Tanh(), nn.Linear(5, 2)),
        random(6, 4),
        frozenset({"0.parametrizations.weight.original"}),
    ),
    "two weights multiplied": Case(
        lambda: Calls(
            lambda m, x: F.linear(x, m.b @ m.a) + m.c,
            a=nn.Parameter(torch.randn(2, 4)),
            b=nn.Parameter(torch.randn(3, 2)),
            c=nn.Parameter(torch.randn(3)),
        ),
        random(6, 4),
        frozenset({"a", "b"}),
    ),
    "a weight read besides its use": Case(
        lambda: Calls(lambda m, x: m.f(x) * m.f.weight.square().sum(), f=nn.Linear(4, 3)),
        random(6, 4),
        frozenset({"f.weight"}),
    ),
}


def half_square(outputs: Tensor, targets: Any) -> Tensor:
    return (outputs - 0.3).square().flatten(1).sum(1).mean()


def reference(model: nn.Module, inputs: Tensor, loss: Callable[[Tensor, Any], Tensor], targets: Any = None) -> Tensor:
    """G from one backward pass per sample, in evaluation mode."""
    model = copy.deepcopy(model).eval()
    leaves = [p for p in model.parameters() if p.requires_grad]
    rows = []
    for i in range(len(inputs)):
        value = loss(model(inputs[i : i + 1]), None if targets is None else targets[i : i + 1])
        found = torch.autograd.grad(value, leaves, allow_unused=True)
        dense = [torch.zeros_like(p) if g is None else g for p, g in zip(leaves, found, strict=True)]
        rows.append(torch.cat([g.flatten() for g in dense]))
    stacked = torch.stack(rows)
    return stacked @ stacked.T
