"""`suggest_learning_rate`: a rate to start with, and the bound above which training cannot be stable."""

import pytest
import torch
from torch import nn

from cases import flat, mlp, normal
from states import state_of
from theta0 import suggest_learning_rate


def regression():
    """A linear model under the mean squared error: its curvature is 2 XᵀX/n, and known."""
    x = normal(64, 4)
    model = nn.Linear(4, 1, bias=False)
    top = 2 * torch.linalg.eigvalsh(x.double().T @ x.double())[-1].item() / len(x)
    return model, [(x, x.sum(1, keepdim=True))], top


def trained(model, batches, rate, steps=200):
    ((x, y),) = batches
    optimizer, losses = torch.optim.SGD(model.parameters(), rate), []
    for _ in range(steps):
        optimizer.zero_grad()
        loss = nn.functional.mse_loss(model(x), y)
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    return losses[-1] / losses[0]


def test_gradient_descent_is_bounded_by_two_over_the_top_eigenvalue():
    model, batches, top = regression()
    found = suggest_learning_rate(model, batches, "mse", steps=0, generator=0)  # what the curvature alone says
    assert found.top_eigenvalue == pytest.approx(top, rel=1e-2)
    assert 0 < found.value <= 1 / found.top_eigenvalue
    assert found.bound == pytest.approx(2 / found.top_eigenvalue)
    assert not found.proven


def test_a_rate_is_proven_by_runs_before_it_is_given():
    model, batches, _ = regression()
    found = suggest_learning_rate(model, batches, "mse", generator=0)
    assert found.proven
    assert found.runs
    assert found.value <= found.bound


def test_at_the_suggestion_it_trains_and_beyond_the_bound_it_diverges():
    model, batches, _ = regression()
    found = suggest_learning_rate(model, batches, "mse", generator=0)
    assert trained(model, batches, found.value) < 0.1
    assert not trained(regression()[0], batches, 1.1 * found.bound) <= 10  # it may be NaN


@pytest.mark.sampled(2)
@pytest.mark.parametrize("optimizer", ["momentum", "adam", "adamw", "rmsprop"])
def test_each_optimizer_has_its_own_and_the_model_is_left_as_it_was(optimizer):
    model = mlp()
    before = state_of(model)
    found = suggest_learning_rate(model, flat(), "cross_entropy", optimizer, generator=0)
    assert 0 < found.value < 2 * found.bound  # the bound is the start's; a run has trained at the rate
    assert found.proven
    assert found.converged
    assert state_of(model) == before


@pytest.mark.slow
def test_the_same_generator_gives_the_same_rate():
    torch.manual_seed(0)
    model = mlp()
    rates = [suggest_learning_rate(model, flat(), "cross_entropy", generator=1).value for _ in range(2)]
    assert rates[0] == rates[1]
