"""Theorems 6-8 and Lemmas 2-4 of furusho2020thesis against simulation and against each other."""

import doctest
import math
import re
from fractions import Fraction
from itertools import combinations

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from jaxtyping import TypeCheckError
from residual_simulation import simulate, z_score

import theta0.theory.fisher_bounds
from theta0.theory import (
    GAUSSIAN_VARIANCE_PER_LAYER,
    batch_norm_moments,
    batch_norm_resnet_bounds,
    kept_layers,
    max_learning_rate,
    printed_stochastic_depth_moments,
    resnet_bounds,
    resnet_moments,
    stochastic_depth_bounds,
    stochastic_depth_moments,
    variance_factors,
)

DEPTHS = (1, 2, 4, 6)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def lemma_1(moments):
    return math.fsum(u * d for u, d in zip(moments.forward, moments.backward, strict=True)) / len(moments.forward)


def test_the_examples_in_the_docstrings_run():
    result = doctest.testmod(theta0.theory.fisher_bounds, optionflags=doctest.ELLIPSIS)
    assert result.attempted >= 9
    assert result.failed == 0


# ── the assumptions to the letter: exact at every width


@pytest.mark.parametrize("depth", DEPTHS)
def test_theorem_6_and_lemma_2_under_their_assumptions(depth):
    run = simulate(depth, 16, 600, 4, generator(depth), gate="coin")
    moments = resnet_moments(depth)
    assert abs(z_score(run.means, resnet_bounds(depth, 16).mean)) < 4
    assert z_score(run.forward, moments.forward).abs().max() < 4
    assert z_score(run.backward, moments.backward).abs().max() < 4


@pytest.mark.parametrize("dropping", ["exactly", "bernoulli"])
@pytest.mark.parametrize("depth", [2, 4, 6])
def test_stochastic_depth_under_the_assumptions(depth, dropping):
    run = simulate(depth, 16, 1500, 2, generator(depth), gate="coin", dropping=dropping, p=0.5)
    moments = stochastic_depth_moments(depth, 0.5, dropping=dropping)
    assert abs(z_score(run.means, stochastic_depth_bounds(depth, 16, 0.5, dropping=dropping).mean)) < 4
    assert z_score(run.forward, moments.forward).abs().max() < 4
    assert z_score(run.backward, moments.backward).abs().max() < 4


@pytest.mark.parametrize("depth", DEPTHS)
def test_lemma_3_under_its_assumptions(depth):
    run = simulate(depth, 16, 600, 4, generator(depth), gate="coin", divisor="lemma")
    moments = batch_norm_moments(depth)
    assert abs(z_score(run.means, batch_norm_resnet_bounds(depth, 16).mean)) < 4
    assert z_score(run.forward, moments.forward).abs().max() < 4
    assert z_score(run.backward, moments.backward).abs().max() < 4


# ── the networks themselves


@pytest.mark.parametrize("depth", DEPTHS)
def test_theorem_6_on_relu_nets_within_sampling_error(depth):
    run = simulate(depth, 50, 60, 4, generator(depth))
    assert abs(z_score(run.means, resnet_bounds(depth, 50).mean)) < 4


@pytest.mark.parametrize("dropping", ["exactly", "bernoulli"])
def test_stochastic_depth_on_relu_nets_within_sampling_error(dropping):
    for depth in (2, 4, 6):
        run = simulate(depth, 50, 100, 4, generator(depth), dropping=dropping, p=0.5)
        assert abs(z_score(run.means, stochastic_depth_bounds(depth, 50, 0.5, dropping=dropping).mean)) < 4


@pytest.mark.slow
@pytest.mark.parametrize("dropping", [None, "exactly", "bernoulli"])
def test_relu_nets_exceed_the_closed_forms_by_a_share_of_one_over_width(dropping):
    depth, excess = 6, {}
    theory = stochastic_depth_bounds(depth, 1, 0.5, dropping=dropping) if dropping else resnet_bounds(depth, 1)
    for width, nets, repeats in ((8, 4000, 10), (16, 2000, 10), (64, 400, 40)):
        chunks = [
            simulate(depth, width, nets, 4, generator(seed), dropping=dropping, p=0.5).means for seed in range(repeats)
        ]
        ratio = torch.cat(chunks) / theory.mean - 1
        excess[width] = (ratio.mean().item(), (ratio.std() / len(ratio) ** 0.5).item())
    assert excess[8][0] > 4 * excess[8][1]  # visible at width 8 ...
    assert excess[64][0] < 0.25 * excess[8][0] + 3 * excess[64][1]  # ... and falling as 1/D
    assert abs(excess[64][0]) < 0.05 + 3 * excess[64][1]


@pytest.mark.slow
def test_batch_normalised_nets_exceed_theorem_7_and_the_batch_variance_explains_it():
    for depth in (2, 4, 8):
        means = torch.cat([simulate(depth, 128, 10, 256, generator(s), divisor="batch").means for s in range(8)])
        error = (means.std() / len(means) ** 0.5).item()
        printed = batch_norm_resnet_bounds(depth, 128).mean
        corrected = batch_norm_resnet_bounds(depth, 128, variance_per_layer=GAUSSIAN_VARIANCE_PER_LAYER).mean
        measured = means.mean().item()
        if depth > 2:
            assert measured > printed + 4 * error  # the gap
        assert abs(measured - corrected) < 4 * error + 0.05 * corrected  # finite width and batch


# ── relations between the closed forms


@given(st.integers(0, 60))
def test_lemma_1_sums_the_moments_to_the_means(depth):
    assert resnet_bounds(depth, 3).mean == pytest.approx(lemma_1(resnet_moments(depth)), rel=1e-12)
    harmonic = sum((Fraction(1, k) for k in range(1, depth + 2)), Fraction(0))
    assert batch_norm_resnet_bounds(depth, 3).mean == pytest.approx(float((harmonic + 1) / 2), rel=1e-12)


@given(st.integers(1, 12), st.data())
def test_theorem_8_averages_over_all_sets_of_kept_layers(depth, data):
    kept = data.draw(st.integers(0, depth))
    p = kept / depth
    sets = [set(chosen) for chosen in combinations(range(1, depth + 1), kept)]
    before = [sum(2.0 ** sum(k < layer for k in s) / 2 for s in sets if layer in s) for layer in range(1, depth + 1)]
    after = [sum(2.0 ** sum(k > layer for k in s) for s in sets) for layer in range(depth + 1)]
    moments = stochastic_depth_moments(depth, p)
    assert moments.forward[1:] == pytest.approx([b / len(sets) for b in before], rel=1e-12)
    assert moments.backward == pytest.approx([a / len(sets) for a in after], rel=1e-12)
    bounds = stochastic_depth_bounds(depth, 4, p)
    assert bounds.mean == pytest.approx(lemma_1(printed_stochastic_depth_moments(depth, p)), rel=1e-12)
    shallow = resnet_bounds(kept, 4)  # the trace of the net of kept layers, over more parameters
    assert bounds.upper == pytest.approx(shallow.upper, rel=1e-12)


@given(st.integers(1, 10), st.floats(0, 1))
def test_bernoulli_drops_average_theorem_8_over_the_binomial_number_of_kept_layers(depth, p):
    weights = [math.comb(depth, k) * p**k * (1 - p) ** (depth - k) for k in range(depth + 1)]
    means = [stochastic_depth_bounds(depth, 2, k / depth).mean for k in range(depth + 1)]
    bernoulli = stochastic_depth_bounds(depth, 2, p, dropping="bernoulli")
    assert bernoulli.mean == pytest.approx(math.fsum(w * m for w, m in zip(weights, means, strict=True)), rel=1e-9)
    moments = stochastic_depth_moments(depth, p, dropping="bernoulli")
    assert bernoulli.mean == pytest.approx(lemma_1(moments), rel=1e-12)


def test_certain_survival_is_the_plain_net():
    for dropping in ("exactly", "bernoulli"):
        assert stochastic_depth_bounds(5, 7, 1.0, dropping=dropping) == resnet_bounds(5, 7)
        assert stochastic_depth_moments(5, 1.0, dropping=dropping) == resnet_moments(5)


def test_the_gaussian_variance_per_layer_is_twice_relus_forward_factor():
    assert pytest.approx(2 * variance_factors(torch.relu).forward, rel=1e-10) == GAUSSIAN_VARIANCE_PER_LAYER


def test_the_largest_eigenvalue_lies_between_the_bounds():
    """The expected Fisher matrix of nets of 3 layers and width 4, from explicit gradients by another route."""
    depth, width, nets, g = 2, 4, 400, generator()
    x = torch.randn(nets, width, generator=g, dtype=torch.float64)
    scales = torch.tensor([1.0, 2.0, 2.0], dtype=torch.float64).div(width).sqrt()
    weights = torch.randn(nets, depth + 1, width, width, generator=g, dtype=torch.float64) * scales[:, None, None]

    def net(w, x):
        h = w[0] @ x
        for layer in range(1, depth + 1):
            h = w[layer] @ h.relu() + h
        return h.sum()

    gradients = torch.func.vmap(torch.func.grad(net))(weights, x).flatten(1)
    eigenvalues = torch.linalg.eigvalsh(gradients.T @ gradients / nets)
    bounds = resnet_bounds(depth, width)
    assert bounds.parameters == gradients.shape[1] == 48
    spread = gradients.square().mean(1)
    assert abs(z_score(spread, bounds.mean)) < 4
    assert eigenvalues.mean().item() == pytest.approx(spread.mean().item(), rel=1e-10)
    assert bounds.lower < eigenvalues[-1].item() < bounds.upper


def test_gradient_descent_bears_any_rate_below_the_maximal_one():
    """One layer of width 1: f = w·x with E x² = 1, loss ½(f - y)², λ_max = 1 = the bound."""
    rate = max_learning_rate(resnet_bounds(0, 1))
    for factor, contracts in ((0.99, True), (1.01, False)):
        w = torch.tensor(1.0, dtype=torch.float64, requires_grad=True)
        (gradient,) = torch.autograd.grad(0.5 * w**2, w)
        assert (abs((w - factor * rate * gradient).item()) < 1) is contracts


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda: resnet_bounds(-1, 4), "depth must be a whole number of at least 0, got -1"),
        (lambda: resnet_bounds(2.5, 4), "depth must be a whole number"),
        (lambda: resnet_bounds(2, 0), "width must be a whole number of at least 1"),
        (lambda: resnet_bounds(5000, 4), "depth too large"),
        (lambda: resnet_moments(5000), "depth too large"),
        (lambda: batch_norm_moments(3, variance_per_layer=0.0), "variance_per_layer must be positive"),
        (lambda: stochastic_depth_bounds(3, 4, 0.5), "whole, got 0.5·3"),
        (lambda: stochastic_depth_bounds(4, 4, 1.5), "survival must be a probability"),
        (lambda: stochastic_depth_bounds(4, 4, math.nan, dropping="bernoulli"), "survival must be a probability"),
        (lambda: stochastic_depth_moments(4, 0.5, dropping="sometimes"), "dropping must be"),
        (lambda: kept_layers(3, 0.4), "change one of them"),
    ],
)
def test_wrong_arguments_are_explained(call, words):
    with pytest.raises((ValueError, TypeCheckError)) as caught:  # the latter where the suite runs with types enforced
        call()
    assert isinstance(caught.value, TypeCheckError) or re.search(words, str(caught.value))


def test_exact_shares_tolerate_rounding():
    assert kept_layers(10, 0.1 + 0.2) == 3
    assert stochastic_depth_moments(3, 0.0).backward == (1.0,) * 4
