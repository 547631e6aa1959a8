"""Twenty small problems for learning rates, in two halves that were drawn before any algorithm was tried on them.

Each has a network of at most 5 ms per gradient on one thread, real or simulated data in 12 batches (or one), two or
three usual optimizers, and the loss of the best predictor that ignores its input.
"""

import inspect
import itertools
import math
import random
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn
from torch.nn import functional as F

from theta0.initializers import unit_variance_

Batches = list[tuple[Any, Tensor]]
Loss = str | Callable[[Any, Tensor], Tensor]
BATCHES, SIZE = 12, 128


@dataclass(frozen=True)
class Problem:
    """A start to train from.

    Attributes:
        model: the network.
        batches: (inputs, targets), used in turn.
        loss: a name or a callable.
        constant: the loss of the best predictor that ignores its input.
    """

    model: nn.Module
    batches: Batches
    loss: Loss
    constant: float


def cut(x: Tensor, y: Tensor, size: int = SIZE, count: int = BATCHES) -> Batches:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: size * count]
    return [(x[part], y[part]) for part in order.split(size)]


def digits(shape: tuple[int, ...], size: int = SIZE, count: int = BATCHES, *, raw: bool = False) -> Batches:
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32).reshape(-1, *shape) / 16
    return cut(x if raw else (x - x.mean()) / x.std(), torch.tensor(data.target), size, count)


def entropy(batches: Batches) -> float:
    """Of the labels: the best constant predictor's cross-entropy."""
    counts = torch.bincount(torch.cat([y.flatten() for _, y in batches])).double()
    return float(torch.special.entr(counts / counts.sum()).sum())


def variance(batches: Batches) -> float:
    """Of the targets, per output: the best constant predictor's squared error."""
    return float(torch.cat([y for _, y in batches]).double().var(0, correction=0).mean())


def classified(model: nn.Module, batches: Batches) -> Problem:
    return Problem(model, batches, "cross_entropy", entropy(batches))


def mlp(widths: list[int], nonlinearity: type[nn.Module]) -> nn.Sequential:
    layers: list[nn.Module] = []
    for fan_in, fan_out in itertools.pairwise(widths):
        layers += [nn.Linear(fan_in, fan_out), nonlinearity()]
    return nn.Sequential(*layers[:-1])


def plain(hidden: int, nonlinearity: type[nn.Module], *, raw: bool) -> Problem:
    return classified(mlp([64, *[128] * hidden, 10], nonlinearity), digits((64,), raw=raw))


def sigmoid_unit_variance() -> Problem:
    made = plain(4, nn.Sigmoid, raw=False)
    unit_variance_(made.model, made.batches)
    return made


def convolutions(*, normalised: bool) -> Problem:
    def block(inputs: int, outputs: int) -> list[nn.Module]:
        norm = [nn.BatchNorm2d(outputs)] if normalised else []
        return [nn.Conv2d(inputs, outputs, 3, padding=1), *norm, nn.ReLU()]

    layers = [*block(1, 8), *block(8, 16), nn.MaxPool2d(2), *block(16, 16), nn.Flatten(), nn.Linear(256, 10)]
    return classified(nn.Sequential(*layers), digits((1, 8, 8), 32))


class Residual(nn.Module):
    """x + two convolutions, with or without batch normalisation."""

    def __init__(self, width: int, *, normalised: bool = True):
        super().__init__()
        norms = [nn.BatchNorm2d(width) if normalised else nn.Identity() for _ in range(2)]
        convolutions = [nn.Conv2d(width, width, 3, padding=1, bias=not normalised) for _ in range(2)]
        self.inner = nn.Sequential(convolutions[0], norms[0], nn.ReLU(), convolutions[1], norms[1])

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        return torch.relu(x + self.inner(x))


def plain_resnet() -> Problem:
    stem = [nn.Conv2d(1, 8, 3, padding=1), nn.ReLU()]
    blocks = [Residual(8, normalised=False) for _ in range(3)]
    return classified(nn.Sequential(*stem, *blocks, nn.Flatten(), nn.Linear(512, 10)), digits((1, 8, 8), 32))


def digits_bn_resnet() -> tuple[nn.Module, Batches, str]:
    """For `bench_top_eigenvalue.py`."""
    stem = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*stem, Residual(16), Residual(16), *head), digits((1, 8, 8)), "cross_entropy"


def text(length: int) -> tuple[int, Batches]:
    source = inspect.getsource(textwrap) + inspect.getsource(inspect)
    alphabet = sorted(set(source))
    windows = torch.tensor([alphabet.index(c) for c in source[:40000]]).unfold(0, length + 1, length // 2)
    return len(alphabet), cut(windows[:, :-1], windows[:, 1:], 16)


class Recurrent(nn.Module):
    """An LSTM over characters; logits are N × characters × positions."""

    def __init__(self, characters: int, width: int = 48):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.body = nn.LSTM(width, width, batch_first=True)
        self.head = nn.Linear(width, characters)

    def forward(self, codes: Tensor) -> Tensor:
        """Character codes to logits."""
        return self.head(self.body(self.embedding(codes))[0]).transpose(1, 2)


class Characters(nn.Module):
    """A causal transformer of two layers; logits are N × characters × positions."""

    def __init__(self, characters: int, length: int, width: int = 32, *, norm_first: bool):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 2, 2 * width, dropout=0.0, batch_first=True, norm_first=norm_first)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, codes: Tensor) -> Tensor:
        """Character codes to logits."""
        return self.head(self.body(self.embedding(codes) + self.position, mask=self.mask)).transpose(1, 2)


def lstm() -> Problem:
    characters, batches = text(16)
    return classified(Recurrent(characters), batches)


def transformer(*, norm_first: bool) -> Problem:
    characters, batches = text(16)
    return classified(Characters(characters, 16, norm_first=norm_first), batches)


def autoencoder() -> Problem:
    batches = [(x, x) for x, _ in digits((64,), raw=True)]
    return Problem(mlp([64, 64, 16, 64, 64], nn.ReLU), batches, "mse", variance(batches))


def regression(*, raw: bool) -> Problem:
    data = load_diabetes()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target, dtype=torch.float32)[:, None]
    x, y = (x - x.mean(0)) / x.std(0), y if raw else (y - y.mean()) / y.std()
    batches = cut(x, y, 32)
    return Problem(mlp([10, 64, 64, 1], nn.ReLU), batches, "mse", variance(batches))


class Poisson(nn.Module):
    """Residuals of u″ = f on [0, 1] and of u = 0 at its ends, by derivatives taken inside the forward pass."""

    def __init__(self):
        super().__init__()
        self.body = mlp([1, 32, 32, 1], nn.Tanh)

    def forward(self, x: Tensor) -> Tensor:
        """Points N × 1 to residuals N × 2."""
        x = x.detach().requires_grad_()
        u = self.body(x)
        (slope,) = torch.autograd.grad(u.sum(), x, create_graph=True)
        (second,) = torch.autograd.grad(slope.sum(), x, create_graph=True)
        ends = self.body(torch.tensor([[0.0], [1.0]])).norm().expand(len(x), 1)
        return torch.cat([second + torch.pi**2 * torch.sin(torch.pi * x), 3 * ends], 1)


def physics() -> Problem:
    x = torch.rand(768, 1, generator=torch.Generator().manual_seed(0))
    constant = float((torch.pi**2 * torch.sin(torch.pi * x)).square().mean())
    return Problem(Poisson(), cut(x, torch.zeros(768, 1), 64), lambda r, _: r.square().sum(1).mean(), constant)


def matched(pairs: Tensor, _: Tensor) -> Tensor:
    """InfoNCE of two views of the same samples, N × 2 × d, at temperature 0.2."""
    one, other = F.normalize(pairs, dim=2).unbind(1)
    return F.cross_entropy(one @ other.T / 0.2, torch.arange(len(one)))


def contrastive() -> Problem:
    generator = torch.Generator().manual_seed(0)
    batches = [
        (x[:, None] + 0.7 * torch.randn(len(x), 2, 64, generator=generator), torch.arange(len(x)))
        for x, _ in digits((64,), 64)
    ]
    return Problem(mlp([64, 128, 128, 32], nn.ReLU), batches, matched, math.log(64))


class GraphConvolutions(nn.Module):
    """Two graph convolutions: features averaged over neighbours, then mapped."""

    def __init__(self, features: int, width: int, classes: int):
        super().__init__()
        self.first, self.second = nn.Linear(features, width), nn.Linear(width, classes)

    def forward(self, x: Tensor, adjacency: Tensor) -> Tensor:
        """Features N × d and a normalised adjacency N × N to logits."""
        return self.second(adjacency @ torch.relu(self.first(adjacency @ x)))


def graph() -> Problem:
    data = load_digits()
    x, y = torch.tensor(data.data[:600], dtype=torch.float32) / 16, torch.tensor(data.target[:600])
    near = torch.cdist(x, x).topk(9, largest=False).indices
    links = torch.zeros(600, 600).scatter_(1, near, 1.0)
    links = ((links + links.T) > 0).float()
    root = links.sum(1).rsqrt()
    return classified(GraphConvolutions(64, 32, 10), [((x, root[:, None] * links * root), y)])


class Variational(nn.Module):
    """A variational autoencoder; returns logits of pixels, means and log variances."""

    def __init__(self, latent: int = 8):
        super().__init__()
        self.encoder, self.decoder = mlp([64, 64, 2 * latent], nn.ReLU), mlp([latent, 64, 64], nn.ReLU)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Images N × 64."""
        mean, log_variance = self.encoder(x).chunk(2, 1)
        return self.decoder(mean + torch.randn_like(mean) * (0.5 * log_variance).exp()), mean, log_variance


def evidence_bound(outputs: tuple[Tensor, Tensor, Tensor], pixels: Tensor) -> Tensor:
    """The negative bound per sample, summed over pixels."""
    logits, mean, log_variance = outputs
    divergence = 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()
    return F.binary_cross_entropy_with_logits(logits, pixels, reduction="none").sum(1).mean() + divergence


def variational() -> Problem:
    batches = [(x, x) for x, _ in digits((64,), 64, raw=True)]
    p = torch.cat([x for x, _ in batches]).double().mean(0)
    return Problem(Variational(), batches, evidence_bound, float(torch.special.entr(torch.stack([p, 1 - p])).sum()))


def value_network() -> Problem:
    """Discounted returns of a noisy cart that is paid by its distance from the middle, 100 to 0."""
    generator = torch.Generator().manual_seed(0)
    state = torch.randn(768, 4, generator=generator)
    start, returns = state.clone(), torch.zeros(768, 1)
    for step in range(60):
        kick = 0.3 * torch.randn(768, 2, generator=generator) - 0.1 * state[:, :2].sign()
        state = torch.cat([state[:, :2] + 0.1 * state[:, 2:], 0.95 * state[:, 2:] + kick], 1)
        returns += 0.95**step * 5 * (1 - state[:, :1].square().sum(1, keepdim=True).clamp(max=4) / 4)
    batches = cut(start, returns, 64)
    return Problem(mlp([4, 64, 64, 1], nn.Tanh), batches, "mse", variance(batches))


PROBLEMS: dict[str, tuple[Callable[[], Problem], tuple[str, ...]]] = {
    "ReLU MLP, 2 hidden layers, raw": (lambda: plain(2, nn.ReLU, raw=True), ("sgd", "momentum", "adam")),
    "ReLU MLP, 4 hidden layers, standardised": (lambda: plain(4, nn.ReLU, raw=False), ("sgd", "momentum", "adam")),
    "ReLU MLP, 8 hidden layers, raw": (lambda: plain(8, nn.ReLU, raw=True), ("sgd", "momentum", "adam")),
    "tanh MLP, 4 hidden layers, standardised": (lambda: plain(4, nn.Tanh, raw=False), ("sgd", "momentum")),
    "tanh MLP, 6 hidden layers, raw": (lambda: plain(6, nn.Tanh, raw=True), ("momentum", "adam")),
    "sigmoid MLP, unit variance": (sigmoid_unit_variance, ("sgd", "momentum", "adam")),
    "CNN": (lambda: convolutions(normalised=False), ("sgd", "adam")),
    "CNN with batch normalisation": (lambda: convolutions(normalised=True), ("momentum", "adam")),
    "ResNet without normalisation": (plain_resnet, ("sgd", "momentum")),
    "LSTM": (lstm, ("momentum", "adam")),
    "transformer, pre-LN": (lambda: transformer(norm_first=True), ("sgd", "adamw")),
    "transformer, post-LN": (lambda: transformer(norm_first=False), ("momentum", "adam")),
    "autoencoder": (autoencoder, ("momentum", "adam")),
    "regression, standardised targets": (lambda: regression(raw=False), ("sgd", "adam")),
    "regression, raw targets": (lambda: regression(raw=True), ("sgd", "adam")),
    "physics-informed": (physics, ("sgd", "adam")),
    "contrastive": (contrastive, ("momentum", "adam")),
    "graph network": (graph, ("sgd", "adam")),
    "variational autoencoder": (variational, ("adam", "rmsprop")),
    "value network": (value_network, ("sgd", "adam", "rmsprop")),
}
DRAW = 20261128  # the seed of the halves, drawn before any algorithm was tried


def halves() -> tuple[list[str], list[str]]:
    """Names of the half that was developed on and of the half that was not looked at until the end."""
    names = sorted(PROBLEMS)
    random.Random(DRAW).shuffle(names)
    return names[:10], names[10:]


def problem(name: str, seed: int = 0) -> Problem:
    """The problem, drawn without touching the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PROBLEMS[name][0]()
