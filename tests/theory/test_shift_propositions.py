"""Propositions 1-6 of kutsuna2019lcw against simulation in float64, and what their assumptions cost."""

import doctest
import math
from importlib import import_module

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from theta0.measurements import signals
from theta0.theory import (
    common_mean_share,
    expected_preactivation,
    gradient_gain,
    input_gradient_variance,
    layer_gain,
    preactivation_variance,
    relu_variances,
)

SAMPLES = 200_000


def draws(*shape: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def zero_sum(weight: torch.Tensor) -> torch.Tensor:
    return weight - weight.mean(1, keepdim=True)


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(import_module("theta0.theory.activation_shift"))
    assert result.attempted >= 2
    assert result.failed == 0


def test_proposition_2_by_simulation():
    weight, mean = draws(5, 8), draws(8, seed=1)
    a = mean + torch.exp(draws(SAMPLES, 8, seed=2)) - math.exp(0.5)
    z = a @ weight.T
    found = expected_preactivation(weight, mean)
    error = z.std(0) / SAMPLES**0.5
    assert ((z.mean(0) - found.value).abs() < 5 * error).all()
    torch.testing.assert_close(found.weight_norm * found.mean_norm * found.cosine, found.value)
    assert found.cosine.abs().max() <= 1


@pytest.mark.parametrize("gamma", [0.5, -0.5])
def test_proposition_1_holds_as_printed_for_positive_means_only(gamma):
    weight, m = draws(6, 10), 10
    found = expected_preactivation(weight, torch.full((m,), gamma))
    to_ones = torch.cosine_similarity(weight, torch.ones(1, m).double())
    printed = abs(gamma) * m**0.5 * weight.norm(dim=1) * to_ones
    torch.testing.assert_close(found.value, printed if gamma > 0 else -printed)


@settings(max_examples=30, deadline=None)
@given(st.floats(-100, 100), st.integers(0, 99))
def test_proposition_3_zero_sum_weights_have_no_mean(gamma, seed):
    found = expected_preactivation(zero_sum(draws(4, 9, seed=seed)), torch.full((9,), gamma).double())
    assert found.value.abs().max() <= 1e-13 * (1 + abs(gamma))


@settings(max_examples=30, deadline=None)
@given(st.floats(-5, 5), st.integers(0, 99))
def test_what_zero_sum_weights_leave_is_what_is_not_common(gamma, seed):
    mean = gamma + draws(50, seed=seed)
    share = common_mean_share(mean)
    left = (mean - mean.mean()).square().sum() / mean.square().sum()
    assert share == pytest.approx(1 - left.item(), abs=1e-12)
    weight = zero_sum(draws(2000, 50, seed=seed + 1))
    plain = draws(2000, 50, seed=seed + 2)
    between = [expected_preactivation(w, mean).value.square().mean().item() for w in (weight, plain)]
    assert between[0] / between[1] == pytest.approx(1 - share, rel=0.25, abs=1e-9)


def test_no_mean_counts_as_common():
    assert common_mean_share(torch.zeros(3)) == 1
    assert common_mean_share(torch.full((3,), -2.0)) == 1


def test_zero_weights_and_means_have_no_angle():
    found = expected_preactivation(torch.zeros(2, 3), torch.zeros(3))
    assert found.cosine.tolist() == [0, 0]


def test_proposition_4_by_simulation_for_any_covariance():
    weight, mix = draws(5, 8), draws(8, 8, seed=1)
    a = 3 + draws(SAMPLES, 8, seed=2) @ mix.T
    found = preactivation_variance(weight, mix @ mix.T)
    torch.testing.assert_close((a @ weight.T).var(0), found, rtol=0.02, atol=0)
    alike = 3 + 0.3 * draws(SAMPLES, 8, seed=3)
    torch.testing.assert_close((alike @ weight.T).var(0), preactivation_variance(weight, 0.09), rtol=0.02, atol=0)
    torch.testing.assert_close(
        preactivation_variance(weight, 0.09), preactivation_variance(weight, 0.09 * torch.eye(8))
    )


def test_proposition_5_by_simulation():
    weight = draws(5, 8)
    gradient = 0.2 * draws(SAMPLES, 5, seed=1)
    found = input_gradient_variance(weight, 0.04)
    torch.testing.assert_close((gradient @ weight).var(0), found, rtol=0.02, atol=0)


def test_proposition_6_by_simulation():
    z, gradient = 1.7 * draws(SAMPLES), 0.3 * draws(SAMPLES, seed=1)
    forward, backward = relu_variances(1.7**2, 0.3**2)
    assert torch.relu(z).var().item() == pytest.approx(forward, rel=0.02)
    assert ((z > 0) * gradient).var().item() == pytest.approx(backward, rel=0.02)


@pytest.mark.parametrize("constrained", [False, True])
def test_section_4_1_by_simulation(constrained):
    weight = draws(40, 40) / 6
    weight = zero_sum(weight) if constrained else weight
    found = layer_gain(weight, mean=0.5, variance=0.04)
    z = (0.5 + 0.2 * draws(SAMPLES // 10, 40, seed=1)) @ weight.T
    torch.testing.assert_close(z.var(0) / 0.04, found.rows, rtol=0.05, atol=0)
    assert z.var().item() / 0.04 == pytest.approx(found.forward, rel=0.02)
    gradient = draws(SAMPLES // 10, 40, seed=2) @ weight
    assert gradient.var().item() == pytest.approx(found.backward, rel=0.02)
    if constrained:
        assert found.forward == pytest.approx(found.backward, rel=1e-12)
    else:
        assert found.forward > 4 * found.backward


@settings(max_examples=30, deadline=None)
@given(st.floats(0.1, 10), st.floats(-1, 1), st.integers(0, 99))
def test_every_gain_grows_with_the_square_of_the_scale_and_a_square_layer_is_balanced(kappa, mean, seed):
    weight = draws(7, 7, seed=seed)
    plain, scaled = layer_gain(weight, mean=mean), layer_gain(kappa * weight, mean=mean)
    torch.testing.assert_close(scaled.rows, kappa**2 * plain.rows)
    torch.testing.assert_close(scaled.columns, kappa**2 * plain.columns)
    assert scaled.forward == pytest.approx(kappa**2 * plain.forward)
    assert scaled.backward == pytest.approx(kappa**2 * plain.backward)
    assert plain.rows.mean() == pytest.approx(plain.columns.mean())
    assert plain.forward >= plain.backward * (1 - 1e-12)


@pytest.mark.sampled(4)
@pytest.mark.parametrize(("activation", "depth"), [(nn.Sigmoid(), 6), (nn.Tanh(), 8), (nn.ReLU(), 8), (nn.GELU(), 6)])
@pytest.mark.parametrize("constrained", [False, True])
def test_section_4_3_gradients_of_wide_networks(activation, depth, constrained):
    """A network with σ = 1, scaled layer by layer by hand: the mean gain over layers, and no unit is special."""
    width, generator = 400, torch.Generator().manual_seed(0)
    a, parts = draws(100, width, seed=5), []
    for _ in range(depth):
        weight = torch.randn(width, width, generator=generator, dtype=torch.float64)
        weight = zero_sum(weight) if constrained else weight
        weight /= (a @ weight.T).std()
        layer = nn.Linear(width, width, bias=False).double()
        layer.weight = nn.Parameter(weight)
        parts += [layer, activation]
        a = activation(a @ weight.T)
    model = nn.Sequential(*parts, nn.Linear(width, 10).double())
    batch = (draws(100, width, seed=5), torch.arange(100) % 10)
    records = signals(model, [batch], "cross_entropy")
    found = [
        r.value for r in records if r.quantity == "backward_norm" and r.layer in {str(2 * i) for i in range(depth)}
    ]
    measured = (found[0] / found[-1]) ** (2 / (depth - 1))
    assert measured == pytest.approx(gradient_gain(activation, zero_sum=constrained), rel=0.08)


@pytest.mark.parametrize(("mean", "variance"), [(0.0, 0.0), (math.nan, 1.0), (0.0, math.inf)])
def test_wrong_arguments(mean, variance):
    with pytest.raises(ValueError, match="positive, finite variance"):
        layer_gain(draws(2, 2), mean=mean, variance=variance)


def test_a_constant_activation_has_no_gain():
    with pytest.raises(ValueError, match="an activation that varies"):
        gradient_gain(lambda z: 0 * z, zero_sum=True)
