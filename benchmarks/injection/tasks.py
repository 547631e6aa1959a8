"""Data with structure that can be learnt, made from a seed; and scikit-learn's digits."""

from functools import cache

import torch
from torch import Tensor
from torch.nn import functional as F

from .problem import Batch


def generator(seed: int) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def chunks(
    inputs: Tensor | tuple[Tensor, ...], targets: Tensor, size: int, held: int = 3
) -> tuple[list[Batch], list[Batch]]:
    """Batches to train on and the last `held` ones, to measure on."""
    count = len(targets) // size
    parts = [slice(i * size, (i + 1) * size) for i in range(count)]
    several = isinstance(inputs, tuple)
    batches = [(tuple(x[s] for x in inputs) if several else inputs[s], targets[s]) for s in parts]
    return batches[:-held], batches[-held:]


@cache
def digits() -> tuple[Tensor, Tensor]:
    """(1792, 64) pictures of mean 0 and variance 1, and labels."""
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    order = torch.randperm(len(x), generator=generator(0))[:1792]
    x = torch.as_tensor(x, dtype=torch.float32)[order]
    return (x - x.mean()) / x.std(), torch.as_tensor(y)[order].long()


@cache
def teacher(inputs: int, outputs: int, seed: int, count: int = 1536) -> tuple[Tensor, Tensor]:
    """Normal inputs and a smooth function of them that is not linear, of variance 1."""
    g = generator(seed)
    x = torch.randn(count, inputs, generator=g)
    a, b = torch.randn(inputs, 6, generator=g) / inputs**0.5, torch.randn(6, outputs, generator=g)
    z = x @ a
    y = torch.cat([z[:, :2].mul(2).sin(), z[:, 2:4].square() - 1, z[:, 4:].abs() - 0.8], 1) @ b + 0.3 * x[:, :outputs]
    return x, (y - y.mean(0)) / y.std(0)


@cache
def waves(steps: int, seed: int, count: int = 1536) -> tuple[Tensor, Tensor, Tensor]:
    """(N, T, 1) sums of two sines with noise, the class of the faster one's period (4), and the next value (N, 1)."""
    g = generator(seed)
    label = torch.randint(0, 4, (count,), generator=g)
    speed = (0.45 + 0.4 * label)[:, None]
    phase = 6.28 * torch.rand(count, 2, generator=g)
    t = torch.arange(steps + 1)[None].float()
    x = (speed * t + phase[:, :1]).sin() + 0.7 * (0.2 * t + phase[:, 1:]).sin()
    noisy = x[:, :-1] + 0.05 * torch.randn(count, steps, generator=g)
    return noisy.unsqueeze(-1), label, x[:, -1:]


@cache
def language(words: int, length: int, seed: int, count: int = 768) -> Tensor:
    """(N, T + 1) tokens: each is one of three likely successors of the two before it."""
    g = generator(seed)
    follow = torch.randint(0, words, (words, words, 3), generator=g)
    text = torch.randint(0, words, (count, 2), generator=g)
    draws = torch.multinomial(torch.tensor([0.8, 0.15, 0.05]), count * length, True, generator=g).reshape(count, length)
    for step in range(length - 1):
        text = torch.cat([text, follow[text[:, -2] % 2, text[:, -1], draws[:, step]][:, None]], 1)
    return text


@cache
def votes(words: int, length: int, classes: int, seed: int, count: int = 1536) -> tuple[Tensor, Tensor, Tensor]:
    """Token sequences with padding, which positions are no padding, and the class that most tokens speak for."""
    g = generator(seed)
    ids = torch.randint(0, words, (count, length), generator=g)
    used = torch.arange(length)[None] < torch.randint(length // 2, length - 1, (count, 1), generator=g)
    meaning = torch.randint(0, classes, (words,), generator=g)
    tallies = F.one_hot(meaning[ids], classes).mul(used.unsqueeze(-1)).sum(1).double()
    return ids, used, (tallies + 0.1 * torch.rand(tallies.shape, generator=g)).argmax(1)


@cache
def graphs(nodes: int, seed: int, count: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy features (N, nodes, 6), adjacency of two to three communities, and each node's community."""
    g = generator(seed)
    label = torch.randint(0, 3, (count, nodes), generator=g)
    same = label[:, :, None] == label[:, None, :]
    edge = torch.rand(count, nodes, nodes, generator=g) < torch.where(same, 0.6, 0.05)
    edge = edge.triu(1)
    edge = (edge | edge.transpose(1, 2)).float() + torch.eye(nodes)
    features = F.one_hot(label, 6).float() * 0.8 + 0.7 * torch.randn(count, nodes, 6, generator=g)
    return features, edge, label


@cache
def shapes(side: int, seed: int, count: int = 512) -> tuple[Tensor, Tensor, Tensor]:
    """Noisy pictures (N, 1, side, side), the mask of the disc or square in them, and which of the two it is."""
    g = generator(seed)
    axis = torch.arange(side).float()
    centre = 4 + (side - 8) * torch.rand(count, 2, generator=g)
    radius = 2.5 + 1.5 * torch.rand(count, 1, 1, generator=g)
    dy, dx = axis[None, :, None] - centre[:, :1, None], axis[None, None, :] - centre[:, 1:, None]
    kind = torch.randint(0, 2, (count,), generator=g)
    disc, square = dx.square() + dy.square() < radius.square(), torch.maximum(dx.abs(), dy.abs()) < radius
    mask = torch.where(kind[:, None, None] == 0, disc, square).float().unsqueeze(1)
    picture = 1.5 * mask - 0.5 + 0.5 * torch.randn(count, 1, side, side, generator=g)
    return (picture - picture.mean()) / picture.std(), mask, kind
