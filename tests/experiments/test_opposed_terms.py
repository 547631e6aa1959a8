"""Summands of a loss whose reduction differs: what learning from the data costs the others."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from states import state_of
from theta0._batches import load_batches
from theta0.diagnosis import diagnose
from theta0.experiments.opposed_terms import opposed_terms
from theta0.experiments.optimizers import optimizer_kind

GENERATOR = torch.Generator().manual_seed(0)
KINDS = torch.randn(6, 32, generator=GENERATOR)
X = KINDS[torch.randint(0, 6, (256,), generator=GENERATOR)] + 0.1 * torch.randn(256, 32, generator=GENERATOR)
BATCHES = list(X.split(64))


class Autoencoder(nn.Module):
    def __init__(self):
        super().__init__()
        self.encoder, self.decoder = nn.Linear(32, 16), nn.Linear(8, 32)

    def forward(self, x):
        mean, log_variance = self.encoder(x).chunk(2, 1)
        z = mean + torch.randn_like(mean) * (log_variance / 2).exp()
        return self.decoder(z), mean, log_variance


def divergence(mean, log_variance):
    return 0.5 * (mean.square() + log_variance.exp() - 1 - log_variance)


def variational(fit, other):
    def step(model, x):
        made, mean, log_variance = model(x)
        return fit((made - x).square()) + other(divergence(mean, log_variance))

    return step


ILL = {
    "mean beside sum": variational(torch.mean, torch.sum),
    "penalty of activity": lambda model, x: F.mse_loss(model(x)[0], x) + 0.1 * model(x)[1].abs().sum(),
}
HEALTHY = {
    "sums over entries": variational(lambda e: e.sum(1).mean(), lambda e: e.sum(1).mean()),
    "means over entries": variational(torch.mean, lambda e: 1e-3 * e.mean()),
    "strong divergence": variational(lambda e: e.sum(1).mean(), lambda e: 2 * e.sum(1).mean()),
    "penalty of weights": lambda model, x: (
        F.mse_loss(model(x)[0], x) + 1e-4 * sum(p.square().sum() for p in model.parameters())
    ),
    "two comparisons": lambda model, x: F.mse_loss(model(x)[0], x) + 100 * F.l1_loss(model(x)[1], x[:, :8]),
}


def terms(step):
    torch.manual_seed(0)
    model = Autoencoder()
    before = state_of(model)
    result = diagnose(model, BATCHES, step=step, optimizer="adam", learning_rate=3e-3)
    assert state_of(model) == before
    assert result.cost <= 120
    return [f for f in result.findings if f.code == "loss-terms" and f.severity != "note"]


@pytest.mark.sampled(1)
@pytest.mark.parametrize("name", ILL)
def test_a_summand_against_which_nothing_is_learnt_is_an_error(name):
    (found,) = terms(ILL[name])
    assert found.severity == "error"
    assert found.source_line.startswith("tests/experiments/test_opposed_terms.py")


@pytest.mark.sampled(2)
@pytest.mark.parametrize("name", HEALTHY)
def test_summands_that_leave_room_to_learn_are_none(name):
    assert terms(HEALTHY[name]) == []


def opposed(step, *, rate=3e-3, most=60):
    torch.manual_seed(0)
    model = Autoencoder()
    before = state_of(model)
    data = load_batches(BATCHES, model, step=step)
    found = opposed_terms(model, data, None, optimizer_kind("adam", model), rate, most=most)
    assert state_of(model) == before
    return model, found


@pytest.mark.parametrize("name", ILL)
def test_what_the_summands_contribute_is_the_loss_and_what_learning_costs_is_more_than_it_gains(name):
    model, found = opposed(ILL[name])
    torch.manual_seed(0)
    whole = float(ILL[name](model, BATCHES[0]).detach())
    assert found.fits[0] + found.others[0] == pytest.approx(whole, rel=1e-5)
    assert found.gained > 0
    assert found.ratio > 1
    assert found.operation.line.startswith("tests/experiments/test_opposed_terms.py")


def derivative(model, x):
    x = x.clone().requires_grad_()
    made = model(x)[0]
    (slope,) = torch.autograd.grad(made.sum(), x, create_graph=True)
    return F.mse_loss(made, x.detach()) + slope.square().sum()


NOTHING = {
    "one summand": lambda model, x: F.mse_loss(model(x)[0], x),
    "no data": lambda model, x: model(x)[0].square().sum() + model(x)[1].square().sum(),
    "a derivative": derivative,
    "a small penalty": lambda model, x: F.mse_loss(model(x)[0], x) + 1e-4 * model(x)[1].abs().sum(),
}


@pytest.mark.parametrize("name", NOTHING)
def test_other_sums_are_not_trained_on(name):
    assert opposed(NOTHING[name])[1] is None


def test_nothing_is_said_where_gradients_do_not_suffice_or_training_fails():
    assert opposed(ILL["mean beside sum"], most=20)[1] is None
    assert opposed(ILL["mean beside sum"], rate=1e30)[1] is None
