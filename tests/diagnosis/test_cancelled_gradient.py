"""A whole gradient that is rounding error, and small ones that are not."""

import pytest
import torch
from torch import nn

import theta0

X = torch.randn(64, 6, generator=torch.Generator().manual_seed(0))
ADVANTAGE = X[:, 0] - X[:, 0].mean()


def policy():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 16), nn.Tanh(), nn.Linear(16, 1))


def batch(weights):
    return [(X, weights)] * 2


CANCELS = {
    "a mean times numbers that sum to zero": lambda outputs, a: -(outputs.mean() * a).sum(),
    "a product with the sum": lambda outputs, a: outputs.mean() * a.sum(),
    "a matrix product": lambda outputs, a: torch.ones(1, 64) @ a[:, None] * outputs.square().mean(),
    "the same twice": lambda outputs, a: (outputs * a[:, None].mean()).mean(),
}
HOLDS = {
    "sample by sample": lambda outputs, a: -(outputs[:, 0] * a).mean(),
    "small targets": lambda outputs, a: (1e-5 * outputs[:, 0] - 1e-5 * a).square().mean(),
    "a small factor": lambda outputs, a: 1e-9 * (outputs[:, 0] - a).square().mean(),
}


def zero(loss, weights=ADVANTAGE):
    found = theta0.diagnose(policy(), batch(weights), loss, optimizer="adam", learning_rate=1e-2)
    return [f for f in found.findings if f.code == "zero-gradient"]


@pytest.mark.parametrize("name", CANCELS)
def test_a_gradient_whose_terms_cancel_is_an_error_with_the_line(name):
    (found,) = zero(CANCELS[name])
    assert (found.severity, found.layer, found.layers) == ("error", "", ())
    assert found.value > 0.3
    assert "lambda outputs, a" in found.source_line


@pytest.mark.parametrize("name", HOLDS)
def test_a_small_gradient_that_the_data_determine_is_none(name):
    assert zero(HOLDS[name]) == []


def test_without_standardization_the_product_with_a_mean_has_a_gradient():
    assert zero(CANCELS["a mean times numbers that sum to zero"], ADVANTAGE + 1) == []


def risk(outputs, targets, axis):
    """The partial likelihood of times in falling order."""
    risks = outputs[targets.argsort(descending=True)]
    return -(risks - torch.logcumsumexp(risks, axis)).mean()


def test_a_sum_along_an_axis_of_length_one_is_named_where_nothing_is_left():
    (found,) = zero(lambda outputs, times: risk(outputs, times, 1))
    assert "`logcumsumexp` runs along an axis of length one" in found.message
    assert "torch.logcumsumexp(risks, axis)" in found.source_line
    assert zero(lambda outputs, times: risk(outputs, times, 0)) == []
