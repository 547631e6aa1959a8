"""Models, losses and batches that the tests share: one row for everything that a network may do."""

import warnings
from collections.abc import Callable
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F
from torch.nn.utils import parametrizations
from torch.utils.checkpoint import checkpoint

from theta0.diagnosis import Diagnosis, diagnose

Layers = tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Case:
    """A network, what it is trained on, and the layers that it executes, in order, with their kinds."""

    name: str
    build: Callable[[], nn.Module]
    data: Callable[[], list[Any]]
    loss: Any
    layers: Layers

    def model(self) -> nn.Module:
        with torch.random.fork_rng(), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # torch deprecates its old weight_norm
            torch.manual_seed(0)
            return self.build()

    def batches(self) -> list[Any]:
        return self.data()


def unprobed(*given: Any, **options: Any) -> Diagnosis:
    """A diagnosis without training runs: what is tested is what it measures and judges."""
    return diagnose(*given, probe_steps=0, **options)


def normal(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed))


def labels(*shape: int, classes: int = 3, seed: int = 1) -> Tensor:
    return torch.randint(classes, shape, generator=torch.Generator().manual_seed(seed))


def classified(*shape: int, count: int = 2, classes: int = 3) -> Callable[[], list[Any]]:
    """Batches of normal inputs with labels, the batches of different sizes."""
    n, *rest = shape
    return lambda: [
        (normal(n + i, *rest, seed=i) + 0.3, labels(n + i, classes=classes, seed=9 + i)) for i in range(count)
    ]


def words(*, count: int = 2) -> list[Any]:
    return [(labels(6 + i, 5, classes=11, seed=i), labels(6 + i, seed=9 + i)) for i in range(count)]


class Residual(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.blocks = nn.ModuleList(nn.Sequential(nn.ReLU(), nn.Linear(8, 8)) for _ in range(3))
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = x + block(x)
        return self.head(x)


class Transformer(nn.Module):
    def __init__(self, *, batch_first: bool) -> None:
        super().__init__()
        self.batch_first = batch_first
        self.embed = nn.Embedding(11, 8)
        layer = nn.TransformerEncoderLayer(8, 2, 12, dropout=0.1, batch_first=batch_first)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(8, 3)

    def forward(self, tokens):
        x = self.embed(tokens)
        x = self.encoder(x) if self.batch_first else self.encoder(x.transpose(0, 1)).transpose(0, 1)
        return self.head(x.mean(1))


class Recurrent(nn.Module):
    def __init__(self, kind: type[nn.RNNBase]) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 6)
        self.rnn = kind(6, 7, batch_first=True)
        self.head = nn.Linear(7, 3)

    def forward(self, tokens):
        return self.head(self.rnn(self.embed(tokens))[0][:, -1])


class Tied(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.mix = nn.Linear(8, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.embed.weight

    def forward(self, tokens):
        return self.head(torch.tanh(self.mix(self.embed(tokens))).mean(1))


class Twice(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.head = nn.Linear(6, 3)  # registered before the layers that run first
        self.shared = nn.Linear(6, 6)

    def forward(self, x):
        return self.head(torch.tanh(self.shared(torch.tanh(self.shared(x)))))


class Bare(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(8, 6) / 2)
        self.shift = nn.Parameter(torch.zeros(8))
        self.second = nn.Parameter(torch.randn(8, 3) / 2)
        self.gain = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.gain * (F.relu(F.linear(x, self.first, self.shift)) @ self.second)


class Functional(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.last = nn.Linear(7, 3)
        self.middle = nn.Linear(8, 7)
        self.first = nn.Linear(6, 8)
        self.never = nn.Linear(6, 6)

    def forward(self, x):
        return self.last(torch.sigmoid(self.middle(self.first(x).tanh())))


class TwoInputs(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Linear(4, 6)
        self.right = nn.Linear(5, 6)
        self.head = nn.Linear(6, 3)

    def forward(self, a, b):
        return self.head(F.relu(self.left(a) + self.right(b)))


class TupleOutput(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        h = F.gelu(self.body(x))
        return self.head(h), {"hidden": h}


class HuggingFaceStyle(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.body = nn.Linear(6, 8)
        self.head = nn.Linear(8, 3)

    def forward(self, features, labels=None):
        logits = self.head(F.silu(self.body(features)))
        return SimpleNamespace(loss=None if labels is None else F.cross_entropy(logits, labels), logits=logits)


class Checkpointed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.stem = nn.Linear(6, 8)
        self.block = nn.Sequential(nn.Linear(8, 8), nn.ReLU())
        self.head = nn.Linear(8, 3)

    def forward(self, x):
        return self.head(checkpoint(self.block, self.stem(x), use_reentrant=False))


def mlp() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8), nn.ReLU(), nn.Linear(8, 8), nn.ReLU(), nn.Linear(8, 3))


def cnn() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(4, 6, 3, groups=2, stride=2, dilation=2, padding=2),
        nn.ReLU(),
        nn.Conv2d(6, 6, (1, 3), groups=6, padding="same"),
        nn.ReLU(),
        nn.AdaptiveAvgPool2d(2),
        nn.Flatten(),
        nn.Linear(24, 3),
    )


def other_convolutions() -> nn.Sequential:
    return nn.Sequential(
        nn.Conv1d(2, 4, 3, padding=1, padding_mode="circular"),
        nn.Tanh(),
        nn.ConvTranspose1d(4, 4, 3, stride=2),
        nn.Tanh(),
        nn.Unflatten(1, (2, 2, 1)),
        nn.Conv3d(2, 3, (2, 1, 3), stride=(1, 1, 2)),
        nn.Flatten(),
        nn.Linear(18, 3),
    )


def norm_and_dropout() -> nn.Sequential:
    return nn.Sequential(nn.Linear(6, 8, bias=False), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))


def frozen() -> nn.Sequential:
    model = mlp()
    model[0].requires_grad_(False)
    return model


def mixed_modes() -> nn.Sequential:
    model = nn.Sequential(
        nn.Linear(6, 8),
        nn.BatchNorm1d(8),
        nn.ReLU(),
        nn.Linear(8, 8),
        nn.BatchNorm1d(8),
        nn.Dropout(0.2),
        nn.Linear(8, 3),
    )
    model[1].eval()
    return model


def with_norm(wrap: Callable[..., Any]) -> Callable[[], nn.Module]:
    return lambda: nn.Sequential(wrap(nn.Linear(6, 8)), nn.ReLU(), wrap(nn.Linear(8, 8)), nn.ReLU(), nn.Linear(8, 3))


def constrained() -> nn.Sequential:
    from theta0.parametrizations import linearly_constrained  # after the import hook is in place

    return nn.Sequential(
        linearly_constrained(nn.Conv1d(1, 4, 3)), nn.Sigmoid(), nn.Flatten(),
        linearly_constrained(nn.Linear(16, 8), coordinates="orthonormal"), nn.Sigmoid(), nn.Linear(8, 3),
    )  # fmt: skip


def lazy() -> nn.Sequential:
    return nn.Sequential(nn.LazyLinear(8), nn.LazyBatchNorm1d(), nn.ReLU(), nn.LazyLinear(3))


def in_place() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), nn.ReLU(inplace=True), nn.Linear(8, 8), nn.ReLU(inplace=True), nn.Linear(8, 3)
    )


def compiled() -> nn.Module:
    return torch.compile(mlp(), backend="eager")  # type: ignore[return-value]


def inside_compiled() -> nn.Sequential:
    return nn.Sequential(
        nn.Linear(6, 8), torch.compile(nn.Sequential(nn.ReLU(), nn.Linear(8, 8)), backend="eager"), nn.Linear(8, 3)
    )


def half() -> nn.Sequential:
    return mlp().half()


def zero_head() -> nn.Sequential:
    model = mlp()
    nn.init.zeros_(model[4].weight)
    return model


def first_of(outputs: Any, targets: Tensor) -> Tensor:
    return F.cross_entropy(outputs[0], targets)


def mean_squared(outputs: Tensor, targets: Tensor) -> Tensor:
    return F.mse_loss(outputs, targets)


def pairs() -> list[Any]:
    return [((normal(5 + i, 4, seed=i), normal(5 + i, 5, seed=3 + i)), labels(5 + i, seed=9 + i)) for i in range(2)]


def regressed() -> list[Any]:
    return [(normal(5 + i, 5, seed=i), normal(5 + i, 3, seed=5 + i)) for i in range(2)]


def token_dicts() -> list[Any]:
    return [{"tokens": tokens, "labels": wanted} for tokens, wanted in words()]


def feature_dicts() -> list[Any]:
    return [{"features": normal(5 + i, 6, seed=i), "labels": labels(5 + i, seed=9 + i)} for i in range(2)]


def linear(*paths: str, kind: str = "linear") -> Layers:
    return tuple((path, kind) for path in paths)


def encoder() -> Layers:
    parts = ("self_attn.in_proj", "self_attn.out_proj", "linear1", "linear2")
    return linear(*(f"encoder.layers.{i}.{part}" for i in range(2) for part in parts))


flat = classified(7, 6)
of_mlp = linear("0", "2", "4")
embed, head = linear("embed", kind="embedding"), linear("head")
rnn = linear("rnn", kind="recurrent")

CASES: tuple[Case, ...] = (
    Case("mlp", mlp, flat, "cross_entropy", of_mlp),
    Case("single linear", lambda: nn.Linear(5, 3), regressed, "mse", linear("(model)")),
    Case(
        "cnn", cnn, classified(5, 2, 7, 7), nn.CrossEntropyLoss(), linear("0", "2", "4", kind="conv") + linear("8")
    ),
    Case(
        "other convolutions",
        other_convolutions,
        classified(5, 2, 6),
        "cross_entropy",
        linear("0", kind="conv") + linear("2", kind="conv_transpose") + linear("5", kind="conv") + linear("7"),
    ),
    Case("norm and dropout", norm_and_dropout, flat, "cross_entropy", linear("0", "4")),
    Case(
        "residual", Residual, flat, "cross_entropy", linear("stem", "blocks.0.1", "blocks.1.1", "blocks.2.1", "head")
    ),
    Case(
        "transformer, batch first",
        lambda: Transformer(batch_first=True),
        token_dicts,
        "cross_entropy",
        embed + encoder() + head,
    ),
    Case(
        "transformer, length first",
        lambda: Transformer(batch_first=False),
        token_dicts,
        "cross_entropy",
        embed + encoder() + head,
    ),
    Case("lstm", lambda: Recurrent(nn.LSTM), words, "cross_entropy", embed + rnn + head),
    Case("gru", lambda: Recurrent(nn.GRU), words, "cross_entropy", embed + rnn + head),
    Case("tied", Tied, words, "cross_entropy", embed + linear("mix", "head")),
    Case("frozen", frozen, flat, "cross_entropy", of_mlp),
    Case("twice", Twice, flat, "cross_entropy", linear("shared", "head")),
    Case("bare", Bare, flat, "cross_entropy", linear("first") + linear("second", kind="matmul")),
    Case("weight_norm, old", with_norm(nn.utils.weight_norm), flat, "cross_entropy", of_mlp),
    Case("weight_norm", with_norm(parametrizations.weight_norm), flat, "cross_entropy", of_mlp),
    Case("spectral_norm, old", with_norm(nn.utils.spectral_norm), flat, "cross_entropy", of_mlp),
    Case("spectral_norm", with_norm(parametrizations.spectral_norm), flat, "cross_entropy", of_mlp),
    Case("constrained", constrained, classified(5, 1, 6), "cross_entropy", linear("0", kind="conv") + linear("3", "5")),
    Case("lazy", lazy, flat, "cross_entropy", linear("0", "3")),
    Case("mixed modes", mixed_modes, flat, "cross_entropy", linear("0", "3", "6")),
    Case("in place", in_place, flat, "cross_entropy", of_mlp),
    Case("functional", Functional, flat, F.cross_entropy, linear("first", "middle", "last")),
    Case("two inputs", TwoInputs, pairs, "cross_entropy", linear("left", "right", "head")),
    Case("tuple output", TupleOutput, flat, first_of, linear("body", "head")),
    Case("own loss", HuggingFaceStyle, feature_dicts, None, linear("body", "head")),
    Case("checkpointed", Checkpointed, flat, "cross_entropy", linear("stem", "block.0", "head")),
    Case("compiled", compiled, flat, "cross_entropy", of_mlp),
    Case("compiled inside", inside_compiled, flat, "cross_entropy", linear("0", "1._orig_mod.1", "2")),
    Case("half", half, flat, "cross_entropy", of_mlp),
    Case("regression", lambda: nn.Sequential(nn.Linear(5, 4), nn.Tanh(), nn.Linear(4, 3)), regressed, mean_squared,
         linear("0", "2")),
    Case("zero head", zero_head, flat, "cross_entropy", of_mlp),
)  # fmt: skip

# What may go wrong in a transaction: buffers that a pass moves, dictionaries as batches, fused recurrence, ties, frozen
# parameters, old hooks, parametrizations, wrappers.
DIVERSE = {
    "cnn", "norm and dropout", "transformer, length first", "lstm", "tied", "frozen", "spectral_norm, old",
    "constrained", "compiled inside",
}  # fmt: skip
SAMPLED = [c if c.name in DIVERSE else pytest.param(c, marks=pytest.mark.slow) for c in CASES]

each_case = pytest.mark.parametrize("case", CASES, ids=lambda case: case.name)
each_diverse_case = pytest.mark.parametrize("case", SAMPLED, ids=lambda case: case.name)  # all of them in test-all


def case(name: str) -> Case:
    return next(c for c in CASES if c.name == name)
