"""Frozen layers that were never trained, below a head that learns from them; and others that are frozen rightly."""

import copy

import pytest
import torch
from torch import nn
from torch.nn import functional as F

import theta0
from theta0._batches import load_batches
from theta0.measurements.frozen_draws import feeds_trained, is_drawn

X = torch.randn(128, 16, generator=torch.Generator().manual_seed(0))
Y = (X[:, :4].square().sum(1) > 3.4).long()  # a ball, of which random features show little
DATA = list(zip(X.split(32), Y.split(32), strict=True))


def features(bias=True):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(16, 64, bias=bias), nn.Tanh(), nn.Linear(64, 64, bias=bias), nn.Tanh())


def classifier(part):
    return nn.Sequential(part.requires_grad_(False), nn.Linear(64, 2))


def moved(part):
    with torch.no_grad():
        for parameter in part.parameters():
            parameter.add_(1e-3 * torch.randn(parameter.shape, generator=torch.Generator().manual_seed(1)))
    return part


def severities(model, loss="cross_entropy"):
    found = theta0.diagnose(model, DATA, loss, optimizer="adam", learning_rate=1e-3)
    return [f.severity for f in found.findings if f.code == "frozen-parameters"]


def test_features_that_are_frozen_as_they_were_drawn_are_a_warning():
    model = classifier(features())
    before = copy.deepcopy(model.state_dict())
    assert severities(model) == ["warning"]
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert [p.requires_grad for p in model.parameters()] == [False] * 4 + [True] * 2


def test_features_that_were_trained_are_a_note():
    assert severities(classifier(moved(features()))) == ["note"]


class Distilled(nn.Module):
    """A frozen random target, as of random network distillation, that is called first."""

    def __init__(self):
        super().__init__()
        self.target, self.online = features().requires_grad_(False), features()

    def forward(self, x):
        target = self.target(x)
        return self.online(x) - target


class Adapted(nn.Module):
    """A frozen random layer with a trained correction beside it."""

    def __init__(self):
        super().__init__()
        self.base, self.down = nn.Linear(16, 64).requires_grad_(False), nn.Linear(16, 64, bias=False)

    def forward(self, x):
        return self.base(x) + self.down(x)


@pytest.mark.parametrize("model", [Distilled, Adapted])
def test_what_meets_trained_parts_in_a_sum_alone_feeds_none(model):
    torch.manual_seed(0)
    model = model()
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    batch = load_batches([(X, X)], model)[0]
    assert not feeds_trained(model, batch, lambda outputs, targets: outputs.square().mean(), frozen)
    assert not any(p.requires_grad for p in frozen.values())


def test_a_head_feeds_on_features():
    model = classifier(features())
    frozen = {name: p for name, p in model.named_parameters() if not p.requires_grad}
    assert feeds_trained(model, load_batches(DATA, model)[0], "cross_entropy", frozen)


@pytest.mark.parametrize(
    "layer", [nn.Linear(64, 32), nn.Conv2d(8, 16, 3), nn.Conv1d(8, 32, 5), nn.Linear(300, 7)], ids=str
)
def test_default_and_glorot_and_he_draws_are_known(layer):
    torch.manual_seed(0)
    for draw in (lambda w: layer.reset_parameters(), nn.init.xavier_uniform_, nn.init.kaiming_uniform_):
        draw(layer.weight)
        assert is_drawn(layer.weight.detach())
        assert not is_drawn(layer.weight.detach() + 0.01 * layer.weight.detach().std() * torch.randn_like(layer.weight))
    assert not is_drawn(torch.randn(64, 64) * 0.1)
    assert not is_drawn(F.normalize(torch.rand(64, 64), dim=0))
