"""Bounds are where training turns from stable to unstable."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from curvature_cases import net
from theta0._training import OptimizerSettings, make_optimizer
from theta0.curvature import curvature_rate
from theta0.curvature.stability import largest_rate, start_share

RATES = {
    "sgd": {},
    "momentum": {"momentum": 0.9},
    "nesterov": {"momentum": 0.8, "nesterov": True},
    "decay": {"weight_decay": 0.3},
    "momentum and decay": {"momentum": 0.5, "weight_decay": 0.3},
}


def quadratic() -> tuple[nn.Module, list[tuple[torch.Tensor, torch.Tensor]]]:
    """f(x) = w·x under mse: the Hessian is 2 E[x xᵀ], here diagonal with λ = 2."""
    x = torch.tensor([[1.0, 0.0], [0.0, 0.3]]) * math.sqrt(2)
    model = nn.Linear(2, 1, bias=False)
    with torch.no_grad():
        model.weight.copy_(torch.tensor([[0.5, 0.5]]))
    return model, [(x, torch.zeros(2, 1))]


def grows(model: nn.Module, batches, rate: float, **options) -> bool:
    given = OptimizerSettings("momentum" if "momentum" in options else "sgd", **options)
    optimizer = make_optimizer(given, model.parameters(), rate)
    (x, y), sizes = batches[0], []
    for _ in range(400):
        optimizer.zero_grad()
        nn.functional.mse_loss(model(x), y).backward()
        optimizer.step()
        sizes.append(float(model.weight.detach().abs().max()))
        if sizes[-1] > 1e3:
            return True
    return sizes[-1] > 1


@pytest.mark.parametrize("name", RATES)
def test_bound_is_where_a_quadratic_turns_unstable(name):
    options = RATES[name]
    model, batches = quadratic()
    settings = OptimizerSettings("momentum" if "momentum" in options else "sgd", **options)
    found = curvature_rate(model, batches, "mse", settings, generator=0)
    assert found.top_eigenvalue == pytest.approx(2.0, rel=1e-3)
    assert not grows(model, batches, 0.97 * found.bound, **options)
    assert grows(quadratic()[0], batches, 1.03 * found.bound, **options)


def test_suggestion_for_gradient_descent_is_one_over_the_top_eigenvalue():
    model, batches = quadratic()
    found = curvature_rate(model, batches, "mse", OptimizerSettings("sgd"), matrix="hessian", generator=0)
    assert found.value == pytest.approx(1 / found.top_eigenvalue)
    assert found.bound == pytest.approx(2 / found.top_eigenvalue)
    assert not found.proven


@given(beta=st.floats(0, 0.99), first=st.floats(0, 0.99), top=st.floats(1e-3, 1e3), decay=st.floats(0, 10))
@settings(deadline=None, max_examples=50)
def test_bounds_are_those_of_the_two_step_recursions(beta, first, top, decay):
    """At the bound the recursion's matrix has spectral radius 1: an eigenvalue -1."""

    def radius(matrix: list[list[float]]) -> float:
        return float(torch.linalg.eigvals(torch.tensor(matrix, dtype=torch.float64)).abs().max())

    c = (top + decay) * largest_rate(OptimizerSettings("momentum", momentum=beta, weight_decay=decay), top)
    assert radius([[1 + beta - c, -beta], [1, 0]]) == pytest.approx(1, abs=1e-5)
    c = (top + decay) * largest_rate(
        OptimizerSettings("momentum", momentum=beta, nesterov=True, weight_decay=decay), top
    )
    assert radius([[(1 + beta) * (1 - c), -beta * (1 - c)], [1, 0]]) == pytest.approx(1, abs=1e-5)
    c = top * largest_rate(OptimizerSettings("adam", betas=(first, 0.999)), top) * (1 - first)
    assert radius([[1 + first - c, -first], [1, 0]]) == pytest.approx(1, abs=1e-5)
    for name in ("sgd", "momentum", "adam", "adamw", "rmsprop"):
        assert 0 < start_share(OptimizerSettings(name, momentum=beta), "hessian") <= 0.5


def test_a_single_batch_gives_adam_second_moments_too():
    model, x, y, loss = net("mlp")
    found = curvature_rate(model, [(x, y)], loss, OptimizerSettings("adam"), generator=0)
    assert 1e-4 < found.value < 1


def test_smaller_batches_have_larger_curvature_on_average():
    model, x, y, loss = net("mlp")
    found = curvature_rate(model, [(x, y)], loss, OptimizerSettings("sgd"), batch_sizes=[2, 16], generator=0)
    (two, _, _), (all_, top, rate) = found.by_batch_size
    assert (two, all_) == (2, 16)
    assert top == pytest.approx(found.top_eigenvalue, rel=1e-2)
    assert rate == pytest.approx(found.value, rel=1e-2)


def test_batches_are_read_until_two_agree():
    model, x, y, loss = net("mlp")
    options = {"tolerance": 0.1, "generator": 0}
    two = curvature_rate(model, [(x, y)] * 2, loss, OptimizerSettings("sgd"), **options)
    alike = curvature_rate(model, [(x, y)] * 4, loss, OptimizerSettings("sgd"), **options)
    assert alike.products == two.products
    growing = [(scale * x, y) for scale in (1, 1.5, 2, 2.5)]
    apart = curvature_rate(model, growing, loss, OptimizerSettings("sgd"), **options)
    last = curvature_rate(model, growing[-1:], loss, OptimizerSettings("sgd"), **options)
    assert apart.top_eigenvalue == pytest.approx(last.top_eigenvalue, rel=0.1)
    assert apart.spread[0] < apart.spread[1] == apart.top_eigenvalue


def test_a_loss_that_couples_samples_falls_back_to_the_hessian():
    model, x, y, _ = net("mlp")
    found = curvature_rate(
        model, [(x, y)], lambda f, t: f.square().mean().sqrt(), OptimizerSettings("sgd"), generator=0
    )
    assert found.matrix == "hessian"
    assert found.bound == pytest.approx(2 / found.top_eigenvalue)


def test_certificate_needs_the_gauss_newton_matrix():
    model, x, y, loss = net("mlp")
    found = curvature_rate(model, [(x, y)], loss, OptimizerSettings("sgd"), certify=(0.1, 1e-3), generator=0)
    assert found.matrix == "ggn"
    assert found.certificate is not None
    assert found.value == pytest.approx(found.bound / 4)


def test_adams_second_moments_do_not_depend_on_what_dropout_drops():
    model, x, y, loss = net("mlp")
    found = []
    for seed in (0, 1, 2):
        torch.manual_seed(seed)
        found.append(curvature_rate(model, [(x, y)], loss, OptimizerSettings("adam"), generator=0).top_eigenvalue)
    assert found[0] == found[1] == found[2]
