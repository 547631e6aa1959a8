"""A rate is held against the curvature at the start."""

import pytest
import torch
from torch import nn

from cases import mlp
from cases import unprobed as diagnose

X, Y = torch.randn(64, 8, generator=torch.Generator().manual_seed(0)), torch.arange(64) % 4


def linear_regression():
    """λ of ½-free mean squared error of a linear model without bias: 2 λ_max(XᵀX)/n, in closed form."""
    model = nn.Linear(8, 1, bias=False)
    target = X @ torch.ones(8, 1)
    top = 2 * torch.linalg.eigvalsh(X.double().T @ X.double())[-1].item() / len(X)
    return model, [(X, target)], 2 / top


@pytest.mark.parametrize(
    ("share", "expected"),
    [(0.9, None), (1.0, None), (2.0, "warning"), (5.0, "error"), (1e-3, None), (1e-6, "warning")],
)
def test_the_bound_of_a_quadratic_is_known(share, expected):
    model, batches, bound = linear_regression()
    found = diagnose(model, batches, "mse", optimizer="sgd", learning_rate=share * bound)
    rates = {f.code: f for f in found.findings if f.code.startswith("learning-rate")}
    assert [f.severity for f in rates.values()] == ([] if expected is None else [expected])
    assert found.learning_rate is not None
    assert found.learning_rate.bound == pytest.approx(bound, rel=0.1)
    if expected is not None:
        (code,) = rates
        assert code == ("learning-rate-too-high" if share > 1 else "learning-rate-too-low")
        assert rates[code].value == pytest.approx(share, rel=0.1)


def test_the_rate_at_the_bound_is_where_training_turns():
    """The number is right: gradient descent just below the bound falls, and well above it diverges."""
    for share, falls in ((0.9, True), (1.3, False)):
        model, ((x, y),), bound = linear_regression()
        stepper = torch.optim.SGD(model.parameters(), share * bound)
        losses = []
        for _ in range(200):
            stepper.zero_grad()
            loss = nn.functional.mse_loss(model(x), y)
            loss.backward()
            stepper.step()
            losses.append(float(loss.detach()))
        assert (losses[-1] < losses[0]) is falls


def test_no_rate_no_judgement_and_an_ill_start_is_not_called_slow():
    model = mlp() if callable(mlp) else mlp
    assert diagnose(model, [(X[:, : model[0].in_features], Y % 3)], "cross_entropy").learning_rate is None
    deep = nn.Sequential(*(part for _ in range(12) for part in (nn.Linear(8, 8), nn.Sigmoid())), nn.Linear(8, 4))
    codes = {f.code for f in diagnose(deep, [(X, Y)], "cross_entropy", learning_rate=1e-9).findings}
    assert "vanishing-gradients" in codes
    assert "learning-rate-too-low" not in codes


def test_an_absolute_error_has_no_curvature_to_judge_by():
    model, batches, _ = linear_regression()
    found = diagnose(model, batches, "l1", optimizer="sgd", learning_rate=100.0)
    assert found.learning_rate is None
    assert not any(f.code.startswith("learning-rate") for f in found.findings)


def test_targets_of_another_length_than_the_batch_are_not_cut():
    class Tokens(nn.Module):
        def __init__(self):
            super().__init__()
            self.embed, self.head = nn.Embedding(7, 8), nn.Linear(8, 7)

        def forward(self, tokens):
            return self.head(self.embed(tokens)).flatten(0, 1)

    tokens = torch.randint(7, (8, 5), generator=torch.Generator().manual_seed(0))
    found = diagnose(Tokens(), [(tokens, tokens.flatten())], "cross_entropy", optimizer="adam", learning_rate=1e-3)
    assert found.learning_rate is not None


@pytest.mark.parametrize(("scale", "expected"), [(1.0, None), (10.0, None), (2e3, "error")])
def test_a_step_as_long_as_the_weights_is_told_although_the_curvature_allows_it(scale, expected):
    """The Gauss-Newton matrix of a squared error does not see the targets; descent on large ones diverges."""
    model = nn.Sequential(nn.Linear(8, 32), nn.ReLU(), nn.Linear(32, 1))
    with torch.no_grad():
        for p in model.parameters():
            p.copy_(torch.randn(p.shape, generator=torch.Generator().manual_seed(p.numel())) / p.shape[-1] ** 0.5)
    y = scale * torch.tanh(X.sum(1, keepdim=True))
    found = diagnose(model, [(X, y)], "mse", optimizer="sgd", learning_rate=0.01)
    assert [f.severity for f in found.findings if f.code == "learning-rate-too-high"] == [expected] * bool(expected)
    stepper, losses = torch.optim.SGD(model.parameters(), 0.01), []
    for _ in range(60):
        stepper.zero_grad()
        loss = nn.functional.mse_loss(model(X), y)
        loss.backward()
        stepper.step()
        losses.append(loss.item())
    assert (losses[-1] < losses[0]) is (expected is None)


def test_a_long_step_of_one_weight_is_none():
    model = nn.Linear(8, 1)
    found = diagnose(model, [(X, 1e4 * X[:, :1])], "mse", optimizer="sgd", learning_rate=0.01)
    assert "learning-rate-too-high" not in {f.code for f in found.findings}
