"""Networks of kinds that no rule was made or tried with: for the half that is looked at once, when rules are frozen."""

import math
from collections.abc import Callable
from functools import cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import tasks
from .blocks import Attention, Block, mlp
from .problem import Problem, error_rate, majority_error, token_cross_entropy
from .structured import conv
from .vectors import classifier


def fitted(model: nn.Module, data: tuple, loss: str, optimizer: str, rate: float, steps: int, size: int) -> Problem:
    """Targets of the outputs' shape, so many samples a batch."""
    train, held_out = tasks.chunks(*data, size)
    t = torch.cat([t for _, t in held_out])
    measure, centre = (F.mse_loss, t.mean(0)) if loss == "mse" else (F.l1_loss, t.median(0).values)
    reference = float(measure(centre.expand_as(t), t))
    return Problem(model, train, held_out, loss, optimizer, rate, steps, lambda o, y: float(measure(o, y)), reference, "regression")  # fmt: skip  # noqa: E501


def labelled(model: nn.Module, data: tuple, optimizer: str, rate: float, steps: int, size: int) -> Problem:
    """A class at every position."""
    train, held_out = tasks.chunks(*data, size)
    reference = majority_error(torch.cat([t for _, t in held_out]))
    return Problem(model, train, held_out, token_cross_entropy, optimizer, rate, steps, error_rate, reference, "tokens")


def yes_or_no(model: nn.Module, data: tuple, optimizer: str, rate: float, steps: int) -> Problem:
    """Answers of 0 and 1, scored by the share of wrong ones."""
    train, held_out = tasks.chunks(*data, 64)
    t = torch.cat([t for _, t in held_out])
    reference = float(torch.minimum(t.mean(0), 1 - t.mean(0)).mean())

    def score(outputs: Tensor, targets: Tensor) -> float:
        return float(((outputs > 0) != (targets > 0.5)).double().mean())

    return Problem(model, train, held_out, "bce", optimizer, rate, steps, score, reference, "binary")


@cache
def gratings(side: int, seed: int, count: int = 1024) -> tuple[Tensor, Tensor]:
    """Noisy coloured gratings (N, 3, side, side) of random phase and period, and which of six directions they have."""
    g = tasks.generator(seed)
    label = torch.randint(0, 6, (count,), generator=g)
    angle, speed = label * math.pi / 6, 0.9 + 0.5 * torch.rand(count, generator=g)
    axis = torch.arange(side).float()
    along = (angle.cos() * speed)[:, None, None] * axis[:, None] + (angle.sin() * speed)[:, None, None] * axis
    wave = (along + 6.28 * torch.rand(count, 1, 1, generator=g)).sin()
    colour = torch.randn(count, 3, 1, 1, generator=g)
    return colour * wave[:, None] + 0.6 * torch.randn(count, 3, side, side, generator=g), label


class Squeeze(nn.Module):
    """Channels are scaled by gates that are computed from their means."""

    def __init__(self, width: int, narrow: int) -> None:
        super().__init__()
        self.gate = nn.Sequential(nn.Linear(width, narrow), nn.ReLU(), nn.Linear(narrow, width), nn.Sigmoid())

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gate(x.mean((2, 3)))[:, :, None, None]


def squeeze_excitation(rate: float = 0.05) -> Problem:
    body = [*conv(3, 12), nn.ReLU(), Squeeze(12, 4), *conv(12, 24, 2), nn.ReLU(), Squeeze(24, 6)]
    model = nn.Sequential(*body, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(24, 6))
    return classifier(model, gratings(10, 101), "momentum", rate, 120, 32)


class Maxout(nn.Module):
    """The largest of several linear functions."""

    def __init__(self, inputs: int, outputs: int, pieces: int) -> None:
        super().__init__()
        self.linear, self.pieces = nn.Linear(inputs, outputs * pieces), pieces

    def forward(self, x: Tensor) -> Tensor:
        return self.linear(x).reshape(len(x), -1, self.pieces).amax(-1)


def maxout(rate: float = 0.05) -> Problem:
    """Which of three spirals a point is on, turned into twelve dimensions."""
    g = tasks.generator(102)
    label = torch.randint(0, 3, (1536,), generator=g)
    radius = 0.4 + 1.6 * torch.rand(1536, generator=g)
    angle = 2 * radius + 2.0944 * label
    flat = torch.stack([radius * angle.cos(), radius * angle.sin()], 1) + 0.08 * torch.randn(1536, 2, generator=g)
    x = flat @ torch.linalg.qr(torch.randn(12, 2, generator=g)).Q.t() * 2 + 0.1 * torch.randn(1536, 12, generator=g)
    model = nn.Sequential(Maxout(12, 32, 4), nn.Dropout(0.1), Maxout(32, 32, 4), nn.Dropout(0.1), nn.Linear(32, 3))
    return classifier(model, (x, label), "momentum", rate, 200)


class Ode(nn.Module):
    """Eight Euler steps of a learnt field."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.field, self.head = nn.Linear(2, 8), mlp(8, 32, 8, activation=nn.Tanh), nn.Linear(8, 3)

    def forward(self, x: Tensor) -> Tensor:
        state = self.enter(x)
        for _ in range(8):
            state = state + self.field(state) / 4
        return self.head(state)


def neural_ode(rate: float = 1e-2) -> Problem:
    """Which of three dented rings a point is in."""
    x = torch.randn(1536, 2, generator=tasks.generator(103))
    radius = x.norm(dim=1) + 0.25 * (3 * torch.atan2(x[:, 1], x[:, 0])).sin()
    return classifier(Ode(), (x, (radius > 0.9).long() + (radius > 1.5).long()), "adam", rate, 200)


@cache
def moving(seed: int, count: int = 1024) -> tuple[Tensor, Tensor]:
    """Films (N, 1, 6, 8, 8) of a spot that moves up, down, left or right, and which of them."""
    g = tasks.generator(seed)
    label, start = torch.randint(0, 4, (count,), generator=g), torch.randint(0, 8, (count, 2), generator=g)
    step = torch.tensor([[1, 0], [-1, 0], [0, 1], [0, -1]])[label]
    at = (start[:, None] + torch.arange(6)[None, :, None] * step[:, None]) % 8
    far = (torch.arange(8) - at[..., None] + 4) % 8 - 4
    film = 2 * (-(far[:, :, 0, :, None].square() + far[:, :, 1, None, :].square()) / 2).exp()
    return film.unsqueeze(1) + 0.4 * torch.randn(count, 1, 6, 8, 8, generator=g), label


def video(rate: float = 0.05) -> Problem:
    layers = [nn.Conv3d(1, 8, 3, padding=1), nn.BatchNorm3d(8), nn.ReLU(), nn.Conv3d(8, 16, 3, (1, 2, 2), 1)]
    head = [nn.BatchNorm3d(16), nn.ReLU(), nn.AdaptiveAvgPool3d(1), nn.Flatten(), nn.Linear(16, 4)]
    return classifier(nn.Sequential(*layers, *head), moving(104), "momentum", rate, 120, 24)


class Bilinear(nn.Module):
    """Products of two streams' channels, averaged over the picture; their signed roots are classified."""

    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.ReLU())
        self.second = nn.Sequential(nn.Conv2d(4, 12, 3, padding=1), nn.ReLU())
        self.head = nn.Linear(144, 6)

    def forward(self, x: Tensor) -> Tensor:
        a, b = self.first(x).flatten(2), self.second(x).flatten(2)
        products = (a @ b.transpose(1, 2) / a.shape[2]).flatten(1)
        return self.head(products.sign() * (products.abs() + 1e-3).sqrt())


def bilinear(rate: float = 5e-3) -> Problem:
    """Which two of four channels go together."""
    g = tasks.generator(105)
    label = torch.randint(0, 6, (1024,), generator=g)
    pair = torch.combinations(torch.arange(4))[label]
    common = torch.randn(1024, 1, 8, 8, generator=g)
    share = torch.zeros(1024, 4).scatter(1, pair, 0.8)[:, :, None, None]
    x = share * common + (1 - share.square()).sqrt() * torch.randn(1024, 4, 8, 8, generator=g)
    return classifier(Bilinear(), (x, label), "adam", rate, 150, 32)


class Gated(nn.Module):
    """A causal convolution whose units are gated."""

    def __init__(self, width: int, dilation: int) -> None:
        super().__init__()
        self.pad = nn.ConstantPad1d((dilation, 0), 0.0)
        self.signal, self.tanh = nn.Conv1d(width, width, 2, dilation=dilation), nn.Tanh()
        self.gate, self.sigmoid = nn.Conv1d(width, width, 2, dilation=dilation), nn.Sigmoid()
        self.mix = nn.Conv1d(width, width, 1)

    def forward(self, x: Tensor) -> Tensor:
        h = self.pad(x)
        return self.mix(self.tanh(self.signal(h)) * self.sigmoid(self.gate(h)))


class WaveNet(nn.Module):
    """Gated layers of growing reach, the sum of whose outputs is read."""

    def __init__(self) -> None:
        super().__init__()
        self.enter = nn.Conv1d(1, 16, 1)
        self.layers = nn.ModuleList(Gated(16, dilation) for dilation in (1, 2, 4))
        self.head = nn.Sequential(nn.ReLU(), nn.Conv1d(16, 32, 1), nn.ReLU(), nn.Conv1d(32, 8, 1))

    def forward(self, x: Tensor) -> Tensor:
        h, total = self.enter(x), 0.0
        for layer in self.layers:
            step = layer(h)
            h, total = h + step, total + step
        return self.head(total).transpose(1, 2)


def wavenet(rate: float = 3e-3) -> Problem:
    """The next of eight levels of a sound, at every step."""
    g = tasks.generator(106)
    t, count = torch.arange(17).float(), 1024
    speed, phase = 0.3 + 0.6 * torch.rand(count, 2, generator=g), 6.28 * torch.rand(count, 2, generator=g)
    sound = (speed[:, :1] * t + phase[:, :1]).sin() + 0.2 * (2 * speed[:, 1:] * t + phase[:, 1:]).sin()
    level = torch.bucketize(sound.contiguous(), torch.linspace(-0.9, 0.9, 7))
    heard = (level.float() - 3.5) / 2
    return labelled(WaveNet(), (heard[:, None, :-1], level[:, 1:].contiguous()), "rmsprop", rate, 200, 32)


class Translator(nn.Module):
    """A recurrent encoder and decoder; the decoder attends to the encoder's states."""

    def __init__(self) -> None:
        super().__init__()
        self.source, self.encoder = nn.Embedding(12, 24), nn.GRU(24, 32, batch_first=True)
        self.target, self.decoder = nn.Embedding(13, 24), nn.GRU(24, 32, batch_first=True)
        self.query, self.combine, self.tanh = nn.Linear(32, 32), nn.Linear(64, 32), nn.Tanh()
        self.head = nn.Linear(32, 12)

    def forward(self, words: Tensor, before: Tensor) -> Tensor:
        seen = self.encoder(self.source(words))[0]
        states = self.decoder(self.target(before), seen.mean(1).unsqueeze(0))[0]
        weights = (self.query(states) @ seen.transpose(1, 2) / 32**0.5).softmax(-1)
        return self.head(self.tanh(self.combine(torch.cat([states, weights @ seen], -1))))


def translation(rate: float = 1e-2) -> Problem:
    """Six words, no two the same, word by word into another language whose sentences begin with the last one."""
    g = tasks.generator(107)
    words = torch.rand(1536, 12, generator=g).argsort(1)[:, :6]
    spoken = torch.randperm(12, generator=g)[words.flip(1)]
    before = torch.cat([torch.full((1536, 1), 12), spoken[:, :-1]], 1)
    return labelled(Translator(), ((words, before), spoken), "adam", rate, 200, 32)


class Cloze(nn.Module):
    """A transformer that fills in words which are masked."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(13, 32), nn.Parameter(0.5 * torch.randn(10, 32))
        self.blocks = nn.ModuleList(Block(32, 2) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 12)

    def forward(self, ids: Tensor, used: Tensor) -> Tensor:
        x = self.embedding(ids) + self.place
        for block in self.blocks:
            x = block(x, used)
        return self.head(self.norm(x))


def masked_tokens(rate: float = 5e-3) -> Problem:
    """Words each of which mostly follows from the one before; all but the masked ones have the label -100."""
    g = tasks.generator(108)
    follow, count = torch.randperm(12, generator=g), 1536
    text = torch.randint(0, 12, (count, 1), generator=g)
    for _ in range(9):
        other = torch.randint(0, 12, (count,), generator=g)
        text = torch.cat([text, torch.where(torch.rand(count, generator=g) < 0.9, follow[text[:, -1]], other)[:, None]], 1)  # fmt: skip  # noqa: E501
    used = torch.arange(10) < torch.randint(7, 11, (count, 1), generator=g)
    one = torch.arange(10) == torch.randint(0, 7, (count, 1), generator=g)  # at least one in every text
    hidden = used & (one | (torch.rand(count, 10, generator=g) < 0.2))
    ids, labels = text.masked_fill(hidden, 12), text.masked_fill(~hidden, -100)
    train, held_out = tasks.chunks((ids, used), labels, 24, held=6)

    def score(outputs: Tensor, targets: Tensor) -> float:
        return error_rate(outputs[targets >= 0], targets[targets >= 0])

    every = torch.cat([t[t >= 0] for _, t in held_out])
    return Problem(Cloze(), train, held_out, token_cross_entropy, "adamw", rate, 150, score, majority_error(every), "tokens")  # fmt: skip  # noqa: E501


class SkipNet(nn.Module):
    """A U-Net of three resolutions; what was computed on the way down is put beside what comes up."""

    def __init__(self) -> None:
        super().__init__()

        def step(a: int, b: int, stride: int = 1) -> nn.Sequential:
            return nn.Sequential(*conv(a, b, stride), nn.LeakyReLU(0.1))

        self.high, self.middle, self.low = step(1, 8), step(8, 12, 2), step(12, 16, 2)
        self.up = nn.Upsample(scale_factor=2)
        self.back, self.out = step(28, 12), step(20, 8)
        self.head = nn.Conv2d(8, 1, 1)

    def forward(self, x: Tensor) -> Tensor:
        high = self.high(x)
        middle = self.middle(high)
        back = self.back(torch.cat([middle, self.up(self.low(middle))], 1))
        return self.head(self.out(torch.cat([high, self.up(back)], 1)))


def unet(rate: float = 5e-3) -> Problem:
    """A map of where the larger of two spots is."""
    g, count, axis = tasks.generator(109), 512, torch.arange(12).float()
    centre = 2 + 8 * torch.rand(count, 2, 2, generator=g)
    dy, dx = axis[:, None] - centre[:, :, 0, None, None], axis - centre[:, :, 1, None, None]
    far = dy.square() + dx.square()
    spots = (-far / (2 * torch.tensor([2.0, 0.6])[:, None, None].square())).exp()
    x = 2 * spots.amax(1, keepdim=True) + 0.3 * torch.randn(count, 1, 12, 12, generator=g)
    y = (-far[:, :1] / 4).exp()
    return fitted(SkipNet(), (x, (y - y.mean()) / y.std()), "mse", "adamw", rate, 120, 16)


class SetTransformer(nn.Module):
    """Attention among the points of a set, then of one learnt query to them."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.attention, self.norm1 = nn.Linear(3, 32), Attention(32, 4), nn.LayerNorm(32)
        self.mlp, self.norm2 = mlp(32, 64, 32), nn.LayerNorm(32)
        self.query = nn.Parameter(torch.randn(1, 1, 32))
        self.pool, self.head = nn.MultiheadAttention(32, 4, batch_first=True), mlp(32, 32, 1)

    def forward(self, points: Tensor, used: Tensor) -> Tensor:
        x = self.enter(points)
        x = self.norm1(x + self.attention(x, used))
        x = self.norm2(x + self.mlp(x))
        pooled = self.pool(self.query.expand(len(x), -1, -1), x, x, key_padding_mask=~used, need_weights=False)[0]
        return self.head(pooled.squeeze(1))


def set_transformer(rate: float = 2e-3) -> Problem:
    """How far apart the two farthest points of a set are."""
    g = tasks.generator(110)
    points = torch.randn(1536, 8, 3, generator=g) * (0.3 + torch.rand(1536, 1, 3, generator=g))
    used = torch.arange(8) < torch.randint(4, 9, (1536, 1), generator=g)
    apart = torch.cdist(points, points) * (used[:, :, None] & used[:, None])
    y = apart.flatten(1).amax(1, keepdim=True)
    return fitted(SetTransformer(), ((points, used), (y - y.mean()) / y.std()), "mse", "adam", rate, 150, 48)


class Messages(nn.Module):
    """Two rounds of messages along bonds, of their ends and their kind; a recurrent cell takes up their sums."""

    def __init__(self) -> None:
        super().__init__()
        self.atom, self.message = nn.Embedding(4, 16), mlp(35, 32, 16)
        self.update, self.head = nn.GRUCell(16, 16), mlp(16, 32, 1)

    def forward(self, bonds: Tensor, atoms: Tensor) -> Tensor:
        h = self.atom(atoms)
        n, k, w = h.shape
        for _ in range(2):
            ends = [h[:, :, None].expand(n, k, k, w), h[:, None].expand(n, k, k, w)]
            sent = self.message(torch.cat([*ends, bonds], -1)) * bonds.sum(-1, keepdim=True)
            h = self.update(sent.sum(2).reshape(n * k, w), h.reshape(n * k, w)).reshape(n, k, w)
        return self.head(h).mean(1)


def message_passing(rate: float = 5e-3) -> Problem:
    """The energy of a molecule, a sum over its bonds."""
    g, count = tasks.generator(111), 1536
    atoms = torch.randint(0, 4, (count, 6), generator=g)
    kind = torch.randint(0, 3, (count, 6, 6), generator=g)
    bond = (torch.rand(count, 6, 6, generator=g) < 0.4).triu(1)
    bonds = F.one_hot(kind, 3).float() * bond.unsqueeze(-1)
    strength = torch.randn(4, 4, 3, generator=g)
    strength = strength + strength.transpose(0, 1)
    y = (strength[atoms[:, :, None], atoms[:, None], kind] * bond).sum((1, 2))[:, None]
    bonds = bonds + bonds.transpose(1, 2)
    return fitted(Messages(), ((bonds, atoms), (y - y.mean()) / y.std()), "l1", "adam", rate, 250, 48)


class Radial(nn.Module):
    """Bumps around learnt centres."""

    def __init__(self, inputs: int, units: int) -> None:
        super().__init__()
        self.centres, self.sharpness = nn.Parameter(torch.randn(units, inputs)), nn.Parameter(torch.zeros(units))

    def forward(self, x: Tensor) -> Tensor:
        far = (x.unsqueeze(1) - self.centres).square().sum(-1)
        return (-far * self.sharpness.exp()).exp()


def radial(rate: float = 2e-2) -> Problem:
    """A surface over the plane by radial basis functions."""
    x = torch.randn(1536, 2, generator=tasks.generator(112))
    y = (2 * x[:, :1]).sin() * (1.5 * x[:, 1:]).cos() + 0.5 * x[:, :1] * x[:, 1:]
    model = nn.Sequential(Radial(2, 64), nn.Linear(64, 1))
    return fitted(model, (x, (y - y.mean()) / y.std()), "mse", "adam", rate, 250, 64)


class Forecaster(nn.Module):
    """A causal transformer on real numbers."""

    def __init__(self) -> None:
        super().__init__()
        self.enter, self.place = nn.Linear(2, 32), nn.Parameter(0.1 * torch.randn(10, 32))
        self.blocks = nn.ModuleList(Block(32, 4, causal=True) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 2)

    def forward(self, x: Tensor) -> Tensor:
        h = self.enter(x) + self.place
        for block in self.blocks:
            h = block(h)
        return self.head(self.norm(h))


def forecaster(rate: float = 3e-3) -> Problem:
    """The next place of a point that circles, at every step; pace and distance are its own."""
    g, t = tasks.generator(113), torch.arange(11).float()
    pace, phase = 0.4 + 1.2 * torch.rand(1024, 1, generator=g), 6.28 * torch.rand(1024, 1, generator=g)
    angle, size = pace * t + phase, 0.7 + 0.8 * torch.rand(1024, 1, generator=g)
    path = torch.stack([size * angle.cos(), 1.5 * size * angle.sin()], 2)
    path = path + 0.05 * torch.randn(path.shape, generator=g)
    return fitted(Forecaster(), (path[:, :-1].contiguous(), path[:, 1:].contiguous()), "mse", "adamw", rate, 150, 24)


class Grades(nn.Module):
    """One number and a threshold for each grade."""

    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(mlp(10, 48, 48, activation=nn.PReLU), nn.PReLU())
        self.value, self.thresholds = nn.Linear(48, 1, bias=False), nn.Parameter(torch.linspace(1, -1, 4))

    def forward(self, x: Tensor) -> Tensor:
        return self.value(self.body(x)) + self.thresholds


def ordinal(rate: float = 5e-3) -> Problem:
    """Which of four marks a grade exceeds."""
    x, y = tasks.teacher(10, 1, 114)
    return yes_or_no(Grades(), (x, (y > torch.tensor([-0.8, -0.3, 0.3, 0.8])).float()), "rmsprop", rate, 250)


class Clicks(nn.Module):
    """A factorization machine beside a perceptron, on the same embeddings."""

    def __init__(self) -> None:
        super().__init__()
        self.wide, self.embedding, self.deep = nn.Embedding(40, 1), nn.Embedding(40, 8), mlp(36, 32, 32, 1)
        nn.init.normal_(self.wide.weight, std=0.05), nn.init.normal_(self.embedding.weight, std=0.3)

    def forward(self, numbers: Tensor, ids: Tensor) -> Tensor:
        e = self.embedding(ids)
        pairs = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1, keepdim=True)
        return self.wide(ids).sum(1) + pairs + self.deep(torch.cat([numbers, e.flatten(1)], 1))


def factorization_machine(rate: float = 1e-2) -> Problem:
    """Whether somebody clicks: by four attributes of ten values, two by two, and by four numbers."""
    g, count = tasks.generator(115), 3072
    ids = torch.randint(0, 10, (count, 4), generator=g) + 10 * torch.arange(4)
    numbers, taste = torch.randn(count, 4, generator=g), torch.randn(40, 2, generator=g)
    e = taste[ids]
    logit = 0.5 * (e.sum(1).square() - e.square().sum(1)).sum(1) + 2 * numbers[:, 0] * e[:, 0, 0] + numbers[:, 1]
    return yes_or_no(Clicks(), ((numbers, ids), (logit > logit.median()).float()[:, None]), "adam", rate, 250)


class Coupling(nn.Module):
    """Half of the numbers are scaled and shifted by functions of the others; also the logarithm of the volume."""

    def __init__(self) -> None:
        super().__init__()
        self.net, self.tanh = mlp(2, 32, 32, 4), nn.Tanh()

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        kept, moved = x.chunk(2, 1)
        scale, shift = self.net(kept).chunk(2, 1)
        scale = 2 * self.tanh(scale)
        return torch.cat([moved * scale.exp() + shift, kept], 1), scale.sum(1)


class Flow(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.steps = nn.ModuleList(Coupling() for _ in range(4))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        volume = x.new_zeros(len(x))
        for step in self.steps:
            x, change = step(x)
            volume = volume + change
        return x, volume


def flow_nll(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Of a standard normal, less its constant."""
    z, volume = outputs
    return (0.5 * z.square().sum(1) - volume).mean()


def flow(rate: float = 5e-3) -> Problem:
    """The density of points on two arcs and of two numbers that depend on them."""
    g = tasks.generator(116)
    angle, upper = math.pi * torch.rand(1536, generator=g), torch.rand(1536, generator=g) < 0.5
    arc = torch.stack([angle.cos(), angle.sin()], 1)
    arc = torch.where(upper[:, None], arc, torch.tensor([1.0, 0.4]) - arc)
    x = torch.cat([arc, arc[:, :1].square(), (3 * arc[:, 1:]).sin()], 1) + 0.1 * torch.randn(1536, 4, generator=g)
    x = (x - x.mean(0)) / x.std(0)
    train, held_out = tasks.chunks(x, torch.zeros(1536, 1), 64)
    return Problem(Flow(), train, held_out, flow_nll, "adam", rate, 250, lambda o, t: float(flow_nll(o, t)), 2.0)


class Frames(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layers = (nn.Conv1d(6, 32, 3, padding=1), nn.ReLU(), nn.Conv1d(32, 32, 3, padding=1), nn.ReLU())
        self.body, self.head = nn.Sequential(*layers), nn.Linear(32, 6)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.body(x.transpose(1, 2)).transpose(1, 2))


def alignment_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """Connectionist temporal classification; symbol 0 is the blank."""
    count, frames = outputs.shape[:2]
    chances = outputs.float().log_softmax(-1).transpose(0, 1)
    return F.ctc_loss(chances, targets, torch.full((count,), frames), torch.full((count,), targets.shape[1]))


def best_constant(loss: Callable[[Any, Any], Tensor], shape: tuple[int, ...], targets: Tensor) -> float:
    """The least loss of outputs that are the same for every sample, by L-BFGS."""
    free = torch.zeros(1, *shape, requires_grad=True)
    optimizer = torch.optim.LBFGS([free], max_iter=100, line_search_fn="strong_wolfe")

    def closure() -> Tensor:
        optimizer.zero_grad()
        value = loss(free.expand(len(targets), *shape), targets)
        value.backward()
        return value

    optimizer.step(closure)
    return float(closure().detach())


def ctc(rate: float = 5e-3) -> Problem:
    """Four symbols of five, each heard for two to four frames of sixteen: which ones, not when."""
    g, count = tasks.generator(117), 1024
    first = torch.randint(0, 5, (count, 1), generator=g)
    symbols = (torch.cat([first, torch.randint(1, 5, (count, 3), generator=g)], 1).cumsum(1)) % 5 + 1
    ends = torch.randint(2, 5, (count, 4), generator=g).cumsum(1)
    number = (torch.arange(16)[None, :, None] >= ends[:, None]).sum(2)
    spoken = torch.cat([symbols, torch.zeros(count, 1, dtype=torch.long)], 1).gather(1, number)
    sound = 1.5 * torch.randn(6, 6, generator=g)
    x = sound[spoken] + 0.6 * torch.randn(count, 16, 6, generator=g)
    train, held_out = tasks.chunks((x - x.mean()) / x.std(), symbols, 32)
    reference = best_constant(alignment_loss, (16, 6), torch.cat([t for _, t in held_out]))
    return Problem(Frames(), train, held_out, alignment_loss, "adam", rate, 200, lambda o, t: float(alignment_loss(o, t)), reference)  # fmt: skip  # noqa: E501


def partial_likelihood(outputs: Tensor, targets: Tensor) -> Tensor:
    """Cox's: of whom it happens to, among those to whom it has not happened yet; times and events in columns."""
    order = targets[:, 0].argsort(descending=True)
    risk, event = outputs.float()[order, 0], targets[order, 1]
    return -((risk - risk.logcumsumexp(0)) * event).sum() / event.sum()


def discordance(outputs: Tensor, targets: Tensor) -> float:
    """Share of pairs whose order in time is known and that have the wrong order in risk."""
    time, event = targets.t()
    known = (time[:, None] < time[None]) & (event[:, None] > 0)
    apart = (outputs - outputs.t())[known]
    return float(((apart < 0).double() + 0.5 * (apart == 0)).mean())


def survival(rate: float = 0.03) -> Problem:
    """Risk by covariates, from times of which some are censored."""
    g = tasks.generator(118)
    x, y = tasks.teacher(8, 1, 119)
    happens = torch.empty(1536, 1).exponential_(generator=g) * (-2 * y).exp()
    leaves = 6 * torch.rand(1536, 1, generator=g)
    targets = torch.cat([torch.minimum(happens, leaves), (happens < leaves).float()], 1)
    train, held_out = tasks.chunks(x, targets, 64)
    layers = [nn.Linear(8, 48, bias=False), nn.BatchNorm1d(48), nn.ELU(), nn.Linear(48, 48), nn.ELU()]
    model = nn.Sequential(*layers, nn.Linear(48, 1, bias=False))
    return Problem(model, train, held_out, partial_likelihood, "momentum", rate, 200, discordance, 0.5)


def triplet_loss(outputs: Tensor, targets: Tensor) -> Tensor:
    """The view of the same thing shall be nearer than that of another, by 1."""
    anchor, same, other = outputs.unbind(1)
    return F.triplet_margin_loss(anchor, same, other)


def triplets(rate: float = 1e-3) -> Problem:
    """Views of things: of eight numbers that are mixed beyond recognition, four are the thing's and four the view's."""
    g, count = tasks.generator(120), 1536
    thing = torch.randn(count, 2, 4, generator=g)[:, [0, 0, 1]]
    hidden = torch.cat([thing, torch.randn(count, 3, 4, generator=g)], 2) @ torch.randn(8, 32, generator=g) / 8**0.5
    x = hidden.tanh() @ torch.randn(32, 24, generator=g) / 3
    layers = [nn.Linear(24, 64), nn.LeakyReLU(), nn.Linear(64, 64), nn.LeakyReLU(), nn.Linear(64, 8)]
    train, held_out = tasks.chunks(x, torch.zeros(count, 1), 64)
    return Problem(nn.Sequential(*layers), train, held_out, triplet_loss, "rmsprop", rate, 250, lambda o, t: float(triplet_loss(o, t)), 1.0)  # fmt: skip  # noqa: E501


class ActorCritic(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Sequential(mlp(6, 48, 48, activation=nn.Tanh), nn.Tanh())
        self.value, self.policy = nn.Linear(48, 1), nn.Linear(48, 4)

    def forward(self, state: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(state)
        return self.policy(h), self.value(h)


def advantage_loss(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Actions were drawn evenly; the first column says which, the others are the returns of all four."""
    logits, value = outputs
    action = targets[:, :1].long()
    gain = targets[:, 1:].gather(1, action)
    chance = logits.softmax(1)
    entropy = -(chance * logits.log_softmax(1)).sum(1).mean()
    actor = -(4 * chance.gather(1, action) * (gain - value.detach())).mean()
    return actor + 0.5 * (value - gain).square().mean() - 0.01 * entropy


def actor_critic(rate: float = 5e-3) -> Problem:
    """A policy and its baseline, from returns of actions that were tried."""
    state, gains = tasks.teacher(6, 4, 121)
    action = torch.randint(0, 4, (len(state), 1), generator=tasks.generator(122))
    train, held_out = tasks.chunks(state, torch.cat([action.float(), gains], 1), 64)

    def regret(outputs: tuple[Tensor, Tensor], targets: Tensor) -> float:
        won = (outputs[0].softmax(1) * targets[:, 1:]).sum(1)
        return float((targets[:, 1:].amax(1) - won).mean())

    held = torch.cat([t[:, 1:] for _, t in held_out])
    reference = float(held.amax(1).mean() - held.mean(0).amax())
    return Problem(ActorCritic(), train, held_out, advantage_loss, "adam", rate, 250, regret, reference)


class TwoHeads(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        parts: list[nn.Module] = []
        for a, b in ((1, 12), (12, 24)):
            parts += [nn.Conv2d(a, b, 3, 2, 1), nn.GroupNorm(4, b), nn.SiLU()]
        self.body = nn.Sequential(*parts, nn.Flatten(), nn.Linear(216, 48), nn.SiLU())
        self.kind, self.centre = nn.Linear(48, 3), nn.Linear(48, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.body(x)
        return self.kind(h), self.centre(h)


def two_losses(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    """Cross-entropy of the kind, in the first column, and squared error of the centre."""
    kind, centre = outputs
    return F.cross_entropy(kind, targets[:, 0].long()) + F.mse_loss(centre, targets[:, 1:])


def two_tasks(rate: float = 3e-3) -> Problem:
    """Which way a bar lies, and where."""
    g, count, axis = tasks.generator(123), 1024, torch.arange(12).float()
    kind, centre = torch.randint(0, 3, (count,), generator=g), 3 + 5 * torch.rand(count, 2, generator=g)
    angle = kind * math.pi / 3
    dy, dx = axis[:, None] - centre[:, 0, None, None], axis - centre[:, 1, None, None]
    cos, sin = angle.cos()[:, None, None], angle.sin()[:, None, None]
    bar = (-(cos * dy + sin * dx).square() / 12 - (cos * dx - sin * dy).square() / 2).exp()
    x = 2 * bar.unsqueeze(1) + 0.3 * torch.randn(count, 1, 12, 12, generator=g)
    train, held_out = tasks.chunks(x, torch.cat([kind[:, None].float(), (centre - 5.5) / 1.45], 1), 32)
    t = torch.cat([t for _, t in held_out])
    shares = t[:, 0].long().bincount(minlength=3) / len(t)
    reference = float(-(shares * shares.log()).sum() + t[:, 1:].var(0, correction=0).mean())
    return Problem(TwoHeads(), train, held_out, two_losses, "adamw", rate, 120, lambda o, y: float(two_losses(o, y)), reference)  # fmt: skip  # noqa: E501
