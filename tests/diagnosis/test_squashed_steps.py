"""Outputs that a last operation confines, in a step of the user's own, where nothing says what the targets are."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import normal
from cases import unprobed as diagnose

X = normal(32, 6)
FAR, WITHIN = 15 + 5 * X[:, :2], X[:, :2].sigmoid()
LOSSES = {
    "torch's": F.mse_loss,
    "smooth": F.smooth_l1_loss,
    "power": lambda outputs, targets: ((outputs - targets) ** 2).mean(),
    "square, mirrored": lambda outputs, targets: (targets - outputs).square().sum(1).mean(),
    "absolute": lambda outputs, targets: (outputs - targets).abs().mean(),
    "root": lambda outputs, targets: (outputs - targets).pow(2).mean().sqrt(),
}


def squashed(loss, targets, last=nn.Sigmoid):
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 2), last())
    found = diagnose(model, [(X, targets)] * 2, step=lambda model, batch: loss(model(batch[0]), batch[1])).findings
    return [f for f in found if f.code == "squashed-output"]


@pytest.mark.parametrize("name", LOSSES)
def test_an_error_of_confined_outputs_is_one_in_a_step_too(name):
    (found,) = squashed(LOSSES[name], FAR)
    assert found.severity == "error"
    assert "sigmoid" in found.message
    assert squashed(LOSSES[name], WITHIN) == []
    assert squashed(LOSSES[name], FAR, nn.Identity) == []


ELSEWHERE = {
    "subtracted from the input": lambda outputs, targets: F.mse_loss(targets - outputs, targets - 0.3),
    "a distance to itself": lambda outputs, targets: (outputs - outputs.mean(0)).square().mean() + outputs.mean(),
    "a product": lambda outputs, targets: (outputs * (targets - 15)).mean(),
    "an advantage": lambda outputs, targets: -(outputs.log() * (targets - outputs.detach())).mean(),
}


@pytest.mark.parametrize("name", ELSEWHERE)
def test_differences_that_are_no_error_are_none(name):
    assert squashed(ELSEWHERE[name], FAR) == []
