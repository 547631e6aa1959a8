"""Each kind of layer against a dense QR basis in float64, and under torch's tools."""

import copy

import pytest
import torch
from kinds import KINDS, by_unit, call, each_kind, from_units, householder, inputs_of, place, qr_basis
from lcw_cases import both
from torch import nn
from torch.func import functional_call, grad, vmap
from torch.nn.utils import parametrize

from theta0.parametrizations import (
    has_zero_sums,
    linearly_constrained,
    parametrize_,
    relative_sums,
    remove_,
    reparametrize,
)

pytestmark = pytest.mark.filterwarnings("ignore:LSTM with projections is not supported with oneDNN")
METHODS = ["lcw", "cwn", "weight-norm", "spectral-norm"]


def constrained(kind, coordinates="ambient"):
    torch.manual_seed(0)
    layer = kind.make().double()
    for path in kind.weights:
        owner, name = place(layer, path)
        assert linearly_constrained(owner, name, coordinates=coordinates) is owner
    return layer


@both
@each_kind
def test_forward_and_gradient_equal_those_on_a_dense_basis(kind, coordinates):
    torch.manual_seed(0)
    plain = kind.make().double()
    layer = constrained(kind, coordinates)
    inputs = [x.requires_grad_() for x in inputs_of(kind)]
    dense, weights = {}, {}
    for path in kind.weights:
        owner, name = place(plain, path)
        units = by_unit(owner, getattr(owner, name).detach())
        basis = qr_basis(units.shape[1])
        dense[path] = (units @ basis).requires_grad_()
        weights[path] = from_units(owner, dense[path] @ basis.T, getattr(owner, name).shape)
        assert has_zero_sums(*place(layer, path), tolerance=1e-14)
    expected = functional_call(plain, weights, tuple(inputs))
    expected = expected[0] if isinstance(expected, tuple) else expected
    found = call(layer, inputs)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    upstream = torch.linspace(-1, 2, found.numel(), dtype=torch.float64).view_as(found)
    for x, y in zip(
        torch.autograd.grad(found, inputs, upstream, retain_graph=True),
        torch.autograd.grad(expected, inputs, upstream, retain_graph=True),
        strict=True,
    ):
        torch.testing.assert_close(x, y, rtol=0, atol=1e-12)
    expected.backward(upstream)
    found.backward(upstream)
    for path, v in dense.items():
        owner, name = place(layer, path)
        gradient = owner.parametrizations[name].original.grad
        gradient = by_unit(owner, gradient) if coordinates == "ambient" else gradient @ householder(v.shape[1] + 1).T
        torch.testing.assert_close(gradient, v.grad @ qr_basis(v.shape[1] + 1).T, rtol=0, atol=1e-12)


@pytest.mark.parametrize("method", METHODS)
@each_kind
def test_whole_layer_and_back(kind, method):
    torch.manual_seed(0)
    layer = kind.make().double().eval()
    state, classes = list(layer.state_dict()), [type(m) for m in layer.modules()]
    done = reparametrize(layer, method)
    assert set(done.weights) == set(kind.weights)
    before = call(layer, inputs_of(kind))
    assert remove_(layer) is layer
    assert (call(layer, inputs_of(kind)) - before).abs().max() < 1e-12
    assert list(layer.state_dict()) == state
    assert [type(m) for m in layer.modules()] == classes
    assert all(isinstance(p, nn.Parameter) for p in layer.parameters())


@pytest.mark.sampled(8)
@pytest.mark.parametrize("method", METHODS[:2])
@each_kind
def test_copies_checkpoints_and_moves(kind, method):
    torch.manual_seed(0)
    layer = parametrize_(kind.make(), method)
    twin = parametrize_(kind.make(), method)
    layer.eval(), twin.eval()
    twin.load_state_dict(layer.state_dict())
    copied = copy.deepcopy(layer)
    inputs = inputs_of(kind, torch.float32)
    expected = call(layer, inputs)
    torch.testing.assert_close(call(twin, inputs), expected, rtol=0, atol=1e-6)
    torch.testing.assert_close(call(copied, inputs), expected, rtol=0, atol=1e-6)
    moved = copy.deepcopy(layer).double()
    torch.testing.assert_close(call(moved, inputs_of(kind)).float(), expected, rtol=1e-5, atol=1e-5)
    remove_(copied)  # and the layer it was copied from is as it was
    with torch.no_grad():
        for p in copied.parameters():
            p.add_(1)
    torch.testing.assert_close(call(layer, inputs), expected, rtol=0, atol=1e-6)


@pytest.mark.sampled(5)
@pytest.mark.parametrize("method", ["lcw", "cwn"])
@each_kind
def test_training_keeps_the_sums_zero(kind, method):
    torch.manual_seed(0)
    layer = parametrize_(kind.make(), method)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.02, weight_decay=0.01)
    inputs = inputs_of(kind, torch.float32)
    before = [getattr(*place(layer, path)).detach().clone() for path in kind.weights]
    for _ in range(20):
        optimizer.zero_grad()
        call(layer, inputs).sub(1).square().mean().backward()
        optimizer.step()
    for path, weight in zip(kind.weights, before, strict=True):
        owner, name = place(layer, path)
        assert relative_sums(owner, name).max() <= 1e-6
        assert has_zero_sums(owner, name)
        assert (getattr(owner, name) - weight).abs().max() > 1e-3


@pytest.mark.sampled(6)
@pytest.mark.parametrize("method", ["lcw", "cwn"])
@each_kind
def test_meta_device(kind, method):
    torch.manual_seed(0)
    plain = kind.make()
    with torch.device("meta"):
        layer = kind.make()
    parametrize_(layer, method)
    layer.to_empty(device="cpu")
    with torch.no_grad():
        for name, parameter in plain.named_parameters():
            owner, last = place(layer, name)
            if name in kind.weights:
                setattr(owner, last, parameter.detach().clone())
            else:
                getattr(owner, last).copy_(parameter)
    parametrize_(plain, method)
    inputs = inputs_of(kind, torch.float32)
    torch.testing.assert_close(call(layer, inputs), call(plain, inputs), rtol=0, atol=1e-6)


@pytest.mark.parametrize("method", ["lcw", "cwn"])
@each_kind
def test_autocast(kind, method):
    torch.manual_seed(0)
    layer = parametrize_(kind.make(), method)
    inputs = inputs_of(kind, torch.float32)
    expected = call(layer, inputs)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        try:
            call(kind.make(), inputs)
        except RuntimeError as error:
            pytest.skip(f"torch runs no plain layer of this kind in bfloat16 on this processor: {error}")
        found = call(layer, inputs)
    assert (found.float() - expected).norm() <= 0.05 * expected.norm()
    found.float().square().sum().backward()
    for path in kind.weights:
        owner, name = place(layer, path)
        assert all(p.grad.dtype is torch.float32 for p in owner.parametrizations[name].parameters())
        assert relative_sums(owner, name).max() <= 1e-6


FUSED = {name for name in KINDS if "lstm" in name or "gru," in name or "rnn" in name}


@pytest.mark.sampled(8)
@pytest.mark.parametrize("method", ["lcw", "cwn"])
@each_kind
@pytest.mark.filterwarnings("ignore:There is a performance drop")
def test_functional_call_and_vmap_of_gradients(kind, method, request):
    torch.manual_seed(0)
    layer = parametrize_(kind.make().double(), method)
    inputs = inputs_of(kind)
    values = {name: p.detach() for name, p in layer.named_parameters()}

    def loss(values):
        outputs = functional_call(layer, values, tuple(inputs))
        return (outputs[0] if isinstance(outputs, tuple) else outputs).square().sum()

    halved = {name: 0.5 * value for name, value in values.items()}
    twin = copy.deepcopy(layer)
    with torch.no_grad():
        for p in twin.parameters():
            p.mul_(0.5)
    torch.testing.assert_close(loss(halved), call(twin, inputs).square().sum())
    if any(kind is KINDS[name] for name in FUSED):
        return  # torch's fused recurrent kernels have no rule for vmap
    gradients = grad(loss)(values)
    call(layer, inputs).square().sum().backward()
    torch.testing.assert_close(gradients, {name: p.grad for name, p in layer.named_parameters()})
    stacked = {name: torch.stack([value, 0.5 * value]) for name, value in values.items()}
    many = vmap(grad(loss))(stacked)
    torch.testing.assert_close({name: g[0] for name, g in many.items()}, gradients)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("method", ["lcw"])
@each_kind
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated", "ignore:.*flatten_parameters")
def test_compile(kind, method, unchecked_parametrizations):
    torch.manual_seed(0)
    layer = unchecked_parametrizations.parametrize_(kind.make().double(), method)
    inputs = inputs_of(kind)
    expected = call(layer, inputs)
    parameters = list(layer.parameters())
    gradients = torch.autograd.grad(expected.square().sum(), parameters, allow_unused=True)
    torch.compiler.reset()
    found = call(torch.compile(layer, backend="eager"), inputs)
    torch.testing.assert_close(found, expected)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), parameters, allow_unused=True), gradients)


def test_transformer_layer_on_its_fast_path():
    torch.manual_seed(0)
    layer = nn.TransformerEncoderLayer(8, 2, 16, batch_first=True).eval()
    parametrize_(layer, "lcw")
    x = torch.randn(2, 5, 8)
    slow = layer(x)
    with torch.no_grad():
        torch.testing.assert_close(layer(x), slow, rtol=0, atol=1e-6)
    assert parametrize.is_parametrized(layer.self_attn.out_proj)
