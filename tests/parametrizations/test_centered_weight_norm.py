"""CWN: zero-sum directions of unit length times g, against its formula in float64, and its derivatives."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from kinds import by_unit, each_kind, place
from lcw_cases import random
from torch import nn
from torch.func import functional_call
from torch.nn.utils import parametrize

from theta0.parametrizations import centered_weight_norm, has_zero_sums, relative_sums


@each_kind
def test_each_unit_keeps_its_centred_weight_with_its_length_in_g(kind):
    torch.manual_seed(0)
    layer = kind.make().double()
    for path in kind.weights:
        owner, name = place(layer, path)
        units = by_unit(owner, getattr(owner, name).detach())
        assert centered_weight_norm(owner, name) is owner
        expected = units - units.mean(1, keepdim=True)
        torch.testing.assert_close(by_unit(owner, getattr(owner, name)), expected, rtol=0, atol=1e-14)
        g, v = owner.parametrizations[name].parameters()
        torch.testing.assert_close(g.flatten(), expected.norm(dim=1))
        assert g.dim() == v.dim()
        with torch.no_grad():
            g.fill_(3.0)
            v.mul_(random(1) + 5).add_(2)  # neither the mean nor the length of v counts
        again = by_unit(owner, getattr(owner, name))
        torch.testing.assert_close(again.norm(dim=1), torch.full((len(units),), 3.0).double())
        torch.testing.assert_close(again / 3, expected / expected.norm(dim=1, keepdim=True))
        assert has_zero_sums(owner, name, tolerance=1e-14)


@pytest.mark.parametrize("make", [lambda: nn.Linear(4, 3), lambda: nn.ConvTranspose1d(4, 2, 2, groups=2)])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_first_and_second_derivatives(make):
    torch.manual_seed(0)
    layer = centered_weight_norm(make().double())
    x = random(2, 4) if isinstance(layer, nn.Linear) else random(2, 4, 3)
    names = ["parametrizations.weight.original0", "parametrizations.weight.original1"]

    def outputs(g, v):
        return functional_call(layer, dict(zip(names, (g, v), strict=True)), x).tanh()

    values = [p.detach().requires_grad_() for p in layer.parametrizations.weight.parameters()]
    assert torch.autograd.gradcheck(outputs, values, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(outputs, values)


@settings(deadline=None, max_examples=30)
@given(m=st.integers(2, 3000), seed=st.integers(0, 1000), shift=st.floats(-1e3, 1e3))
def test_float32_sums_are_zero_however_far_the_mean_drifted(m, seed, shift):
    torch.manual_seed(0)
    layer = centered_weight_norm(nn.Linear(m, 2))
    v = layer.parametrizations.weight.original1
    v.data.copy_(random(*v.shape, seed=seed) + shift)
    assert relative_sums(layer).max() <= 1e-6


@settings(deadline=None, max_examples=20)
@given(m=st.integers(2, 50), seed=st.integers(0, 1000))
def test_assignment_keeps_a_zero_sum_weight(m, seed):
    layer = centered_weight_norm(nn.Linear(m, 3).double())
    weight = random(3, m, seed=seed)
    layer.weight = weight
    torch.testing.assert_close(layer.weight, weight - weight.mean(1, keepdim=True))


def test_removal_leaves_a_plain_weight():
    layer = centered_weight_norm(nn.Linear(4, 3))
    weight = layer.weight.detach().clone()
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is nn.Linear
    torch.testing.assert_close(layer.weight, weight, rtol=0, atol=0)


def test_frozen_stays_frozen():
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    centered_weight_norm(layer)
    assert not any(p.requires_grad for p in layer.parametrizations.parameters())


def equal_weights():
    layer = nn.Linear(4, 3)
    layer.weight.data[1] = 0.1
    return layer


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (equal_weights, r"1 units of 'weight' of Linear\(4, 3\) have equal weights"),
        (lambda: nn.Embedding(4, 3), "centered_weight_norm takes a Linear"),
        (lambda: nn.Linear(1, 3), "fan-in of 1"),
        (lambda: centered_weight_norm(nn.Linear(4, 3)), r"already parametrized \(CenteredDirection\)"),
    ],
)
def test_errors_change_nothing(make, message):
    layer = make()
    kind, state = type(layer), layer.state_dict(keep_vars=True)
    with pytest.raises(ValueError, match=message):
        centered_weight_norm(layer)
    assert type(layer) is kind
    assert all(layer.state_dict(keep_vars=True)[key] is value for key, value in state.items())
