"""Findings that only some starts or data give, what they say, and arguments that are refused."""

import re

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from cases import normal
from theta0.diagnosis import ObservedTraining, diagnose

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 8, generator=GENERATOR)
Y = (X[:, 0] > 0).long()


def net(outputs=2, *more):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, outputs), *more)


def found(*given, code, **options):
    return [f for f in diagnose(*given, **{"probe_steps": 0} | options).findings if f.code == code]


def test_inputs_that_hardly_differ_beside_what_they_share():
    (finding,) = found(net(), [(1 + 1e-5 * X, Y)], "cross_entropy", code="input-scale")
    assert finding.severity in ("warning", "error")
    spread = float((1 + 1e-5 * X).double().std(0, correction=0).square().mean().sqrt())
    assert finding.value == pytest.approx(spread, rel=0.1)
    assert "next to what they share, nothing differs" in finding.message


def test_targets_far_below_the_outputs_are_told_with_the_ratio():
    targets = 1e-5 * X[:, :1]
    (finding,) = found(net(1), [(X, targets)], "mse", code="target-scale")
    outputs = net(1)(X).detach().double()
    expected = float(outputs.square().mean().sqrt() / targets.double().square().mean().sqrt())
    assert finding.value == pytest.approx(expected, rel=1e-3)
    assert "times smaller than the outputs" in finding.message


def test_a_loss_of_ones_own_that_outputs_in_an_interval_cannot_lower():
    def loss(outputs, targets):
        return F.huber_loss(outputs, 5 + 3 * targets, delta=0.5) + (outputs - 5 - 3 * targets).abs().pow(1.5).mean()

    (finding,) = found(net(1, nn.Sigmoid()), [(X, X[:, :1])], loss, code="squashed-output")
    assert "Leave out sigmoid" in finding.message
    assert finding.remedy.startswith("# remove sigmoid")


def test_a_step_that_evaluates_the_loss_itself_has_no_rate_to_judge():
    model = net()
    result = diagnose(
        model, [(X, Y)], "cross_entropy", optimizer=torch.optim.LBFGS(model.parameters(), lr=1.0), probe_steps=0
    )
    assert any("evaluates the loss several times" in line for line in result.not_measured)


@pytest.mark.parametrize(("eps", "severities"), [(1e-3, ["error"]), (1e-30, [])])
def test_a_clipped_gradient_is_held_against_the_epsilon_of_any_adaptive_optimizer(eps, severities):
    model = net()
    optimizer = torch.optim.NAdam(model.parameters(), lr=1e-3, eps=eps)
    clipped = found(
        model, [(X, Y)], "cross_entropy", code="lost-gradient", optimizer=optimizer, observed=ObservedTraining(1e-8)
    )
    assert [f.severity for f in clipped] == severities
    assert all(f"{eps:g}" in f.message for f in clipped)


def test_where_nothing_trains_for_no_known_reason_it_is_said_what_was_excluded():
    """The gradient points the wrong way: whatever is tried, the loss does not fall."""

    class Uphill(torch.autograd.Function):
        @staticmethod
        def forward(ctx, x):
            return x.clone()

        @staticmethod
        def backward(ctx, gradient):
            return -gradient

    class Wrong(nn.Module):
        def __init__(self):
            super().__init__()
            self.body = net()

        def forward(self, x):
            return Uphill.apply(self.body(x))

    (finding,) = found(Wrong(), [(X, Y)], "cross_entropy", code="does-not-train", probe_steps=100)
    assert "The cause is not known. Excluded: the learning rate (" in finding.message
    assert "inputs that do not reach the output" in finding.message


REFUSED = {"probe_steps": (-1, "probe_steps: expected 0 or more")}


@pytest.mark.parametrize("name", REFUSED)
def test_arguments_out_of_range_are_refused(name):
    value, said = REFUSED[name]
    with pytest.raises(ValueError, match=re.escape(said)):
        diagnose(net(), [(X, Y)], "cross_entropy", **{name: value})


@pytest.mark.parametrize(("rate", "said"), [(0.05, False), (1e-5, True)])
def test_a_regression_that_soon_unlearns_its_mean_has_no_first_loss_to_repair(rate, said):
    inputs = normal(128, 8)
    targets = 3.5 + 0.8 * normal(128, 1, seed=5)  # that the inputs say nothing of, so that no run trains
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Linear(16, 1))
    data = list(zip(inputs.split(32), targets.split(32), strict=True))
    found = diagnose(model, data, "mse", optimizer="adam", learning_rate=rate)
    assert ("initial-loss" in {f.code for f in found.findings}) == said
