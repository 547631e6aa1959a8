"""Readings of CWN, WN and SL: the same function at the start, steps as far as `stretch` says."""

import json

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from theta0.papers.kutsuna2019lcw.settings import outcome, settings, stretch
from theta0.papers.kutsuna2019lcw.variants import SETTINGS, normalised_layers, start_
from theta0.papers.models import deep_perceptron


def made(name):
    variant, seeded = SETTINGS[name], torch.Generator().manual_seed
    x = torch.randn(64, 1, 4, 4, generator=seeded(1), dtype=torch.float64)
    model = deep_perceptron(16, 3, depth=2, width=12, after=variant.after, generator=seeded(0)).double()
    return start_(model, variant, [x]), x


@pytest.mark.parametrize("name", ["CWN", "CWN, v as long as w", "WN", "WN, v as long as w"])
def test_a_step_moves_normalised_weights_as_far_as_said(name):
    """Across its direction w moves by the rate times (g / ‖v‖)² times the gradient by w, to first order."""
    model, x = made(name)
    layer = model.hidden2
    (unit,) = normalised_layers(nn.ModuleList([layer]))
    before = unit.weight.detach().clone()
    plain = before.clone().requires_grad_()
    inner = model[:3](x)
    outputs = model[4:](F.linear(inner, plain, layer.bias))
    (by_weight,) = torch.autograd.grad(F.cross_entropy(outputs, torch.arange(64) % 3), plain)
    F.cross_entropy(model(x), torch.arange(64) % 3).backward()
    rate = 1e-6
    with torch.no_grad():
        for p in unit.parametrizations.weight.parameters():
            p -= rate * p.grad
    factor = stretch(nn.ModuleList([layer]))
    assert (factor == pytest.approx(1.0)) is ("as long" in name)
    units = (unit.parametrizations.weight.original0.detach().flatten() / direction_lengths(unit)).square()
    moved, wanted = across(unit.weight.detach() - before, before), -rate * units[:, None] * across(by_weight, before)
    if name.startswith("CWN"):
        wanted = wanted - wanted.mean(1, keepdim=True)
    torch.testing.assert_close(moved, wanted, rtol=1e-3, atol=1e-12)
    assert units.median().item() == pytest.approx(factor, rel=1e-3)


def across(step, weight):
    unit = weight / weight.norm(dim=1, keepdim=True)
    return step - (step * unit).sum(1, keepdim=True) * unit


def direction_lengths(layer):
    return layer.parametrizations.weight.original1.detach().norm(dim=1)


def test_readings_differ_in_what_they_say():
    short, x = made("CWN")
    long, _ = made("CWN, v as long as w")
    torch.testing.assert_close(short(x), long(x))  # the same start
    fixed, _ = made("CWN, gain 1")
    for layer in normalised_layers(fixed):
        assert not layer.parametrizations.weight.original0.requires_grad
        torch.testing.assert_close(layer.weight.norm(dim=1), torch.ones(len(layer.weight)).double())
    whole, _ = made("CWN, last layer too")
    assert len(normalised_layers(whole)) == len(normalised_layers(short)) + 1
    assert stretch(made("LCW")[0]) is None
    assert made("SL, no scale")[0].after1.weight is None


@pytest.mark.parametrize(
    ("accuracy", "tested", "loss", "wanted"),
    [
        ([0.1, 0.12], [0.1, 0.1], 2.3, "chance"),
        ([0.1, 0.8], [0.1, 0.8], 0.4, "trains"),
        ([0.3, 0.1], [0.3, 0.1], 2.4, "fell back"),
        ([0.3, None], [0.3, None], None, "lost"),
    ],
)
def test_outcomes(accuracy, tested, loss, wanted):
    assert outcome({"train_accuracy": accuracy, "test_accuracy": tested, "train_loss": [loss], "classes": 10}) == wanted


def test_settings_are_written(tmp_path):
    scale = "smoke,variants=('CWN','LCW'),plan.epochs=1,plan.points=1,depth=2,seeds=2"
    line = settings(scale=scale, out_dir=tmp_path)
    assert line.startswith("settings, digits, 2 sigmoid layers, 4 updates: CWN ")
    rows = json.loads((tmp_path / "settings.json").read_text(), parse_constant=pytest.fail)["rows"]
    assert [(row["variant"], row["seed"]) for row in rows] == [("CWN", 0), ("CWN", 1), ("LCW", 0), ("LCW", 1)]
    assert (tmp_path / "settings.md").read_text().count("|") > 6
    assert (tmp_path / "settings.png").is_file()
