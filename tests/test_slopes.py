"""Slopes against finite differences; which nonlinearities can saturate."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from theta0._trace.functions import SPECS
from theta0._trace.slopes import can_saturate, is_saturated, slope

ACTIVATIONS = {spec.name: (function, spec) for function, spec in SPECS.items() if spec.activation}
FREE = {name: f for name, (f, _) in ACTIVATIONS.items() if name not in ("rrelu", "prelu", "threshold")}
BOUNDED = {name: spec.maximal_slope for name, (_, spec) in ACTIVATIONS.items() if spec.maximal_slope}


@pytest.mark.sampled(6)
@pytest.mark.parametrize("name", sorted(FREE))
@settings(max_examples=15, deadline=None)
@given(
    z=st.lists(
        st.floats(-4, 4).filter(lambda v: min(abs(v - k) for k in (-3, -1, 0, 1, 3)) > 1e-3), min_size=1, max_size=5
    )
)
def test_slope_is_the_central_difference(name, z):
    function = FREE[name]
    values = torch.tensor(z, dtype=torch.float64)
    kept = values.clone()
    found = slope(function, values, (), {})
    assert torch.equal(values, kept)
    step = 1e-6
    difference = (function(values + step) - function(values - step)) / (2 * step)
    torch.testing.assert_close(found.double(), difference, atol=1e-6, rtol=1e-5)


def test_arguments_are_passed_on():
    z = torch.tensor([-1.0, 2.0])
    assert slope(torch.nn.functional.leaky_relu, z, (0.25,), {}).tolist() == [0.25, 1]
    assert slope(torch.nn.functional.threshold, z, (0.5, 9.0), {}).tolist() == [0, 1]
    assert slope(torch.nn.functional.prelu, z, (torch.tensor([0.5], requires_grad=True),), {}).tolist() == [0.5, 1]


@pytest.mark.parametrize("name", BOUNDED)
def test_the_largest_slope_is_right(name):
    z = torch.linspace(-6, 6, 100_001, dtype=torch.float64)
    assert slope(FREE[name], z, (), {}).max().item() == pytest.approx(BOUNDED[name], rel=1e-6)


def test_bounded_ones():
    hardtanh, relu, sigmoid = (ACTIVATIONS[name][1] for name in ("hardtanh", "relu", "sigmoid"))
    assert can_saturate(hardtanh, (), {})
    assert can_saturate(hardtanh, (-2.0, 2.0), {})
    assert not can_saturate(hardtanh, (0.0, 6.0), {})  # ReLU6
    assert not can_saturate(hardtanh, (), {"min_val": 0.0, "max_val": 6.0})
    assert not can_saturate(relu, (), {})
    assert is_saturated(sigmoid, torch.tensor([0.25, 0.0126, 0.0124])).tolist() == [False, False, True]
