"""A gradient has vanished where it does not arrive at the data, not where a side branch gets little of it."""

import pytest
import torch
from torch import nn

from cases import normal
from cases import unprobed as diagnose

X = normal(256, 8)
DATA = [(X, (X[:, 0] > 0).long() + 2 * (X[:, 1] > 0).long())]


class Encoder(nn.Module):
    """Attention over data of its own, which a decoder reads through a weak connection."""

    def __init__(self, passes, depth=0, queries=1.0):
        super().__init__()
        torch.manual_seed(0)
        parts = [part for _ in range(depth) for part in (nn.Linear(16, 16), nn.Sigmoid())]
        self.query, self.key, self.value = (nn.Linear(8, 16) for _ in range(3))
        self.deep, self.passes = nn.Sequential(*parts), passes
        with torch.no_grad():
            self.query.weight.mul_(queries)
            self.query.bias.mul_(queries)

    def forward(self, x):
        places = x.unflatten(1, (2, 4)).repeat(1, 1, 2)
        weights = (self.query(places) @ self.key(places).transpose(1, 2)).softmax(-1)
        return self.passes * self.deep(weights @ self.value(places)).mean(1)


class BesideADecoder(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.encoder = Encoder(**options)
        self.embed, self.widen, self.head = nn.Linear(8, 16), nn.Linear(16, 16), nn.Linear(16, 4)

    def forward(self, x):
        read = self.encoder(x)
        return self.head(torch.tanh(self.widen(torch.tanh(self.embed(x)) + read)))


class Alone(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.encoder, self.head = Encoder(**options), nn.Linear(16, 4)

    def forward(self, x):
        return self.head(self.encoder(x))


class Loop(nn.Module):
    """A recurrence written out: every step reads data of its own."""

    def __init__(self, steps):
        super().__init__()
        torch.manual_seed(0)
        self.read, self.keep, self.head, self.steps = nn.Linear(2, 16), nn.Linear(16, 16), nn.Linear(16, 4), steps

    def forward(self, x):
        state = x.new_zeros(len(x), 16)
        for part in x.repeat(1, 8).split(2, 1)[: self.steps]:
            state = torch.sigmoid(self.read(part) + self.keep(state))
        return self.head(state)


def told(model):
    """Severity and number of what is said of gradients over layers."""
    found = [f for f in diagnose(model, DATA, "cross_entropy").findings if f.code == "vanishing-gradients"]
    return [(f.severity, f.value) for f in found]


NETWORKS = {
    "an encoder into which little passes": (lambda: BesideADecoder(passes=3e-4), None),
    "an encoder into which next to nothing passes": (lambda: BesideADecoder(passes=1e-6), "warning"),
    "a deep encoder, which loses it on its own way": (lambda: BesideADecoder(passes=1.0, depth=12), "error"),
    "queries at zero before four sigmoid layers": (lambda: Alone(passes=1.0, depth=4, queries=1e-3), "warning"),
    "no way back to the data at all": (lambda: Alone(passes=1.0, depth=12), "error"),
    "the first steps of a written-out recurrence": (lambda: Loop(24), "error"),
    "a short recurrence": (lambda: Loop(3), None),
}


@pytest.mark.parametrize(("network", "severity"), NETWORKS.values(), ids=NETWORKS.keys())
def test_what_arrives_at_the_data_decides(network, severity):
    assert [found for found, _ in told(network())] == ([severity] if severity else [])


def test_the_number_is_that_of_the_layers_which_read_the_data():
    model = Alone(passes=1.0, depth=4, queries=1e-3)
    kept, encoder = {}, model.encoder
    layers = {"value": encoder.value, "query": encoder.query, "last": model.head, "before": encoder.deep[-2]}

    def keep(name):
        def watched(module, inputs, output):
            output.retain_grad()
            kept[name] = output

        return watched

    handles = [layer.register_forward_hook(keep(name)) for name, layer in layers.items()]
    torch.nn.functional.cross_entropy(model(X), DATA[0][1]).backward()
    for handle in handles:
        handle.remove()
    felt = {n: float(z.grad.double().norm() * z.detach().double().square().mean().sqrt()) for n, z in kept.items()}
    model.zero_grad(set_to_none=True)
    ((_, value),) = told(model)
    assert felt["query"] < 1e-2 * felt["value"]
    assert value == pytest.approx(felt["value"] / max(felt.values()), rel=1e-3)
