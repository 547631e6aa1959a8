"""Losses without a minimum are found, and honest ones below zero are not."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from states import state_of
from theta0._batches import load_batches
from theta0.diagnosis import ObservedTraining, diagnose
from theta0.experiments.endless_fall import endless_fall

GENERATOR = torch.Generator().manual_seed(0)
X = torch.randn(64, 8, generator=GENERATOR)
Y = (X[:, 0] > 0).long() + (X[:, 1] > 0).long()
AMOUNTS = 0.05 * (X[:, :3] + 0.1 * torch.randn(64, 3, generator=GENERATOR))
SIGNS = 2.0 * (X[:, 0] > 0) - 1
ADVANTAGES = torch.randn(64, generator=GENERATOR)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.body, self.head = nn.Linear(8, 32), nn.Linear(32, 6)
        self.scale = nn.Parameter(torch.zeros(1))

    def forward(self, x):
        return self.head(torch.relu(self.body(x)))


def divergence(out):
    mean, log_variance = out.chunk(2, 1)
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance).sum(1).mean()


def density(out):
    mean, log_scale = out.chunk(2, 1)
    return -torch.distributions.Normal(mean, log_scale.exp()).log_prob(AMOUNTS).sum(1).mean()


def mixture(out):
    parts = torch.distributions.Normal(out[:, :3], out[:, 3:].exp())
    mixed = torch.distributions.MixtureSameFamily(torch.distributions.Categorical(logits=out[:, :3]), parts)
    return -mixed.log_prob(AMOUNTS[:, 0]).mean()


def apart(out):
    return (out - out.roll(1, 0)).square().sum(1)


ENDLESS = {
    "divergence of the wrong sign": lambda net, x: F.mse_loss(net(x)[:, :3], x[:, :3]) - divergence(net(x)),
    "scores that are not normalized": lambda net, x: -net(x).gather(1, Y[:, None]).mean(),
    "margin that is not clamped": lambda net, x: (1 - SIGNS * net(x)[:, 0]).mean(),
    "distances that are not bounded": lambda net, x: (
        apart(net(x)) * (Y.roll(1) == Y) - apart(net(x)) * (Y.roll(1) != Y)
    ).mean(),
    "uncertainty of the wrong sign": lambda net, x: (
        F.cross_entropy(net(x), Y) * torch.exp(-net.scale) - net.scale
    ).sum(),
    "negated log-density": lambda net, x: -density(net(x)),
}
HONEST = {
    "divergence": lambda net, x: F.mse_loss(net(x)[:, :3], x[:, :3]) + divergence(net(x)),
    "scores that are normalized": lambda net, x: -net(x).log_softmax(1).gather(1, Y[:, None]).mean(),
    "margin": lambda net, x: (1 - SIGNS * net(x)[:, 0]).clamp(min=0).mean(),
    "uncertainty": lambda net, x: (F.cross_entropy(net(x), Y) * torch.exp(-net.scale) + net.scale).sum(),
    "log-density": lambda net, x: density(net(x)),
    "log-density of a mixture": lambda net, x: mixture(net(x)),
    "cosine": lambda net, x: -F.cosine_similarity(net(x), x[:, :6]).mean(),
    "entropy": lambda net, x: (
        F.cross_entropy(net(x), Y) - 0.1 * torch.distributions.Categorical(logits=net(x)).entropy().mean()
    ),
    "policy gradient": lambda net, x: -(net(x).log_softmax(1).gather(1, Y[:, None])[:, 0] * ADVANTAGES).mean(),
    "contrastive divergence": lambda net, x: net(x).mean() - net(x + 0.1 * net(x).detach()[:, :1]).mean(),
    "logarithm of distances": lambda net, x: F.cross_entropy(net(x), Y) - 0.1 * (1e-3 + apart(net(x))).log().mean(),
}


def mismatches(step, **options):
    torch.manual_seed(0)
    model = Net()
    before = state_of(model)
    result = diagnose(model, [X], step=step, probe_steps=20, **options)
    assert state_of(model) == before
    return [f for f in result.findings if f.code == "loss-mismatch"]


@pytest.mark.sampled(3)
@pytest.mark.parametrize("name", ENDLESS)
def test_a_loss_that_falls_without_end_is_an_error_with_the_line_of_its_summand(name):
    found = mismatches(ENDLESS[name])
    assert [f.severity for f in found] == ["error"]
    assert found[0].source_line.startswith("tests/experiments/test_endless_fall.py")
    assert found[0].value < found[0].threshold < 0


@pytest.mark.sampled(4)
@pytest.mark.parametrize("name", HONEST)
def test_an_honest_loss_is_none_also_where_it_is_negative(name):
    assert mismatches(HONEST[name]) == []


def test_the_summand_that_falls_is_named():
    found = mismatches(
        lambda net, x: F.mse_loss(net(x)[:, :3], x[:, :3]) - divergence(net(x))  # this one
    )
    assert "divergence" in found[0].source_line or "0.5 *" in found[0].source_line


def test_a_loss_that_an_adversary_holds_back_is_none():
    assert mismatches(ENDLESS["scores that are not normalized"], observed=ObservedTraining(opposed=True)) == []


def test_a_frozen_judge_is_not_asked_for_a_minimum():
    judge = nn.Linear(6, 1).requires_grad_(False)

    def step(model, x):
        return -model.judge(model.net(x)).mean()

    model = nn.Module()
    model.net, model.judge = Net(), judge
    found = diagnose(model, [X], step=step, probe_steps=20).findings
    assert not [f for f in found if f.code == "loss-mismatch"]


def fall(step, model=None):
    torch.manual_seed(0)
    model = Net() if model is None else model
    before = state_of(model)
    found, cost = endless_fall(model, load_batches([X], model, step=step)[0], None)
    assert state_of(model) == before
    assert cost <= 8
    return found


@pytest.mark.parametrize("name", ENDLESS | HONEST)
def test_the_direction_is_found_for_every_loss_without_a_minimum_and_for_no_other(name):
    found = fall((ENDLESS | HONEST)[name])
    assert (found is not None) == (name in ENDLESS)


def test_a_linear_loss_falls_by_its_gradient_times_the_length():
    torch.manual_seed(0)
    net = Net()
    found = fall(lambda net, x: -3 * net(x)[:, 0].mean(), net)
    net = net.double()
    value = -3 * net(X.double())[:, 0].mean()
    (gradient,) = torch.autograd.grad(value, net.get_parameter(found.parameter))
    entries, size = gradient.numel(), float(gradient.square().mean().sqrt())
    assert found.first == pytest.approx(float(value.detach()), abs=1e-6)
    expected = [float(value.detach()) - length * entries * size for length in found.lengths]
    assert found.losses == pytest.approx(expected, rel=1e-4)


def test_a_loss_that_cannot_be_evaluated_far_away_or_at_all_is_left_alone():
    def refuses(net, x):
        out = net(x)
        if out.detach().abs().max() > 50:
            raise ValueError("outputs: expected at most 50")
        return -out.mean()

    assert fall(refuses) is None
    assert fall(lambda net, x: net(x).mean() * float("nan")) is None
    assert fall(lambda net, x: net(x).view(7, 7).mean()) is None


class Couplings(nn.Module):
    """A flow whose scales are bounded but for a gain that they are multiplied with; `sign` of its log-determinant."""

    def __init__(self, sign):
        super().__init__()
        self.sign = sign
        self.nets = nn.ModuleList(nn.Sequential(nn.Linear(1, 16), nn.Tanh(), nn.Linear(16, 2)) for _ in range(4))
        self.gains = nn.ParameterList(nn.Parameter(torch.zeros(1)) for _ in range(4))

    def forward(self, x):
        total = torch.zeros(len(x))
        for net, gain in zip(self.nets, self.gains, strict=True):
            scale, shift = net(x[:, :1]).tanh().chunk(2, 1)
            scale = scale * gain.exp()
            x = torch.cat([x[:, :1], (x[:, 1:] - shift) * torch.exp(-scale)], 1).flip(1)
            total = total + self.sign * scale[:, 0]
        return (0.5 * x.square()).sum(1) + 1.84 + total


@pytest.mark.parametrize("size", [1.0, 0.02])
@pytest.mark.parametrize("sign", [1.0, -1.0])
def test_scales_whose_signs_are_drawn_are_asked_after_a_short_run(sign, size):
    torch.manual_seed(0)
    data = [size * torch.randn(64, 2, generator=torch.Generator().manual_seed(k)) for k in range(4)]
    step = lambda model, batch: model(batch).mean()  # noqa: E731
    found = diagnose(Couplings(sign), data, step=step, optimizer="adam", learning_rate=1e-2)
    assert ("loss-mismatch" in {f.code for f in found.findings if f.severity == "error"}) is (sign < 0)
