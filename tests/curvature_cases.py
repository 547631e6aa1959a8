"""Small networks, and their curvature as dense float64 matrices, row by row by plain autograd."""

import copy
from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.nn import functional as F

Case = tuple[nn.Module, Tensor, Tensor, str]


class Residual(nn.Module):
    def __init__(self, width: int):
        super().__init__()
        self.conv1 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, padding=1, bias=False)
        self.norm2 = nn.BatchNorm2d(width)

    def forward(self, x):
        inner = torch.relu_(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(inner)))


class Pooled(nn.Module):
    """Mean over an axis, then a linear readout; a recurrent body's states are dropped."""

    def __init__(self, body: nn.Module, width: int, outputs: int):
        super().__init__()
        self.body, self.head = body, nn.Linear(width, outputs)

    def forward(self, x):
        hidden = self.body(x)
        hidden = hidden[0] if isinstance(hidden, tuple) else hidden
        return self.head(hidden.mean(1))


def images(classes: int = 3, samples: int = 8) -> tuple[Tensor, Tensor]:
    return torch.randn(samples, 2, 6, 6), torch.randint(classes, (samples,))


def mlp() -> Case:
    net = nn.Sequential(nn.Linear(6, 12), nn.ReLU(), nn.Dropout(0.5), nn.Linear(12, 12), nn.Tanh(), nn.Linear(12, 4))
    return net, torch.randn(16, 6), torch.randint(4, (16,)), "cross_entropy"


def bn_resnet() -> Case:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3),
        nn.BatchNorm2d(4),
        nn.ReLU(),
        Residual(4),
        nn.AdaptiveAvgPool2d(1),
        nn.Flatten(),
        nn.Linear(4, 3),
    )
    return net, *images(), "cross_entropy"


def group_norm_cnn() -> Case:
    net = nn.Sequential(
        nn.Conv2d(2, 4, 3), nn.GroupNorm(2, 4), nn.GELU(), nn.Conv2d(4, 4, 3, groups=2), nn.GroupNorm(2, 4), nn.SiLU()
    )
    return nn.Sequential(*net, nn.Flatten(), nn.Linear(16, 3)), *images(), "cross_entropy"


def transformer() -> Case:
    layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=True)
    net = Pooled(nn.TransformerEncoder(layer, 1, enable_nested_tensor=False), 8, 3)
    return net, torch.randn(6, 5, 8), torch.randint(3, (6,)), "cross_entropy"


def lstm() -> Case:
    net = Pooled(nn.LSTM(4, 6, num_layers=2, batch_first=True, dropout=0.3), 6, 3)
    return net, torch.randn(7, 5, 4), torch.randint(3, (7,)), "cross_entropy"


def regressor() -> Case:
    net = nn.Sequential(nn.Linear(5, 10), nn.LayerNorm(10), nn.Softplus(), nn.Linear(10, 1))
    return net, torch.randn(20, 5), torch.randn(20, 1), "mse"


NETS: dict[str, Callable[[], Case]] = {
    "mlp": mlp,
    "bn-resnet": bn_resnet,
    "group-norm": group_norm_cnn,
    "transformer": transformer,
    "lstm": lstm,
    "regressor": regressor,
}


def net(name: str, seed: int = 0) -> Case:
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return NETS[name]()


LOSSES: dict[str, Callable[[Tensor, Tensor], Tensor]] = {
    "cross_entropy": F.cross_entropy,
    "mse": F.mse_loss,
    "bce": F.binary_cross_entropy_with_logits,
}


def doubled(model: nn.Module) -> nn.Module:
    """A float64 copy without dropout, attention in plain operations."""
    model = copy.deepcopy(model).double()
    for module in model.modules():
        if isinstance(module, nn.Dropout):
            module.p = 0.0
        if isinstance(module, (nn.MultiheadAttention, nn.LSTM)):
            module.dropout = 0.0
    return model


def rows(outputs: Tensor, parameters: list[Tensor], **options) -> Tensor:
    """The Jacobian, one backward pass per entry."""
    found = []
    for entry in outputs.flatten():
        grads = torch.autograd.grad(entry, parameters, retain_graph=True, allow_unused=True, **options)
        pairs = zip(grads, parameters, strict=True)
        found.append(torch.cat([(torch.zeros_like(p) if g is None else g).flatten() for g, p in pairs]))
    return torch.stack(found)


def ggn(model: nn.Module, x: Tensor, y: Tensor, loss) -> Tensor:
    """Jᵀ H J with J row by row and H by torch's dense Hessian of the loss."""
    model, loss = doubled(model), LOSSES.get(loss, loss)
    y = y.double() if y.is_floating_point() else y
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        f = model(x.double())
    jacobian = rows(f, [p for p in model.parameters() if p.requires_grad])
    n = f.numel()
    h = torch.autograd.functional.hessian(lambda out: loss(out, y), f.detach()).reshape(n, n)
    return jacobian.T @ h @ jacobian


def hessian(model: nn.Module, x: Tensor, y: Tensor, loss) -> Tensor:
    """The gradient's Jacobian, row by row."""
    model, loss = doubled(model), LOSSES.get(loss, loss)
    y = y.double() if y.is_floating_point() else y
    parameters = [p for p in model.parameters() if p.requires_grad]
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.MATH):
        value = loss(model(x.double()), y)
    grads = torch.autograd.grad(value, parameters, create_graph=True)
    return rows(torch.cat([g.flatten() for g in grads]), parameters)


def largest(matrix: Tensor, k: int = 1) -> list[float]:
    return torch.linalg.eigvalsh((matrix + matrix.T) / 2).flip(0)[:k].tolist()
