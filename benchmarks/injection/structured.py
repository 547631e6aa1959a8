"""Networks on pictures, sequences and graphs."""

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from . import tasks
from .blocks import Attention, Block, Function, Mixer, Residual, patches
from .problem import Problem, error_rate, majority_error, token_cross_entropy
from .vectors import classifier, regressor


def pictures() -> tuple[Tensor, Tensor]:
    x, y = tasks.digits()
    return x.reshape(-1, 1, 8, 8), y


def cnn(rate: float = 0.02) -> Problem:
    layers = (nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU(), nn.Conv2d(24, 32, 3, 2, 1))  # fmt: skip  # noqa: E501
    return classifier(
        nn.Sequential(*layers, nn.ReLU(), nn.Flatten(), nn.Linear(128, 10)), pictures(), "momentum", rate, 100, 32
    )


def conv(a: int, b: int, stride: int = 1, groups: int = 1, size: int = 3) -> list[nn.Module]:
    return [nn.Conv2d(a, b, size, stride, size // 2, groups=groups, bias=False), nn.BatchNorm2d(b)]


def cnn_batch_norm(rate: float = 0.05) -> Problem:
    layers = [*conv(1, 12), nn.ReLU(), *conv(12, 24, 2), nn.ReLU(), *conv(24, 32, 2), nn.ReLU()]
    return classifier(nn.Sequential(*layers, nn.Flatten(), nn.Linear(128, 10)), pictures(), "momentum", rate, 80, 32)


def resnet(rate: float = 0.05) -> Problem:
    def block(a: int, b: int, stride: int) -> nn.Module:
        branch = nn.Sequential(*conv(a, b, stride), nn.ReLU(), *conv(b, b))
        same = a == b and stride == 1
        return nn.Sequential(Residual(branch, None if same else nn.Sequential(*conv(a, b, stride, size=1))), nn.ReLU())

    body = [block(8, 8, 1), block(8, 16, 2), block(16, 16, 1)]
    pool = [nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10)]
    return classifier(nn.Sequential(*conv(1, 8), nn.ReLU(), *body, *pool), pictures(), "momentum", rate, 80, 24)


def depthwise_cnn(rate: float = 5e-3) -> Problem:
    def separable(a: int, b: int, stride: int) -> list[nn.Module]:
        return [*conv(a, a, stride, groups=a), nn.ReLU6(), *conv(a, b, size=1), nn.ReLU6()]

    layers = [*conv(1, 16), nn.ReLU6(), *separable(16, 24, 2), *separable(24, 32, 1), nn.AdaptiveAvgPool2d(1)]
    return classifier(nn.Sequential(*layers, nn.Flatten(), nn.Linear(32, 10)), pictures(), "adam", rate, 100, 32)


def group_norm_cnn(rate: float = 3e-3) -> Problem:
    layers: list[nn.Module] = []
    for a, b, stride in ((1, 8, 1), (8, 16, 2), (16, 16, 2)):
        layers += [nn.Conv2d(a, b, 3, stride, 1), nn.GroupNorm(4, b), nn.SiLU()]
    return classifier(nn.Sequential(*layers, nn.Flatten(), nn.Linear(64, 10)), pictures(), "adamw", rate, 100, 32)


class Last(nn.Module):
    """A recurrent layer that is read at its last step."""

    def __init__(self, recurrent: nn.Module, head: nn.Module) -> None:
        super().__init__()
        self.recurrent, self.head = recurrent, head

    def forward(self, x: Tensor) -> Tensor:
        return self.head(self.recurrent(x)[0][:, -1])


def lstm(rate: float = 1e-2) -> Problem:
    x, label, _ = tasks.waves(14, 22)
    return classifier(Last(nn.LSTM(1, 32, batch_first=True), nn.Linear(32, 4)), (x, label), "adam", rate, 150)


def gru(rate: float = 1e-2) -> Problem:
    x, _, later = tasks.waves(14, 23)
    return regressor(Last(nn.GRU(1, 32, batch_first=True), nn.Linear(32, 1)), (x, later), "adam", rate, 120)


def elman(rate: float = 4e-3) -> Problem:
    x, label, _ = tasks.waves(10, 24)
    return classifier(Last(nn.RNN(1, 48, batch_first=True), nn.Linear(48, 4)), (x, label), "adam", rate, 200)


def temporal_cnn(rate: float = 3e-3) -> Problem:
    x, _, later = tasks.waves(16, 25)
    layers: list[nn.Module] = []
    for a, dilation in ((1, 1), (24, 2), (24, 4)):
        layers += [nn.ConstantPad1d((2 * dilation, 0), 0.0), nn.Conv1d(a, 24, 3, dilation=dilation), nn.ReLU()]
    model = nn.Sequential(Function(swapped), *layers, Function(last), nn.Linear(24, 1))
    return regressor(model, (x, later), "adam", rate, 120, "l1")


def swapped(x: Tensor) -> Tensor:
    return x.transpose(1, 2)


def last(x: Tensor) -> Tensor:
    return x[:, :, -1]


class Encoder(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(24, 32), nn.Parameter(0.1 * torch.randn(12, 32))
        self.blocks = nn.ModuleList(Block(32, 4) for _ in range(2))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 4)

    def forward(self, ids: Tensor, used: Tensor) -> Tensor:
        x = self.embedding(ids) + self.place
        for block in self.blocks:
            x = block(x, used)
        share = used.unsqueeze(-1) / used.sum(1)[:, None, None]
        return self.head((self.norm(x) * share).sum(1))


def encoder(rate: float = 3e-3) -> Problem:
    ids, used, label = tasks.votes(24, 12, 4, 26)
    return classifier(Encoder(), ((ids, used), label), "adamw", rate, 100, 32)


class Pooled(nn.Module):
    """Attention with padding, pooled by attention: the mask decides what is read."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.query = nn.Embedding(24, 32), nn.Parameter(torch.randn(32))
        self.attention, self.relu, self.head = Attention(32, 2), nn.ReLU(), nn.Linear(32, 4)

    def forward(self, ids: Tensor, used: Tensor) -> Tensor:
        x = self.embedding(ids)
        x = x + self.relu(self.attention(x, used))
        weights = (x @ self.query / 32**0.5).masked_fill(~used, -1e9).softmax(1)
        return self.head((weights.unsqueeze(-1) * x).sum(1))


def attention_pooling(rate: float = 1e-2) -> Problem:
    ids, used, label = tasks.votes(24, 10, 4, 27)
    return classifier(Pooled(), ((ids, used), label), "adam", rate, 120)


class Language(nn.Module):
    def __init__(self, tied: bool, depth: int = 2) -> None:
        super().__init__()
        self.embedding, self.place = nn.Embedding(16, 32), nn.Parameter(0.02 * torch.randn(12, 32))
        self.blocks = nn.ModuleList(Block(32, 4, causal=True) for _ in range(depth))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 16, bias=False)
        nn.init.normal_(self.embedding.weight, std=0.1 if tied else 1.0)
        if tied:
            self.head.weight = self.embedding.weight

    def forward(self, ids: Tensor) -> Tensor:
        x = self.embedding(ids) + self.place
        for block in self.blocks:
            x = block(x)
        return self.head(self.norm(x))


def language_model(model: nn.Module, seed: int, rate: float, optimizer: str = "adamw") -> Problem:
    text = tasks.language(16, 12, seed)
    train, held_out = tasks.chunks(text[:, :-1], text[:, 1:].contiguous(), 24)
    reference = majority_error(torch.cat([t for _, t in held_out]))
    return Problem(model, train, held_out, token_cross_entropy, optimizer, rate, 120, error_rate, reference, "tokens")


def decoder(rate: float = 3e-3) -> Problem:
    return language_model(Language(tied=False), 28, rate)


def tied_decoder(rate: float = 3e-3) -> Problem:
    return language_model(Language(tied=True), 29, rate)


class RecurrentLanguage(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embedding, self.recurrent = nn.Embedding(16, 24), nn.GRU(24, 48, batch_first=True)
        self.head = nn.Linear(48, 16)

    def forward(self, ids: Tensor) -> Tensor:
        return self.head(self.recurrent(self.embedding(ids))[0])


def recurrent_language(rate: float = 1e-2) -> Problem:
    return language_model(RecurrentLanguage(), 30, rate, "adam")


class TorchEncoder(nn.Module):
    """torch's own encoder layers, normalised after each branch."""

    def __init__(self) -> None:
        super().__init__()
        self.embedding = nn.Embedding(24, 32)
        layer = nn.TransformerEncoderLayer(32, 4, 64, dropout=0.0, batch_first=True)
        self.encoder = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        for name, p in self.encoder.named_parameters():  # the copies of one layer are drawn anew
            if p.dim() > 1:
                nn.init.xavier_uniform_(p)
            assert name
        self.head = nn.Linear(32, 4)

    def forward(self, ids: Tensor, used: Tensor) -> Tensor:
        x = self.encoder(self.embedding(ids), src_key_padding_mask=~used)
        return self.head((x * used.unsqueeze(-1)).sum(1) / used.sum(1, keepdim=True))


def torch_encoder(rate: float = 1e-3) -> Problem:
    ids, used, label = tasks.votes(24, 12, 4, 31)
    return classifier(TorchEncoder(), ((ids, used), label), "adam", rate, 100, 24)


class Vit(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.patch, self.token = nn.Linear(4, 32), nn.Parameter(0.02 * torch.randn(1, 1, 32))
        self.place = nn.Parameter(0.1 * torch.randn(17, 32))
        self.blocks = nn.Sequential(Block(32, 4), Block(32, 4))
        self.norm, self.head = nn.LayerNorm(32), nn.Linear(32, 10)

    def forward(self, x: Tensor) -> Tensor:
        x = self.patch(patches(x, 2))
        x = torch.cat([self.token.expand(len(x), -1, -1), x], 1) + self.place
        return self.head(self.norm(self.blocks(x))[:, 0])


def vit(rate: float = 3e-3) -> Problem:
    return classifier(Vit(), pictures(), "adamw", rate, 120, 20)


def mixer(rate: float = 3e-3) -> Problem:
    body = [Function(two_by_two), nn.Linear(4, 32), Mixer(16, 32), Mixer(16, 32), nn.LayerNorm(32)]
    return classifier(nn.Sequential(*body, Function(over_tokens), nn.Linear(32, 10)), pictures(), "adam", rate, 150, 32)


def two_by_two(x: Tensor) -> Tensor:
    return patches(x, 2)


def over_tokens(x: Tensor) -> Tensor:
    return x.mean(1)


class GraphNet(nn.Module):
    """Two rounds of averaging over neighbours."""

    def __init__(self) -> None:
        super().__init__()
        self.first, self.second, self.head = nn.Linear(6, 32), nn.Linear(32, 32), nn.Linear(32, 3)
        self.relu1, self.relu2 = nn.ReLU(), nn.ReLU()

    def forward(self, x: Tensor, edges: Tensor) -> Tensor:
        share = edges / edges.sum(2, keepdim=True)
        h = self.relu1(self.first(share @ x))
        return self.head(self.relu2(self.second(share @ h)))


def graph(rate: float = 1e-2) -> Problem:
    x, edges, label = tasks.graphs(16, 32)
    train, held_out = tasks.chunks((x, edges), label, 32)
    reference = majority_error(torch.cat([t for _, t in held_out]))
    return Problem(GraphNet(), train, held_out, token_cross_entropy, "adam", rate, 150, error_rate, reference, "tokens")


class UNet(nn.Module):
    """Noise of a known strength in a picture, on two resolutions."""

    def __init__(self) -> None:
        super().__init__()
        self.time = nn.Sequential(nn.Linear(1, 32), nn.SiLU(), nn.Linear(32, 16))
        self.enter, self.down = nn.Conv2d(1, 16, 3, padding=1), nn.Conv2d(16, 32, 3, 2, 1)
        self.middle, self.up = nn.Conv2d(32, 32, 3, padding=1), nn.ConvTranspose2d(32, 16, 2, 2)
        self.leave = nn.Conv2d(32, 1, 3, padding=1)
        self.act1, self.act2, self.act3, self.act4 = nn.SiLU(), nn.SiLU(), nn.SiLU(), nn.SiLU()

    def forward(self, x: Tensor, level: Tensor) -> Tensor:
        high = self.act1(self.enter(x) + self.time(level)[:, :, None, None])
        low = self.act3(self.middle(self.act2(self.down(high))))
        return self.leave(torch.cat([high, self.act4(self.up(low))], 1))


def diffusion(rate: float = 3e-3) -> Problem:
    x, _ = pictures()
    g = tasks.generator(33)
    level, noise = torch.rand(len(x), 1, generator=g), torch.randn(x.shape, generator=g)
    angle = (1.4 * level + 0.1)[:, :, None, None]
    train, held_out = tasks.chunks((angle.cos() * x + angle.sin() * noise, level), noise, 16)
    return Problem(UNet(), train, held_out, "mse", "adam", rate, 120, lambda o, t: float(F.mse_loss(o, t)), 1.0, "regression")  # fmt: skip  # noqa: E501


def denoiser(rate: float = 3e-3) -> Problem:
    """The clean picture, as a correction of the noisy one."""
    x, _, _ = tasks.shapes(16, 34)
    clean = tasks.shapes(16, 34)[1] * 2 - 0.5
    body = nn.Sequential(nn.Conv2d(1, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 16, 3, padding=1), nn.ReLU(), nn.Conv2d(16, 1, 3, padding=1))  # fmt: skip  # noqa: E501
    train, held_out = tasks.chunks(x, clean, 16)
    t = torch.cat([t for _, t in held_out])
    return Problem(Residual(body), train, held_out, "mse", "adam", rate, 100, lambda o, y: float(F.mse_loss(o, y)), float(t.var()), "regression")  # fmt: skip  # noqa: E501


def segmentation(rate: float = 5e-3) -> Problem:
    x, mask, _ = tasks.shapes(16, 35)
    down = [nn.Conv2d(1, 12, 3, padding=1), nn.ReLU(), nn.Conv2d(12, 24, 3, 2, 1), nn.ReLU()]
    up = [nn.ConvTranspose2d(24, 12, 2, 2), nn.ReLU(), nn.Conv2d(12, 1, 3, padding=1)]
    train, held_out = tasks.chunks(x, mask, 16)
    t = torch.cat([t for _, t in held_out])

    def score(outputs: Tensor, targets: Tensor) -> float:
        """1 - intersection over union."""
        both, any_ = ((outputs > 0) & (targets > 0.5)).sum(), ((outputs > 0) | (targets > 0.5)).sum()
        return 1 - float(both / any_.clamp(min=1))

    reference = 1 - float(t.mean())  # everything is called foreground
    return Problem(nn.Sequential(*down, *up), train, held_out, "bce", "adam", rate, 100, score, reference, "binary")
