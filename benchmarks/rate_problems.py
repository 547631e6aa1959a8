"""Five small real problems for learning rates: (model, batches, loss), the same every time."""

import inspect
import textwrap
from collections.abc import Callable

import torch
from sklearn.datasets import load_diabetes, load_digits
from torch import Tensor, nn

Problem = tuple[nn.Module, list[tuple[Tensor, Tensor]], str]


class Residual(nn.Module):
    """x + two convolutions with batch normalisation."""

    def __init__(self, width: int):
        super().__init__()
        self.inner = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False),
            nn.BatchNorm2d(width),
        )

    def forward(self, x: Tensor) -> Tensor:
        """Images to images."""
        return torch.relu(x + self.inner(x))


class Characters(nn.Module):
    """A causal transformer of two layers; logits are N × characters × positions."""

    def __init__(self, characters: int, length: int, width: int = 32):
        super().__init__()
        self.embedding = nn.Embedding(characters, width)
        self.position = nn.Parameter(0.02 * torch.randn(length, width))
        layer = nn.TransformerEncoderLayer(width, 4, 4 * width, dropout=0.0, batch_first=True, norm_first=True)
        self.body = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(width, characters)
        self.register_buffer("mask", nn.Transformer.generate_square_subsequent_mask(length))

    def forward(self, text: Tensor) -> Tensor:
        """Character codes to logits."""
        hidden = self.body(self.embedding(text) + self.position, mask=self.mask)
        return self.head(hidden).transpose(1, 2)


def cut(x: Tensor, y: Tensor, size: int, count: int) -> list[tuple[Tensor, Tensor]]:
    order = torch.randperm(len(x), generator=torch.Generator().manual_seed(0))[: size * count]
    return [(x[part], y[part]) for part in order.split(size)]


def digits(shape: tuple[int, ...], size: int = 128, count: int = 12) -> list[tuple[Tensor, Tensor]]:
    data = load_digits()
    x = torch.tensor(data.data, dtype=torch.float32).reshape(-1, *shape) / 16
    return cut((x - x.mean()) / x.std(), torch.tensor(data.target), size, count)


def digits_mlp() -> Problem:
    layers = [nn.Linear(64, 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU(), nn.Linear(128, 10)]
    return nn.Sequential(*layers), digits((64,)), "cross_entropy"


def digits_cnn() -> Problem:
    model = nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(512, 10),
    )
    return model, digits((1, 8, 8)), "cross_entropy"


def digits_bn_resnet() -> Problem:
    stem = [nn.Conv2d(1, 16, 3, padding=1, bias=False), nn.BatchNorm2d(16), nn.ReLU()]
    head = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return nn.Sequential(*stem, Residual(16), Residual(16), *head), digits((1, 8, 8)), "cross_entropy"


def characters() -> Problem:
    text = inspect.getsource(textwrap) + inspect.getsource(inspect)
    alphabet = sorted(set(text))
    codes = torch.tensor([alphabet.index(c) for c in text[:40000]])
    windows = codes.unfold(0, 33, 16)
    return Characters(len(alphabet), 32), cut(windows[:, :-1], windows[:, 1:], 32, 12), "cross_entropy"


def diabetes() -> Problem:
    data = load_diabetes()
    x, y = torch.tensor(data.data, dtype=torch.float32), torch.tensor(data.target, dtype=torch.float32)[:, None]
    x, y = (x - x.mean(0)) / x.std(0), (y - y.mean()) / y.std()
    layers = [nn.Linear(10, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1)]
    return nn.Sequential(*layers), cut(x, y, 64, 6), "mse"


PROBLEMS: dict[str, Callable[[], Problem]] = {
    "digits MLP": digits_mlp,
    "digits CNN": digits_cnn,
    "digits BN-ResNet": digits_bn_resnet,
    "transformer on characters": characters,
    "diabetes regression": diabetes,
}


def problem(name: str, seed: int = 0) -> Problem:
    """The problem, drawn without touching the global random state."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        return PROBLEMS[name]()
