"""What is printed of real networks of a hundred layers: one screen, and one sentence first."""

import io
from itertools import pairwise

import pytest
import torch
from rich.console import Console
from torch import nn
from torch.nn import functional as F

from cases import labels, normal
from cases import unprobed as diagnose
from theta0.reports import diagnosis_report

WIDTH, LAYERS, SCREEN, COLUMNS = 16, 100, 48, 80
DATA = [(normal(32, 8), labels(32, classes=4))]


class Block(nn.Module):
    def __init__(self, scale):
        super().__init__()
        self.first, self.second, self.scale = nn.Linear(WIDTH, WIDTH), nn.Linear(WIDTH, WIDTH), scale

    def forward(self, x):
        return x + self.scale * self.second(F.relu(self.first(x)))


def plain(phi, gain=None):
    torch.manual_seed(0)
    widths = [8, *[WIDTH] * (LAYERS - 1), 4]
    parts = [p for a, b in pairwise(widths) for p in (nn.Linear(a, b), phi())]
    model = nn.Sequential(*parts[:-1])
    if gain is not None:
        for layer in model[::2]:
            nn.init.normal_(layer.weight, std=gain / layer.in_features**0.5)
    return model


def residual(scale):
    torch.manual_seed(0)
    blocks = (Block(scale) for _ in range(LAYERS // 2 - 1))
    model = nn.Sequential(nn.Linear(8, WIDTH), *blocks, nn.Linear(WIDTH, 4))
    for block in model[1:-1]:
        nn.init.kaiming_normal_(block.first.weight)
        nn.init.kaiming_normal_(block.second.weight)
    return model


MODELS = {
    "plain sigmoid": (lambda: plain(nn.Sigmoid), False),
    "plain relu": (lambda: plain(nn.ReLU), False),
    "plain, exploding": (lambda: plain(nn.ReLU, 3.0), False),
    "plain, saturated": (lambda: plain(nn.Tanh, 20.0), False),
    "residual, growing": (lambda: residual(1.0), False),
    "residual, healthy": (lambda: residual(0.02), True),
}


def report_of(model, **options):
    found = diagnose(model, DATA, "cross_entropy", **options)
    console = Console(width=COLUMNS, file=io.StringIO())
    console.print(diagnosis_report(found, target="deep.py"))
    return found, console.file.getvalue().splitlines()


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", [{}, {"optimizer": "adam", "learning_rate": 1e-3}], ids=["", "with a rate"])
@pytest.mark.parametrize("name", MODELS)
def test_a_hundred_layers_are_one_screen_that_leads_with_a_sentence(name, options):
    make, healthy = MODELS[name]
    model = make()
    assert sum(isinstance(m, nn.Linear) for m in model.modules()) == LAYERS
    found, lines = report_of(model, **options)
    assert len(lines) <= SCREEN
    assert max(map(len, lines)) <= COLUMNS
    sentence = "No problem was found" if healthy else "Not ready to train"
    assert lines[0].startswith(f"deep.py: {sentence}")
    assert found.healthy is healthy
    causes = [f for f in found.findings if not f.cause]
    text = " ".join(" ".join(lines).split())
    assert causes[:1] == list(found.findings[:1])
    assert all(f.message in text for f in causes[:1])
    assert sum("follows from it:" in line for line in lines) == len(found.findings) - len(causes)
