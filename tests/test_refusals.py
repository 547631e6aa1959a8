"""Wrong arguments from Python: a ValueError that says what was expected and what came."""

import re
from types import SimpleNamespace

import pytest
import torch
from torch import nn

from theta0.curvature import top_eigenvalue
from theta0.diagnosis import diagnose
from theta0.experiments import suggest_learning_rate
from theta0.measurements import gradient_gram
from theta0.measurements.neighbours import neighbours
from theta0.measurements.perturbed_outputs import perturbed_outputs

X = torch.randn(16, 4, generator=torch.Generator().manual_seed(0))
Y = (X[:, 0] > 0).long()


class Returns(nn.Module):
    """A linear layer and what is made of its outputs."""

    def __init__(self, made):
        super().__init__()
        self.layer, self.made = nn.Linear(4, 2), made

    def forward(self, x):
        return self.made(self.layer(x))


def net():
    return nn.Linear(4, 2)


def rate(**options):
    return suggest_learning_rate(net(), [(X, Y)], "cross_entropy", **options)


def parts_on_two_devices():
    model = nn.Sequential(nn.Linear(4, 4), nn.Linear(4, 2))
    model[1].to("meta")
    return model


REFUSED = {
    "momentum of one": (
        lambda: rate(optimizer="momentum", momentum=1.0),
        "expected numbers from 0 to below 1, got 1.0",
    ),
    "no epsilon": (
        lambda: rate(optimizer="adam", eps=0.0),
        "weight_decay and eps: expected ≥ 0 and > 0, got 0.0 and 0",
    ),
    "decay below zero": (lambda: rate(weight_decay=-1.0), "weight_decay and eps: expected"),
    "weights without values": (
        lambda: diagnose(parts_on_two_devices(), [(X, Y)], "cross_entropy"),
        "expected parameters with values, got some on the meta device",
    ),
    "an empty batch": (
        lambda: diagnose(net(), [(X[:0], Y[:0])], "cross_entropy"),
        "batch 0: expected",
    ),
    "a loss for each sample": (
        lambda: diagnose(Returns(lambda out: SimpleNamespace(loss=out.square().mean(1), logits=out)), [X]),
        "expected the model's own .loss to be a scalar, got a tensor of shape (16,); reduce it over the batch",
    ),
    "no outputs": (
        lambda: perturbed_outputs(Returns(lambda out: out.argmax(1)), X, perturbations=3),
        "expected outputs of samples × classes, got no floating tensor",
    ),
    "one number": (
        lambda: perturbed_outputs(Returns(lambda out: SimpleNamespace(logits=out.mean())), X, perturbations=3),
        "expected outputs of samples × classes, got a single number",
    ),
    "one neighbour": (
        lambda: neighbours(net(), [(X, Y)], perturbations=1),
        "perturbations: expected at least two, since pairs of them are compared, got 1",
    ),
    "gradients that are not finite": (
        lambda: gradient_gram(net(), [(X, Y)], lambda out, y: (out * 1e30).square().mean()),
        "finite",
    ),
    "outputs that carry no gradient": (
        lambda: top_eigenvalue(Returns(torch.detach), [(X, Y)], lambda out, y: out.square().mean()),
        "does forward() detach them",
    ),
}


@pytest.mark.parametrize("name", REFUSED)
def test_wrong_arguments_are_refused_with_what_was_expected(name):
    call, said = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(said)):
        call()
