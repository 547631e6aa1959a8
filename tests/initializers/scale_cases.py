"""Networks whose scales are searched, and the objectives by an independent float64 route."""

import copy
import math
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import functional_call
from torch.nn import functional as F
from torch.nn.attention import SDPBackend, sdpa_kernel


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 8), nn.Softplus(), nn.Linear(8, 3))


def cnn() -> nn.Module:
    convolutions = [nn.Conv2d(2, 4, 3, padding=1), nn.SiLU(), nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4)]
    return nn.Sequential(*convolutions, nn.GELU(), nn.Flatten(), nn.Linear(36, 3))


def bn_cnn() -> nn.Module:
    convolutions = [nn.Conv2d(2, 4, 3), nn.BatchNorm2d(4), nn.SiLU(), nn.Conv2d(4, 4, 3), nn.BatchNorm2d(4)]
    return nn.Sequential(*convolutions, nn.Tanh(), nn.Flatten(), nn.Linear(4, 3))


class Transformer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        layer = nn.TransformerEncoderLayer(6, 2, 8, dropout=0.2, batch_first=True, activation="gelu")
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.shifts = nn.ParameterList([nn.Parameter(torch.randn(6)), nn.Parameter(torch.zeros(6))])
        self.head = nn.Linear(6, 3)

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.encoder(x + self.shifts[0] + self.shifts[1]).mean(1))


NETWORKS: dict[str, tuple[Callable[[], nn.Module], tuple[int, ...]]] = {
    "mlp": (mlp, (6,)),
    "cnn": (cnn, (2, 5, 5)),
    "bn-cnn": (bn_cnn, (2, 5, 5)),
    "transformer": (Transformer, (4, 6)),
}


def made(name: str) -> tuple[nn.Module, Tensor, Tensor]:
    build, shape = NETWORKS[name]
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = build().double()
        for p in model.parameters():  # affine parameters away from one and zero
            if p.any():
                p.data += 0.1 * torch.randn_like(p)
    x = normal(10, *shape).double()
    return model, x, torch.arange(10) % 3


def plain_gradient(model: nn.Module, scales: dict[str, float], x: Tensor, y: Tensor) -> dict[str, Tensor]:
    """The gradient over all parameters at scaled values, by substitution into a copy without dropout."""
    model = copy.deepcopy(model)
    for module in model.modules():
        if isinstance(module, (nn.Dropout, nn.MultiheadAttention)):
            setattr(module, "p" if isinstance(module, nn.Dropout) else "dropout", 0.0)
    values = {n: (p.detach() * scales.get(n, 1.0)).requires_grad_() for n, p in model.named_parameters()}
    with sdpa_kernel(SDPBackend.MATH):
        loss = F.cross_entropy(functional_call(model, values, (x,)), y)
    return dict(zip(values, torch.autograd.grad(loss, list(values.values())), strict=True))


def flat(gradient: dict[str, Tensor]) -> Tensor:
    return torch.cat([g.flatten() for g in gradient.values()])


def central(function: Callable[[dict[str, float]], float], names: list[str], step: float = 1e-5) -> Tensor:
    """Derivatives over the logarithms of the scales, by central differences."""
    found = []
    for name in names:
        up, down = function({name: math.exp(step)}), function({name: math.exp(-step)})
        found.append((up - down) / (2 * step))
    return torch.tensor(found, dtype=torch.float64)
