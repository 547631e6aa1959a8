"""Treatments of data in one batch, by optimizers whose step evaluates the loss, and at rates of their own."""

import pytest
import torch
from torch import nn

from cases import normal
from states import state_of
from theta0._batches import load_batches
from theta0.experiments import optimizer_kind
from theta0.treatment import treat
from theta0.treatment.trials import reached, slower_run, trial_of

X = normal(64, 6)
Y = (X[:, 0] > 0).long()


class Whole(nn.Linear):
    """Takes the whole batch only, as a graph network does."""

    def forward(self, x):
        if len(x) != 64:
            raise IndexError("a mask of 64 rows")
        return super().forward(x)


def test_a_model_that_takes_the_whole_batch_only_needs_two():
    with pytest.raises(ValueError, match="pass at least two batches"):
        treat(Whole(6, 2), [(X, Y)], "cross_entropy", steps=3)


@pytest.mark.parametrize("optimizer", [pytest.param(torch.optim.LBFGS, marks=pytest.mark.slow), None])
def test_without_a_rate_each_start_gets_its_own(optimizer):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 2))
    found = treat(model, [(X, Y)], "cross_entropy", with_="unit-variance", optimizer=optimizer, steps=3)
    assert found.remedy == "unit-variance"
    assert found.untreated.rate > 0
    assert found.treated.rate > 0


def test_a_start_that_a_lower_rate_suits_is_run_at_one():
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(nn.Linear(6, 8), nn.Tanh(), nn.Linear(8, 1))
    targets = X.sum(1, keepdim=True)
    data = load_batches(list(zip(X.split(8), targets.split(8), strict=True)), model)
    trial = trial_of(data, "mse", optimizer=optimizer_kind("sgd", model), rate=30.0, steps=6)
    before = state_of(model)
    run, cost = slower_run(model, trial, 30.0)
    assert run.rate < 30
    assert reached(run) < float("inf")
    assert cost > run.cost
    assert state_of(model) == before
