"""Models as other people's systems make them, with data: `MODELS` gives what makes one, its batches and its loss."""

import warnings

import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint


class Checkpointed(nn.Module):
    def __init__(self, reentrant):
        super().__init__()
        self.reentrant = reentrant
        self.a, self.b, self.c = nn.Linear(8, 16), nn.Sequential(nn.Linear(16, 16), nn.ReLU()), nn.Linear(16, 3)

    def forward(self, x):
        return self.c(checkpoint(self.b, F.relu(self.a(x)), use_reentrant=self.reentrant))


class GradientInside(nn.Module):
    """The derivative of an energy, as force fields have it, differentiated whatever mode it is called in."""

    def __init__(self):
        super().__init__()
        self.energy, self.head = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 1)), nn.Linear(8, 3)

    def forward(self, x):
        with torch.enable_grad():
            x = x.detach().requires_grad_(True)
            (force,) = torch.autograd.grad(self.energy(x).sum(), x, create_graph=True)
        return self.head(force)


class Sparse(nn.Module):
    def __init__(self, bag):
        super().__init__()
        self.table = nn.EmbeddingBag(20, 16, sparse=True) if bag else nn.Embedding(20, 16, sparse=True)
        self.bag, self.head = bag, nn.Sequential(nn.Linear(16, 16), nn.ReLU(), nn.Linear(16, 3))

    def forward(self, x):
        h = self.table(x)
        return self.head(h if self.bag else h.mean(1))


class Complex(nn.Module):
    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.randn(8, 8, dtype=torch.cfloat) / 3)
        self.layer, self.head = nn.Linear(8, 8, dtype=torch.cfloat), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(self.layer(torch.fft.fft(x.to(torch.cfloat)) @ self.w).abs())


class Fourier(nn.Module):
    def __init__(self):
        super().__init__()
        self.filter = nn.Parameter(torch.randn(5, dtype=torch.cfloat))
        self.a, self.head = nn.Linear(8, 8), nn.Linear(8, 3)

    def forward(self, x):
        return self.head(torch.fft.irfft(torch.fft.rfft(torch.relu(self.a(x))) * self.filter, n=8))


class Vectors(nn.Module):
    """Parameters of no axis and of one in all kinds of products."""

    def __init__(self):
        super().__init__()
        self.v, self.g, self.out = (
            nn.Parameter(torch.randn(8)),
            nn.Parameter(torch.tensor(0.7)),
            nn.Parameter(torch.randn(8)),
        )
        self.t, self.a = nn.Parameter(torch.randn(3, 8) / 3), nn.Linear(8, 8)

    def forward(self, x):
        h = torch.relu(self.a(x)) * self.g
        products = [h @ self.v, torch.einsum("ni,i->n", h, self.out), torch.mv(h, self.v)]
        return h @ self.t.T + torch.stack(products, 1) + torch.dot(self.v, self.out)


class CompiledParts(nn.Module):
    def __init__(self):
        super().__init__()
        self.a = torch.compile(nn.Sequential(nn.Linear(8, 16), nn.ReLU()), backend="eager")
        self.b = nn.Linear(16, 3)
        self.b.compile(backend="eager")

    def forward(self, x):
        return self.b(self.a(x))


class Quantised(nn.Module):
    """A frozen base of int8, as a buffer and as a parameter, with an adapter whose second factor is zero."""

    def __init__(self):
        super().__init__()
        whole = torch.randn(16, 8)
        self.scale = whole.abs().max() / 127
        self.register_buffer("kept", (whole / self.scale).round().to(torch.int8))
        self.base = nn.Parameter(self.kept.clone(), requires_grad=False)
        self.down, self.up, self.head = nn.Linear(8, 2, bias=False), nn.Linear(2, 16, bias=False), nn.Linear(16, 3)
        nn.init.zeros_(self.up.weight)

    def forward(self, x):
        base = F.linear(x, self.base.to(x.dtype) * self.scale) + F.linear(x, self.kept.to(x.dtype) * self.scale)
        return self.head(torch.relu(base + self.up(self.down(x))))


class Magnitude(nn.Module):
    """As peft's DoRA: a learned length, over a frozen base of which a trainable view is made in every pass."""

    def __init__(self):
        super().__init__()
        self.base = nn.Linear(8, 16)
        self.base.requires_grad_(False)
        self.a, self.b = nn.Parameter(torch.randn(2, 8) / 3), nn.Parameter(torch.zeros(16, 2))
        self.length, self.head = nn.Parameter(self.base.weight.norm(dim=1)), nn.Linear(16, 3)

    def forward(self, x):
        weight = nn.Parameter(self.base.weight.T).T + self.b @ self.a
        scaled = self.length.unsqueeze(1) * weight / weight.norm(dim=1, keepdim=True).detach()
        return self.head(torch.relu(F.linear(x, scaled, self.base.bias)))


class Graph(nn.Module):
    """Two graph convolutions with a sparse matrix of neighbours."""

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(8, 16), nn.Linear(16, 3)

    def forward(self, x, neighbours):
        return self.b(neighbours @ torch.relu(self.a(neighbours @ x)))


def graphs(csr, count=4, size=24):
    """Whole graphs as batches: points on a ring, each beside its neighbours."""
    x = torch.randn(count, size, 8, generator=torch.Generator().manual_seed(0))
    ring = (torch.eye(size) + torch.eye(size).roll(1, 0) + torch.eye(size).roll(-1, 0)) / 3
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch calls compressed matrices beta
        neighbours = ring.to_sparse_csr() if csr else ring.to_sparse()
    return [((part, neighbours), part.roll(1, 0)[:, :3].argmax(1)) for part in x]


def plain(dtype=torch.float32):
    parts = nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3)
    return nn.Sequential(*parts).to(dtype)


def points(count=8, size=16):
    x = torch.randn(count * size, 8, generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(size), x[:, :3].argmax(1).split(size), strict=True))


def tokens(count=8, size=16):
    x = torch.randint(0, 20, (count * size, 5), generator=torch.Generator().manual_seed(0))
    return list(zip(x.split(size), (x[:, 0] % 3).split(size), strict=True))


MODELS = {
    "re-entrant checkpoints": (lambda: Checkpointed(True), points),
    "non-re-entrant checkpoints": (lambda: Checkpointed(False), points),
    "gradients inside forward": (GradientInside, points),
    "sparse embedding": (lambda: Sparse(False), tokens),
    "sparse bag": (lambda: Sparse(True), tokens),
    "complex layers": (Complex, points),
    "complex filter": (Fourier, points),
    "vectors in products": (Vectors, points),
    "compiled parts": (CompiledParts, points),
    "quantised base": (Quantised, points),
    "learned lengths": (Magnitude, points),
    "sparse graph": (Graph, lambda: graphs(False)),
    "compressed sparse graph": (Graph, lambda: graphs(True)),
    "bfloat16": (lambda: plain(torch.bfloat16), points),
    "float16": (lambda: plain(torch.float16), points),
}
