"""Variance factors against closed forms, Gauss-Hermite quadrature, sampling, and the source's figures."""

import doctest
import math
from importlib import import_module

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from theta0.theory import variance_factors


def density(t):
    return math.exp(-t * t / 2) / math.sqrt(2 * math.pi)


def below(t):
    return (1 + math.erf(t / math.sqrt(2))) / 2


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(import_module("theta0.theory.variance_factors"))
    assert result.attempted >= 1
    assert result.failed == 0


@pytest.mark.sampled(2)
@pytest.mark.parametrize("relu", [torch.relu, nn.ReLU(inplace=True), F.relu_, lambda z: z.clamp(min=0)])
def test_relu(relu):
    for sigma in (1e-20, 0.5, 1.0, 30.0):
        factors = variance_factors(relu, sigma)
        assert factors.forward == pytest.approx((1 - 1 / math.pi) / 2, rel=1e-10)
        assert factors.backward == pytest.approx(0.5, rel=1e-10)
        assert factors.mean == pytest.approx(sigma / math.sqrt(2 * math.pi), rel=1e-10)


@pytest.mark.parametrize(
    ("sigma", "printed", "variances"),
    [
        (0.5, (0.236, 0.237), (0.0558, 0.0560)),
        (1.0, (0.208, 0.211), (0.0434, 0.0448)),
        (2.0, (0.157, 0.170), (0.0246, 0.0290)),
    ],
)
def test_the_sources_sigmoid_figures_are_square_roots(sigma, printed, variances):
    factors = variance_factors(torch.sigmoid, sigma)
    assert (factors.forward, factors.backward) == pytest.approx(variances, abs=5.1e-5)
    assert (math.sqrt(factors.forward), math.sqrt(factors.backward)) == pytest.approx(printed, abs=1.01e-3)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("sigma", [0.3, 1.0, 2.5])
def test_closed_forms_with_kinks_away_from_zero(sigma):
    t = 1 / sigma  # hardtanh clips at ±1
    inside = below(t) - below(-t)
    square = inside - 2 * t * density(t) + t**2 * (1 - inside)
    factors = variance_factors(F.hardtanh, sigma)
    assert factors.forward == pytest.approx(square, rel=1e-9)
    assert factors.backward == pytest.approx(inside, rel=1e-9)


@pytest.mark.parametrize("sigma", [0.5, 1.0, 1.5])
def test_closed_forms_of_smooth_activations(sigma):
    variance = sigma**2
    factors = variance_factors(torch.exp, sigma)
    assert factors.forward == pytest.approx((math.exp(2 * variance) - math.exp(variance)) / variance, rel=1e-9)
    assert factors.backward == pytest.approx(math.exp(2 * variance), rel=1e-9)
    factors = variance_factors(lambda z: torch.erf(z / math.sqrt(2)), sigma)
    assert factors.forward == pytest.approx(2 / math.pi * math.asin(variance / (1 + variance)) / variance, rel=1e-9)
    assert factors.backward == pytest.approx(2 / math.pi / math.sqrt(1 + 2 * variance), rel=1e-9)


SMOOTH = [
    (nn.Sigmoid(), lambda z: 1 / (1 + np.exp(-z)), lambda z: 0.25 / np.cosh(z / 2) ** 2),
    (nn.Tanh(), np.tanh, lambda z: 1 / np.cosh(z) ** 2),
    (nn.Softplus(), lambda z: np.log1p(np.exp(z)), lambda z: 1 / (1 + np.exp(-z))),
]


@pytest.mark.sampled(2)
@pytest.mark.parametrize(("module", "value", "slope"), SMOOTH)
def test_smooth_activations_by_gauss_hermite(module, value, slope):
    nodes, weights = np.polynomial.hermite_e.hermegauss(180)
    weights = weights / weights.sum()
    for sigma in (0.5, 1.0):
        a, d = value(sigma * nodes), slope(sigma * nodes)
        factors = variance_factors(module, sigma)
        assert factors.forward == pytest.approx(weights @ (a - weights @ a) ** 2 / sigma**2, rel=1e-8)
        assert factors.backward == pytest.approx(weights @ d**2, rel=1e-8)
        assert factors.mean == pytest.approx(weights @ a, rel=1e-8, abs=1e-12)


@pytest.mark.sampled(1)
@pytest.mark.parametrize(
    "module",
    [nn.GELU(), nn.Hardswish(), nn.PReLU(), nn.RReLU(), nn.ELU(), nn.SELU(), nn.ReLU6(), nn.Hardshrink(), nn.Mish()],
)
def test_torchs_activations_by_sampling(module):
    quantiles = (torch.arange(200_001, dtype=torch.float64)[1:-1]) / 200_000
    z = (1.3 * torch.special.ndtri(quantiles)).requires_grad_()
    a = module.double().eval()(z)
    (slope,) = torch.autograd.grad(a.sum(), z)
    factors = variance_factors(module, 1.3)
    assert factors.forward == pytest.approx((a.var() / 1.69).item(), rel=2e-3)
    assert factors.backward == pytest.approx(slope.square().mean().item(), rel=2e-3)


@pytest.mark.slow
@settings(max_examples=4, deadline=None)
@given(st.floats(0.1, 5), st.floats(-3, 3).filter(lambda c: abs(c) > 1e-3), st.floats(-1e4, 1e4))
def test_scale_and_offset(sigma, scale, offset):
    plain = variance_factors(torch.tanh, sigma)
    changed = variance_factors(lambda z: scale * torch.tanh(z) + offset, sigma)
    assert changed.forward == pytest.approx(scale**2 * plain.forward, rel=1e-5)
    assert changed.backward == pytest.approx(scale**2 * plain.backward, rel=1e-7)


@pytest.mark.slow
@settings(max_examples=3, deadline=None)
@given(st.floats(0.2, 3))
def test_the_poincare_inequality(sigma):
    """Var φ(z) ≤ σ²E[φ'²] for Gaussian z, equal for linear φ."""
    for activation in (torch.sigmoid, torch.relu, F.gelu):
        factors = variance_factors(activation, sigma)
        assert factors.forward <= factors.backward * (1 + 1e-9)
    assert variance_factors(lambda z: 2 * z, sigma).forward == pytest.approx(4, rel=1e-9)


def test_the_module_is_left_as_it_came():
    module = nn.PReLU().train()
    before = module.weight.detach().clone()
    variance_factors(module)
    assert module.training
    assert module.weight.dtype == torch.float32
    assert module.weight.grad is None
    assert torch.equal(module.weight.detach(), before)


def test_it_works_inside_no_grad():
    with torch.no_grad():
        assert variance_factors(torch.relu).backward == pytest.approx(0.5)


@pytest.mark.parametrize(
    ("activation", "sigma", "words"),
    [
        (torch.relu, 0.0, "sigma must be a positive"),
        (torch.relu, math.nan, "sigma must be a positive"),
        (nn.Softmax(-1), 1.0, "is not elementwise"),
        (torch.sum, 1.0, "is not elementwise"),
        (nn.GLU(), 1.0, "elementwise activation"),
        (nn.PReLU(4), 1.0, "elementwise activation"),
        (lambda z: z.detach(), 1.0, "differentiable by autograd"),
        (nn.ReLU, 1.0, "elementwise activation"),  # a class, not an instance
        (torch.sqrt, 1.0, "is not finite"),
        (lambda z: torch.where(z > 4, torch.full_like(z, math.inf), z), 1.0, "did not converge"),
        (torch.sigmoid, 1e-14, "did not converge"),
        (torch.exp, 30.0, "did not converge"),
    ],
)
def test_wrong_arguments_are_explained(activation, sigma, words):
    with pytest.raises(ValueError, match=words):
        variance_factors(activation, sigma)
