"""Bounds are where training turns from stable to unstable, and the suggestion trains."""

import math

import pytest
import torch
from curvature_cases import net
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from theta0._training import OptimizerSettings, make_optimizer
from theta0.curvature import suggest_learning_rate
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
    found = suggest_learning_rate(
        model, batches, "mse", "momentum" if "momentum" in options else "sgd", generator=0, **options
    )
    assert found.top_eigenvalue == pytest.approx(2.0, rel=1e-3)
    assert not grows(model, batches, 0.97 * found.bound, **options)
    assert grows(quadratic()[0], batches, 1.03 * found.bound, **options)


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


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "adam", "adamw", "rmsprop"])
@pytest.mark.parametrize("name", ["mlp", "bn-resnet", "transformer"])
def test_the_suggestion_trains_and_the_model_is_left(name, optimizer):
    model, x, y, loss = net(name)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    batches = [(x[: len(x) // 2], y[: len(x) // 2]), (x[len(x) // 2 :], y[len(x) // 2 :])]
    found = suggest_learning_rate(model, batches, loss, optimizer, generator=0)
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())
    assert found.value < found.bound
    assert found.spread[0] <= found.spread[1] == found.top_eigenvalue
    for module in model.modules():  # dropout's noise (here on labels that are noise too) is not in the curvature
        if isinstance(module, nn.Dropout):
            module.p = 0.0
    stepped = make_optimizer(OptimizerSettings(optimizer), model.parameters(), found.value)
    losses = []
    torch.manual_seed(0)
    for step in range(60):
        stepped.zero_grad()
        value = nn.functional.cross_entropy(model(batches[step % 2][0]), batches[step % 2][1])
        value.backward()
        stepped.step()
        losses.append(float(value.detach()))
    assert sum(losses[-6:]) < sum(losses[:6])


def test_a_single_batch_gives_adam_second_moments_too():
    model, x, y, loss = net("mlp")
    found = suggest_learning_rate(model, [(x, y)], loss, "adam", generator=0)
    assert 1e-4 < found.value < 1


def test_smaller_batches_have_larger_curvature_on_average():
    model, x, y, loss = net("mlp")
    found = suggest_learning_rate(model, [(x, y)], loss, batch_sizes=[2, 16], steps=0, generator=0)
    (two, _, _), (all_, top, rate) = found.by_batch_size
    assert (two, all_) == (2, 16)
    assert top == pytest.approx(found.top_eigenvalue, rel=1e-2)
    assert rate == pytest.approx(found.value, rel=1e-2)


def test_the_check_halves_a_rate_at_which_the_loss_grows():
    """Curvature at zero error is that of the tangent; a steep cubic makes it a poor guide to the next steps."""

    class Steep(nn.Module):
        def __init__(self):
            super().__init__()
            self.w = nn.Parameter(torch.tensor(0.01))

        def forward(self, x):
            return self.w * x

    def loss(f, t):
        return (0.5 * f**2 * 1e-3 - f + 10 * f**4).mean()

    unchecked = suggest_learning_rate(Steep(), [(torch.ones(4, 1), torch.ones(4, 1))], loss, steps=0, generator=0)
    found = suggest_learning_rate(Steep(), [(torch.ones(4, 1), torch.ones(4, 1))], loss, steps=10, generator=0)
    assert found.halvings > 0
    assert found.value == pytest.approx(unchecked.value / 2**found.halvings)


def test_certificate_needs_the_gauss_newton_matrix():
    model, x, y, loss = net("mlp")
    found = suggest_learning_rate(model, [(x, y)], loss, certify=(0.1, 1e-3), generator=0)
    assert found.matrix == "ggn"
    assert found.certificate is not None
    assert found.value == pytest.approx(found.bound / 4)
