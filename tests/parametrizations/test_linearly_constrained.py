"""LCW against a dense QR basis in float64: values, zero sums, trajectories, derivatives."""

import copy
from functools import partial

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from lcw_cases import LAYERS, both, each_layer, imbalance, inputs_for, original, random
from torch import Tensor, nn
from torch.func import functional_call, grad, hessian, jacfwd, jacrev, vmap

from theta0.parametrizations import centered_weight_norm, linearly_constrained


def qr_basis(m: int) -> Tensor:
    """An orthonormal basis of 1^⊥, m × (m - 1), as the source builds it."""
    return torch.linalg.qr(torch.cat([torch.eye(m - 1), -torch.ones(1, m - 1)]).double()).Q


@both
@each_layer
def test_registration_projects_orthogonally(make, coordinates):
    layer = make().double()
    plain, before = copy.deepcopy(layer), layer.weight.detach().flatten(1).clone()
    assert linearly_constrained(layer, coordinates=coordinates) is layer
    basis = qr_basis(before.shape[1])
    expected = before @ basis @ basis.T
    assert layer.weight.shape == plain.weight.shape
    torch.testing.assert_close(layer.weight.flatten(1), expected, rtol=0, atol=1e-14)
    plain.weight.data.copy_(expected.view_as(plain.weight))
    torch.testing.assert_close(layer(inputs_for(layer)), plain(inputs_for(layer)), rtol=0, atol=1e-13)


@settings(deadline=None, max_examples=40)
@given(units=st.integers(1, 5), m=st.integers(2, 40), seed=st.integers(0, 1000), shift=st.floats(-1e3, 1e3))
def test_orthonormal_coordinates_are_the_householder_columns(units, m, seed, shift):
    layer = linearly_constrained(nn.Linear(m, units).double(), coordinates="orthonormal")
    mirror = torch.full((m,), m**-0.5, dtype=torch.float64)
    mirror[0] += 1
    basis = (torch.eye(m).double() - 2 * torch.outer(mirror, mirror) / mirror.square().sum())[:, 1:]
    v = random(units, m - 1, seed=seed) + shift
    original(layer).data.copy_(v)
    torch.testing.assert_close(layer.weight, v @ basis.T)
    layer.weight = weight = random(units, m, seed=seed + 1) + shift
    torch.testing.assert_close(original(layer), weight @ basis)
    torch.testing.assert_close(original(layer).norm(), layer.weight.norm())  # an isometry


@both
@settings(deadline=None, max_examples=40)
@given(m=st.integers(2, 3000), seed=st.integers(0, 1000), shift=st.floats(-1e4, 1e4))
def test_float32_sums_are_zero_however_far_the_mean_drifted(coordinates, m, seed, shift):
    layer = linearly_constrained(nn.Linear(m, 2), coordinates=coordinates)
    v = original(layer)
    v.data.copy_(random(*v.shape, seed=seed) + shift)
    assert imbalance(layer.weight) <= 1e-6


@both
@settings(deadline=None, max_examples=20)
@given(m=st.integers(2, 50), seed=st.integers(0, 1000))
def test_projection_is_idempotent(coordinates, m, seed):
    layer = linearly_constrained(nn.Linear(m, 3).double(), coordinates=coordinates)
    layer.weight = random(3, m, seed=seed)
    once, v = layer.weight.detach().clone(), original(layer).detach().clone()
    layer.weight = once
    torch.testing.assert_close(layer.weight, once)
    torch.testing.assert_close(original(layer), v)


SGD = {
    "sgd": {"lr": 0.05},
    "momentum": {"lr": 0.05, "momentum": 0.9},
    "nesterov, weight decay": {"lr": 0.05, "momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
}


@pytest.mark.sampled(3)
@both
@pytest.mark.parametrize("options", SGD.values(), ids=SGD.keys())
@pytest.mark.parametrize("make", [LAYERS["linear"], LAYERS["conv2d grouped"]], ids=["linear", "conv2d grouped"])
def test_trajectory_equals_that_of_a_dense_basis(make, options, coordinates):
    layer = make().double()
    inputs = inputs_for(layer)
    targets = random(*layer(inputs).shape, seed=2)
    linearly_constrained(layer, coordinates=coordinates)
    bias = layer.bias.detach().clone().requires_grad_()
    basis = qr_basis(layer.weight[0].numel())
    v = (layer.weight.detach().flatten(1) @ basis).requires_grad_()
    plain = make().double()
    ours, dense = torch.optim.SGD(layer.parameters(), **options), torch.optim.SGD([v, bias], **options)
    for _ in range(100):
        for optimizer in (ours, dense):
            optimizer.zero_grad()
        (layer(inputs) - targets).square().mean().backward()
        weight = (v @ basis.T).view_as(layer.weight)
        (functional_call(plain, {"weight": weight, "bias": bias}, inputs) - targets).square().mean().backward()
        ours.step()
        dense.step()
    torch.testing.assert_close(layer.weight.flatten(1), v @ basis.T, rtol=0, atol=1e-10)
    if coordinates == "ambient":
        assert original(layer).flatten(1).mean(1).abs().max() < 1e-14


OPTIMIZERS = {
    "momentum, weight decay": lambda p: torch.optim.SGD(p, lr=0.05, momentum=0.9, weight_decay=1e-3),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
}


@pytest.mark.slow
@both
@pytest.mark.parametrize("name", [pytest.param("momentum, weight decay", marks=pytest.mark.slow), "adam"])
def test_sums_stay_zero_over_a_thousand_steps(name, coordinates):
    layer = linearly_constrained(nn.Linear(300, 4), coordinates=coordinates)
    inputs = torch.zeros(8, 300)
    inputs[:, 0] = 3  # one input alone is on: Adam moves every coordinate each step, and mean(v) with them
    steps = OPTIMIZERS[name](layer.parameters())
    for step in range(1000):
        steps.zero_grad()
        layer(inputs).sub(step / 100).square().mean().backward()
        steps.step()
    assert original(layer).isfinite().all()
    assert imbalance(layer.weight) <= 1e-6


@both
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, from its forward-mode rules
def test_derivatives_of_every_kind(coordinates):
    layer = linearly_constrained(nn.Conv1d(2, 3, 2).double(), coordinates=coordinates)
    inputs = inputs_for(layer)

    def outputs(v: Tensor) -> Tensor:
        return functional_call(layer, {"parametrizations.weight.original": v}, inputs).tanh()

    v = original(layer).detach().requires_grad_()
    assert torch.autograd.gradcheck(outputs, v, check_forward_ad=True, check_batched_grad=True)
    assert torch.autograd.gradgradcheck(outputs, v, check_batched_grad=True)
    torch.testing.assert_close(jacfwd(outputs)(v), jacrev(outputs)(v))
    gradient = grad(lambda u: outputs(u).square().sum())
    torch.testing.assert_close(jacfwd(gradient)(v), jacrev(gradient)(v))


@both
@pytest.mark.parametrize("make", [LAYERS["linear"], LAYERS["conv2d grouped"]], ids=["linear", "conv2d grouped"])
def test_vmap_over_stacked_weights(make, coordinates):
    layer = linearly_constrained(make().double(), coordinates=coordinates)
    inputs = inputs_for(layer)
    stacked = random(4, *original(layer).shape, seed=3)

    def loss(v: Tensor) -> Tensor:
        return functional_call(layer, {"parametrizations.weight.original": v}, inputs).square().sum()

    torch.testing.assert_close(vmap(loss)(stacked), torch.stack([loss(v) for v in stacked]))
    torch.testing.assert_close(vmap(grad(loss))(stacked), torch.stack([grad(loss)(v) for v in stacked]))


@pytest.mark.parametrize(
    "constrain", [linearly_constrained, partial(linearly_constrained, coordinates="orthonormal"), centered_weight_norm]
)
def test_torch_func_hessian_is_that_of_double_backward(constrain):
    torch.manual_seed(0)
    layer, x = constrain(nn.Linear(4, 3)).double(), torch.randn(5, 4).double()
    values = {name: p.detach() for name, p in layer.named_parameters()}
    name = list(values)[-1]

    def loss(v):
        return functional_call(layer, values | {name: v}, (x,)).tanh().square().mean()

    expected = torch.autograd.functional.hessian(loss, values[name])
    torch.testing.assert_close(hessian(loss)(values[name]), expected)
    assert expected.abs().max() > 1e-3
