"""Networks on vectors and small sets: perceptrons, autoencoders, experts, modulation, value functions, physics."""

import math

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import tasks
from .blocks import Adapter, Residual, Sine, mlp
from .problem import Problem, error_rate, majority_error


def classifier(model: nn.Module, data: tuple, optimizer: str, rate: float, steps: int = 150, size: int = 64) -> Problem:
    """Classes by cross-entropy."""
    train, held_out = tasks.chunks(*data, size)
    reference = majority_error(torch.cat([t for _, t in held_out]))
    return Problem(model, train, held_out, "cross_entropy", optimizer, rate, steps, error_rate, reference, "classes")


def regressor(
    model: nn.Module, data: tuple, optimizer: str, rate: float, steps: int = 150, loss: str = "mse"
) -> Problem:
    """Targets of the outputs' shape, 64 samples a batch."""
    train, held_out = tasks.chunks(*data, 64)
    t = torch.cat([t for _, t in held_out])
    score = F.mse_loss if loss == "mse" else F.l1_loss
    centre = t.mean(0) if loss == "mse" else t.median(0).values
    reference = float(score(centre.expand_as(t), t))
    return Problem(model, train, held_out, loss, optimizer, rate, steps, lambda o, y: float(score(o, y)), reference, "regression")  # fmt: skip  # noqa: E501


def mlp_relu(rate: float = 0.03) -> Problem:
    return classifier(mlp(64, 64, 64, 64, 10), tasks.digits(), "momentum", rate)


def mlp_tanh(rate: float = 0.01) -> Problem:
    model = mlp(64, *[48] * 6, 10, activation=nn.Tanh)
    for layer in model:
        if isinstance(layer, nn.Linear):
            nn.init.xavier_normal_(layer.weight, 5 / 3 if layer.out_features == 48 else 1.0)
            nn.init.zeros_(layer.bias)
    return classifier(model, tasks.digits(), "momentum", rate)


def mlp_sigmoid(rate: float = 0.03) -> Problem:
    """Sigmoid units whose preactivations have mean 0 and variance near 1."""
    model = mlp(64, 64, 64, 64, 10, activation=nn.Sigmoid)
    linear = [layer for layer in model if isinstance(layer, nn.Linear)]
    for number, layer in enumerate(linear):
        nn.init.orthogonal_(layer.weight, 1.0 if number == 0 else 4.5)
        nn.init.zeros_(layer.bias)
        if number:
            layer.bias.data = -0.5 * layer.weight.data.sum(1)
    return classifier(model, tasks.digits(), "momentum", rate)


def mlp_gelu_norm(rate: float = 3e-3) -> Problem:
    x, y = tasks.teacher(16, 4, 3)
    parts: list[nn.Module] = []
    for width in (16, 64, 64):
        parts += [nn.Linear(width, 64), nn.LayerNorm(64), nn.GELU()]
    return classifier(nn.Sequential(*parts, nn.Linear(64, 4)), (x, y.argmax(1)), "adamw", rate)


def residual_mlp(rate: float = 2e-3) -> Problem:
    def branch() -> nn.Module:
        return nn.Sequential(nn.LayerNorm(48), nn.Linear(48, 48), nn.ReLU(), nn.Linear(48, 48))

    blocks = [Residual(branch()) for _ in range(5)]
    model = nn.Sequential(nn.Linear(64, 48), *blocks, nn.LayerNorm(48), nn.Linear(48, 10))
    return classifier(model, tasks.digits(), "adam", rate)


def regression(rate: float = 3e-3) -> Problem:
    return regressor(mlp(8, 64, 64, 64, 1, activation=nn.SiLU), tasks.teacher(8, 1, 4), "adam", rate, 250)


def leaky_regression(rate: float = 0.03) -> Problem:
    def activation() -> nn.Module:
        return nn.LeakyReLU(0.1)

    return regressor(mlp(6, 64, 64, 3, activation=activation), tasks.teacher(6, 3, 5), "momentum", rate, 250)


def multi_label(rate: float = 5e-3) -> Problem:
    """Which of eight attributes a vector has."""
    x, y = tasks.teacher(12, 8, 6)
    train, held_out = tasks.chunks(x, (y > 0.3).float(), 64)
    t = torch.cat([t for _, t in held_out])
    reference = float(torch.minimum(t.mean(0), 1 - t.mean(0)).mean())

    def score(outputs: Tensor, targets: Tensor) -> float:
        return float(((outputs > 0) != (targets > 0.5)).double().mean())

    return Problem(mlp(12, 64, 64, 64, 8), train, held_out, "bce", "adam", rate, 200, score, reference, "binary")


def autoencoder(rate: float = 5e-3) -> Problem:
    x, _ = tasks.digits()
    model = nn.Sequential(mlp(64, 48, 12, activation=nn.Tanh), nn.Tanh(), mlp(12, 48, 64, activation=nn.Tanh))
    return regressor(model, (x, x), "adam", rate, 250)


class Vae(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.mean, self.log_variance = nn.Sequential(nn.Linear(64, 64), nn.ReLU()), nn.Linear(64, 8), nn.Linear(64, 8)  # fmt: skip  # noqa: E501
        self.decoder = mlp(8, 64, 64)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        h = self.encoder(x)
        m, v = self.mean(h), self.log_variance(h)
        return self.decoder(m + torch.randn_like(m) * (0.5 * v).exp()), m, v


def elbo(outputs: tuple[Tensor, Tensor, Tensor], x: Tensor) -> Tensor:
    y, m, v = outputs
    kl = 0.5 * (m.square() + v.exp() - v - 1).sum(1).mean()
    return (y - x).square().sum(1).mean() + kl


def vae(rate: float = 3e-3) -> Problem:
    x, _ = tasks.digits()
    train, held_out = tasks.chunks(x, x, 64)
    t = torch.cat([t for _, t in held_out])
    reference = float((t - t.mean(0)).square().sum(1).mean())
    return Problem(Vae(), train, held_out, elbo, "adam", rate, 250, lambda o, y: float(elbo(o, y)), reference)


class Pinn(nn.Module):
    """u(t) and the residual of u' = -2u + cos(3t) where u = t w(t) + 1, so that u(0) = 1."""

    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(1, 32, 32, 32, 1, activation=nn.Tanh)

    def forward(self, t: Tensor) -> Tensor:
        with torch.enable_grad():
            t = t.detach().requires_grad_()
            u = t * self.net(t) + 1
            slope = torch.autograd.grad(u.sum(), t, create_graph=True)[0]
        return slope + 2 * u - (3 * t).cos()


def residual_loss(residual: Tensor, targets: Tensor) -> Tensor:
    return (residual - targets).square().mean()


def pinn(rate: float = 1e-2) -> Problem:
    t = 3 * torch.rand(768, 1, generator=tasks.generator(7))
    train, held_out = tasks.chunks(t, torch.zeros_like(t), 64)
    points = torch.cat([x for x, _ in held_out])
    reference = float((2 - (3 * points).cos()).square().mean())  # of u = 1
    return Problem(Pinn(), train, held_out, residual_loss, "adam", rate, 250, lambda o, y: float(residual_loss(o, y)), reference)  # fmt: skip  # noqa: E501


class Siamese(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.net = mlp(64, 64, 64, 16)

    def forward(self, views: Tensor) -> Tensor:
        return F.normalize(self.net(views), dim=-1)


def info_nce(outputs: Tensor, targets: Tensor) -> Tensor:
    logits = outputs[:, 0] @ outputs[:, 1].t() / 0.1
    return F.cross_entropy(logits, targets)


def contrastive(rate: float = 3e-3) -> Problem:
    """Which two noisy halves are of the same picture."""
    x, _ = tasks.digits()
    g = tasks.generator(8)
    views = torch.stack([x * (torch.rand(x.shape, generator=g) < 0.6) for _ in range(2)], 1)
    train, held_out = tasks.chunks(views, torch.arange(len(x)) % 64, 64)
    return Problem(Siamese(), train, held_out, info_nce, "adam", rate, 200, lambda o, y: float(info_nce(o, y)), math.log(64))  # fmt: skip  # noqa: E501


def lora(rate: float = 1e-2) -> Problem:
    """Adapters on a network that was trained for other pictures: the same digits with their pixels in reverse order."""
    x, y = tasks.digits()
    base = mlp(64, 64, 64, 10)
    optimizer = torch.optim.Adam(base.parameters(), 3e-3)
    for step in range(80):
        part = slice(64 * (step % 20), 64 * (step % 20) + 64)
        optimizer.zero_grad()
        F.cross_entropy(base(x[part]), y[part]).backward()
        optimizer.step()
    base.zero_grad(set_to_none=True)
    model = nn.Sequential(*(Adapter(layer, 8) if isinstance(layer, nn.Linear) else layer for layer in base))
    return classifier(model, (x.flip(1), y), "adamw", rate, 200)


class Experts(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(8, 4)
        self.experts = nn.ModuleList(mlp(8, 32, 32, 2) for _ in range(4))

    def forward(self, x: Tensor) -> Tensor:
        weights = self.router(x).softmax(-1)
        return torch.stack([expert(x) for expert in self.experts], -1).mul(weights.unsqueeze(1)).sum(-1)


def experts(rate: float = 1e-2) -> Problem:
    return regressor(Experts(), tasks.teacher(8, 2, 9), "adam", rate, 250)


class Film(nn.Module):
    """A trunk whose units are scaled and shifted by a condition."""

    def __init__(self) -> None:
        super().__init__()
        self.trunk1, self.trunk2, self.head = nn.Linear(6, 48), nn.Linear(48, 48), nn.Linear(48, 1)
        self.condition = mlp(4, 32, 96)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        gain, shift = self.condition(condition).chunk(2, 1)
        h = self.relu1(self.trunk1(x))
        return self.head(self.relu2(self.trunk2(h) * (1 + gain) + shift))


def film(rate: float = 5e-3) -> Problem:
    x, y = tasks.teacher(10, 1, 10)
    return regressor(Film(), ((x[:, :6], x[:, 6:]), y), "adam", rate, 250)


class Hyper(nn.Module):
    """A network that computes the weights of another."""

    def __init__(self) -> None:
        super().__init__()
        self.generator, self.relu = mlp(4, 32, 6 * 16 + 16), nn.ReLU()
        self.bias = nn.Parameter(torch.zeros(16))

    def forward(self, x: Tensor, condition: Tensor) -> Tensor:
        made = self.generator(condition)
        first, last = made[:, :96].reshape(-1, 6, 16), made[:, 96:]
        hidden = self.relu((x.unsqueeze(1) @ first).squeeze(1) + self.bias)
        return (hidden * last).sum(1, keepdim=True)


def hypernetwork(rate: float = 1e-2) -> Problem:
    g = tasks.generator(11)
    x, c = torch.randn(1536, 6, generator=g), torch.randn(1536, 4, generator=g)
    y = (x[:, :4] * c).sum(1, keepdim=True).tanh() + 0.5 * (x[:, 4:5] * c[:, :1]).abs()
    return regressor(Hyper(), ((x, c), (y - y.mean()) / y.std()), "adam", rate, 250)


class Recommender(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.user, self.item = nn.Embedding(60, 16), nn.Embedding(40, 16)
        self.net = mlp(32, 32, 1)
        nn.init.normal_(self.user.weight, std=0.3), nn.init.normal_(self.item.weight, std=0.3)

    def forward(self, users: Tensor, items: Tensor) -> Tensor:
        u, i = self.user(users), self.item(items)
        return self.net(torch.cat([u, i], 1)) + (u * i).sum(1, keepdim=True)


def recommender(rate: float = 2e-2) -> Problem:
    g = tasks.generator(12)
    users, items = torch.randint(0, 60, (3072,), generator=g), torch.randint(0, 40, (3072,), generator=g)
    taste, kind = torch.randn(60, 3, generator=g), torch.randn(40, 3, generator=g)
    y = (taste[users] * kind[items]).sum(1, keepdim=True) + taste[users][:, :1]
    return regressor(Recommender(), ((users, items), (y - y.mean()) / y.std()), "adam", rate, 250)


def value_network(rate: float = 3e-3) -> Problem:
    """Rewards plus the discounted value that a fixed target network gives the next state."""
    x, reward = tasks.teacher(8, 1, 13)
    g = tasks.generator(14)
    a, b = torch.randn(8, 16, generator=g) / 8**0.5, torch.randn(16, 1, generator=g) / 4
    later = 0.8 * x + 0.2 * torch.randn(x.shape, generator=g)
    y = reward + 0.9 * (later @ a).tanh() @ b
    return regressor(mlp(8, 64, 64, 1, activation=nn.ELU), (x, (y - y.mean()) / y.std()), "rmsprop", rate, 250)


class PointSet(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.each, self.head = mlp(3, 48, 48, 48), mlp(96, 48, 1)

    def forward(self, points: Tensor) -> Tensor:
        h = self.each(points)
        return self.head(torch.cat([h.mean(1), h.amax(1)], 1))


def point_set(rate: float = 3e-3) -> Problem:
    """How far the points of a cloud are spread."""
    g = tasks.generator(15)
    spread = 0.3 + 1.5 * torch.rand(1024, 1, 3, generator=g)
    points = torch.randn(1024, 12, 3, generator=g) * spread
    y = points.norm(dim=2).amax(1, keepdim=True) + spread[:, :, 0]
    return regressor(PointSet(), (points, (y - y.mean()) / y.std()), "adam", rate, 200)


def siren(rate: float = 1e-3) -> Problem:
    """A picture as a function of the place, by sines."""
    g = tasks.generator(16)
    at = 2 * torch.rand(2048, 2, generator=g) - 1
    y = (6 * at[:, :1]).sin() * (5 * at[:, 1:]).cos() + 0.5 * (9 * (at[:, :1] + at[:, 1:])).sin()
    model = nn.Sequential(nn.Linear(2, 48), Sine(10), nn.Linear(48, 48), Sine(10), nn.Linear(48, 48), Sine(10), nn.Linear(48, 1))  # fmt: skip  # noqa: E501
    for number in (2, 4, 6):
        nn.init.uniform_(model[number].weight, -((6 / 48) ** 0.5) / 10, (6 / 48) ** 0.5 / 10)
    nn.init.uniform_(model[0].weight, -0.5, 0.5)
    return regressor(model, (at, y / y.std()), "adam", rate, 250)


class GaussianHead(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.trunk = nn.Sequential(mlp(8, 64, 64), nn.ReLU())
        self.mean, self.log_scale = nn.Linear(64, 2), nn.Linear(64, 2)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        h = self.trunk(x)
        return self.mean(h), self.log_scale(h)


def gaussian_nll(outputs: tuple[Tensor, Tensor], targets: Tensor) -> Tensor:
    mean, log_scale = outputs
    return (0.5 * ((targets - mean) / log_scale.exp()).square() + log_scale).mean()


def gaussian_policy(rate: float = 3e-3) -> Problem:
    """Behaviour cloning: mean and scale of the actions."""
    x, y = tasks.teacher(8, 2, 17)
    y = y + 0.1 * torch.randn(y.shape, generator=tasks.generator(18))
    train, held_out = tasks.chunks(x, y, 64)
    reference = 0.5 + 0.5 * math.log(1.01)
    return Problem(GaussianHead(), train, held_out, gaussian_nll, "adam", rate, 200, lambda o, t: float(gaussian_nll(o, t)), reference)  # fmt: skip  # noqa: E501
