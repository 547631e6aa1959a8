"""The three theorems by simulation in float64: the bounds hold, and how tight they are."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from theta0.theory import (
    class_probability_bounds,
    distance_tail_bound,
    distance_tail_bound_by_variances,
    largest_vertex_distance_floor,
    relu_jacobian_moments,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


@pytest.mark.parametrize("parameters", [1, 3, 40])
@pytest.mark.parametrize("spread", [False, True])
def test_theorem_1_bounds_simulated_distances(parameters, spread):
    variances = torch.ones(parameters, dtype=torch.float64)
    if spread:
        variances = torch.logspace(-2, 0, parameters, dtype=torch.float64)
    draws = torch.randn(100_000, parameters, dtype=torch.float64, generator=generator()).square() @ variances
    for eta in (0.05, 0.5, 1.0, 3.0, 8.0):
        radius = math.sqrt((1 + eta) * parameters * float(variances.max()))
        share = float((draws >= radius**2).double().mean())
        sharper = distance_tail_bound_by_variances(radius, variances)
        bound = distance_tail_bound(radius, parameters, float(variances.max()))
        assert share - 4 * math.sqrt(share / 1e5) <= sharper <= bound < 1


def test_theorem_1_is_loose_where_there_are_many_parameters():
    """The printed bound at 10 % above the mean square distance is still 0.999 where the probability is 1e-2100."""
    parameters, eta = 1_000_000, 0.1
    radius = math.sqrt((1 + eta) * parameters)
    printed = distance_tail_bound(radius, parameters, 1.0)
    sharper = distance_tail_bound_by_variances(radius, torch.ones(parameters))
    true_log = float(stats.chi2.logsf(radius**2, parameters))
    chernoff = -parameters / 2 * (eta - math.log1p(eta))  # scipy's log tail underflows here
    assert printed == pytest.approx(math.exp(-(eta**2) / 8), rel=1e-9)
    assert printed > 0.998
    assert max(true_log, chernoff) < -2000
    assert sharper < 1e-300 or math.log(sharper) > chernoff


@pytest.mark.parametrize(
    ("arguments", "words"),
    [((1.0, 4, 1.0), "radius"), ((2.0, 0, 1.0), "parameters"), ((2.0, 1, 0.0), "largest_variance")],
)
def test_theorem_1_says_where_it_does_not_apply(arguments, words):
    with pytest.raises(ValueError, match=words):
        distance_tail_bound(*arguments)


def test_the_sharper_tail_says_where_it_does_not_apply():
    with pytest.raises(ValueError, match="variances"):
        distance_tail_bound_by_variances(3.0, torch.tensor([1.0, -1.0]))
    with pytest.raises(ValueError, match="radius"):
        distance_tail_bound_by_variances(1.0, torch.ones(3))


@settings(max_examples=60, deadline=None)
@given(
    classes=st.integers(2, 12),
    sharpness=st.floats(0.1, 20),
    lean=st.floats(0, 20),
    seed=st.integers(0, 10_000),
)
def test_theorem_2_bounds_the_share_of_every_class(classes, sharpness, lean, seed):
    logits = sharpness * torch.randn(200, classes, dtype=torch.float64, generator=generator(seed))
    logits[:, 0] += lean
    p = logits.softmax(1)
    shares = torch.stack([(p.argmax(1) == i).double().mean() for i in range(classes)])
    bounds, sharp = class_probability_bounds(p), class_probability_bounds(p, sharp=True)
    assert (bounds <= shares + 1e-12).all()
    assert (sharp <= shares + 1e-12).all()
    assert (sharp >= bounds - 1e-12).all()
    assert not (sharp > 1e-9).all()
    distances = (1 - bounds) / math.sqrt(classes)
    assert float(distances.max()) >= largest_vertex_distance_floor(classes) - 1e-12


@pytest.mark.parametrize("classes", [2, 3, 10])
def test_the_sharp_constant_is_attained_for_every_number_of_classes(classes):
    """A share q of outputs just past the midpoint of two vertices, the others at a vertex: the bound is the share."""
    q, past = 0.3, 1e-9
    p = torch.zeros(1000, classes, dtype=torch.float64)
    p[:700, 0] = 1
    p[700:, 0], p[700:, 1] = 0.5 - past, 0.5 + past
    assert float(class_probability_bounds(p, sharp=True)[0]) == pytest.approx(1 - q, abs=1e-8)
    assert float(class_probability_bounds(p)[0]) == pytest.approx(1 - q * math.sqrt(classes / 2), abs=1e-8)


def test_the_floor_is_attained_by_the_constant_uniform_output():
    p = torch.full((5, 10), 0.1, dtype=torch.float64)
    distances = (1 - class_probability_bounds(p)) / math.sqrt(10)
    assert float(distances.max()) == pytest.approx(largest_vertex_distance_floor(10), abs=1e-12)
    with pytest.raises(ValueError, match="at least 2"):
        largest_vertex_distance_floor(1)


@pytest.mark.parametrize("bad", [torch.randn(4, 3), torch.ones(4, 1), torch.ones(0, 3)])
def test_theorem_2_wants_probabilities(bad):
    with pytest.raises(ValueError, match="probabilities"):
        class_probability_bounds(bad)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("fan_in", [5, 100, 392])
def test_theorem_3_by_autograd(fan_in):
    """Each draw is a layer of its own, and its Jacobian's first row comes from autograd."""
    draws = 20_000
    weights = torch.randn(draws, fan_in, dtype=torch.float64, generator=generator(1)) * math.sqrt(2 / fan_in)
    z = torch.empty(draws, fan_in, dtype=torch.float64).uniform_(-1, 1, generator=generator(2)).requires_grad_()
    (torch.relu(z) * weights).sum().backward()
    squares = z.grad.square().sum(1)
    moments = relu_jacobian_moments(fan_in)
    assert moments.mean == pytest.approx(1.0)
    assert abs(float(squares.mean()) - moments.mean) < 4 * moments.deviation / math.sqrt(draws)
    assert float(squares.std()) == pytest.approx(moments.deviation, rel=0.05)
    assert float((squares.sqrt() - 1).abs().mean()) < moments.deviation


def test_theorem_3_for_other_variances():
    assert relu_jacobian_moments(10, 0.0).mean == 0
    assert relu_jacobian_moments(50, 1 / 50).mean == pytest.approx(0.5)
    with pytest.raises(ValueError, match="weight_variance"):
        relu_jacobian_moments(10, -1.0)
    with pytest.raises(ValueError, match="fan_in"):
        relu_jacobian_moments(0)
