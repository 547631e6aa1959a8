"""LCW against a dense QR basis in float64: values, trajectories, derivatives, and what torch does to a layer."""

import copy
import importlib.util
import sys
from collections.abc import Callable

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.func import functional_call, grad, jacfwd, jacrev, vmap
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from theta0.parametrizations import PARAMETRIZATIONS, is_linearly_constrained, linearly_constrained

both = pytest.mark.parametrize("coordinates", ["ambient", "orthonormal"])
LAYERS: dict[str, Callable[[], nn.Module]] = {
    "linear": lambda: nn.Linear(7, 5),
    "linear without bias": lambda: nn.Linear(2, 3, bias=False),
    "conv1d": lambda: nn.Conv1d(4, 6, 3, padding=1),
    "conv2d grouped": lambda: nn.Conv2d(4, 6, 3, groups=2, stride=2),
    "conv2d depthwise": lambda: nn.Conv2d(4, 4, (1, 2), groups=4),
    "conv2d channels last": lambda: nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last),
    "conv3d": lambda: nn.Conv3d(2, 3, (2, 1, 3)),
}
each_layer = pytest.mark.parametrize("make", LAYERS.values(), ids=LAYERS.keys())


def random(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def qr_basis(m: int) -> Tensor:
    """An orthonormal basis of 1^⊥, m × (m - 1), as the source builds it."""
    return torch.linalg.qr(torch.cat([torch.eye(m - 1), -torch.ones(1, m - 1)]).double()).Q


def inputs_for(layer: nn.Module, batch: int = 3) -> Tensor:
    if isinstance(layer, nn.Linear):
        return random(batch, layer.in_features, seed=1)
    return random(batch, layer.in_channels, *(6 for _ in layer.kernel_size), seed=1)


def original(layer: nn.Module) -> nn.Parameter:
    return layer.parametrizations.weight.original


def unchecked() -> Callable[..., nn.Module]:
    """The same function from a fresh load of its file, out of reach of the suite's run-time type checks."""
    path = sys.modules[linearly_constrained.__module__].__file__
    spec = importlib.util.spec_from_file_location("unchecked_linearly_constrained", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.linearly_constrained


def imbalance(weight: Tensor) -> float:
    """The largest |1ᵀw| / ‖w‖₁ over units, summed in float64."""
    rows = weight.detach().double().flatten(1)
    return (rows.sum(1).abs() / rows.abs().sum(1)).max().item()


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


@both
@pytest.mark.parametrize("optimizer", OPTIMIZERS.values(), ids=OPTIMIZERS.keys())
def test_sums_stay_zero_over_a_thousand_steps(optimizer, coordinates):
    layer = linearly_constrained(nn.Linear(300, 4), coordinates=coordinates)
    inputs = torch.zeros(8, 300)
    inputs[:, 0] = 3  # one input alone is on: Adam moves every coordinate each step, and mean(v) with them
    steps = optimizer(layer.parameters())
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


@both
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_compiles_into_one_graph(coordinates):
    layer = unchecked()(nn.Conv1d(2, 3, 2).double(), coordinates=coordinates)  # checks cannot be traced
    inputs = inputs_for(layer)
    expected = torch.autograd.grad(layer(inputs).square().sum(), list(layer.parameters()))
    compiled = torch.compile(layer, backend="aot_eager", fullgraph=True)(inputs)
    torch.testing.assert_close(compiled, layer(inputs))
    torch.testing.assert_close(torch.autograd.grad(compiled.square().sum(), list(layer.parameters())), expected)


@both
@each_layer
def test_removal_leaves_a_plain_layer_with_the_same_function(make, coordinates):
    layer = make().double()
    kind, parameter = type(layer), layer.weight
    inputs = inputs_for(linearly_constrained(layer, coordinates=coordinates))
    expected = layer(inputs)
    parametrize.remove_parametrizations(layer, "weight")
    assert type(layer) is kind
    assert layer.weight is parameter
    assert set(layer.state_dict()) <= {"weight", "bias"}
    assert not is_linearly_constrained(layer)
    torch.testing.assert_close(layer(inputs), expected, rtol=0, atol=0)
    layer(inputs).sum().backward()
    assert layer.weight.grad.flatten(1).sum(1).abs().max() > 1e-3  # and the constraint is gone


@both
def test_state_dict_round_trip_and_deepcopy(coordinates):
    layer = linearly_constrained(nn.Conv2d(3, 4, 2).double(), coordinates=coordinates)
    inputs = inputs_for(layer)
    twin = linearly_constrained(nn.Conv2d(3, 4, 2).double(), coordinates=coordinates)
    twin.load_state_dict(layer.state_dict())
    copied = copy.deepcopy(layer)
    assert is_linearly_constrained(copied)
    torch.testing.assert_close(twin(inputs), layer(inputs), rtol=0, atol=0)
    torch.testing.assert_close(copied(inputs), layer(inputs), rtol=0, atol=0)
    original(copied).data.add_(random(*original(copied).shape))
    torch.testing.assert_close(twin(inputs), layer(inputs), rtol=0, atol=0)  # the copy shares nothing


@both
def test_an_earlier_optimizer_still_holds_the_parameter(coordinates):
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    parameter = layer.weight
    linearly_constrained(layer, coordinates=coordinates)
    assert original(layer) is parameter
    before = layer.weight.detach().clone()
    layer(torch.eye(4)).square().sum().backward()
    optimizer.step()
    assert not torch.equal(layer.weight, before)


@both
def test_a_gradient_held_before_does_not_break_the_next_step(coordinates):
    layer = nn.Linear(4, 3)
    optimizer = torch.optim.SGD(layer.parameters(), lr=0.1)
    layer(torch.eye(4)).square().sum().backward()
    linearly_constrained(layer, coordinates=coordinates)
    layer(torch.eye(4)).square().sum().backward()
    optimizer.step()
    assert imbalance(layer.weight) <= 1e-6


@both
def test_frozen_stays_frozen(coordinates):
    layer = nn.Linear(4, 3)
    layer.weight.requires_grad_(False)
    linearly_constrained(layer, coordinates=coordinates)
    assert not original(layer).requires_grad
    assert not layer.weight.requires_grad
    parametrize.remove_parametrizations(layer, "weight")
    assert not layer.weight.requires_grad


@both
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32, torch.bfloat16, torch.float16])
def test_dtypes_and_autocast(dtype, coordinates):
    layer = linearly_constrained(nn.Linear(64, 8).to(dtype), coordinates=coordinates)
    assert layer.weight.dtype == dtype
    assert imbalance(layer.weight) <= 4 * torch.finfo(dtype).eps
    with torch.autocast("cpu", dtype=torch.bfloat16):
        outputs = layer(torch.ones(2, 64, dtype=dtype))
    outputs.float().sum().backward()
    assert outputs.dtype == (torch.bfloat16 if dtype != torch.float64 else torch.float64)
    assert original(layer).grad.dtype == dtype


def test_two_ambient_layers_may_share_a_weight():
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    net = nn.Sequential(linearly_constrained(first), nn.Tanh(), linearly_constrained(second))
    assert original(first) is original(second)
    assert len(list(net.parameters())) == 3
    torch.testing.assert_close(first.weight, second.weight, rtol=0, atol=0)


def test_channels_last_layout_is_kept():
    layer = linearly_constrained(nn.Conv2d(4, 6, 3).to(memory_format=torch.channels_last))
    assert layer.weight.is_contiguous(memory_format=torch.channels_last)


def tied_to_orthonormal() -> nn.Module:
    first, second = nn.Linear(4, 4), nn.Linear(4, 4)
    second.weight = first.weight
    linearly_constrained(first, coordinates="orthonormal")
    return second


ERRORS = {
    "fan-in one, linear": (lambda: nn.Linear(1, 8), "weight", r"Linear\(1, 8\) has a fan-in of 1 .*unconstrained"),
    "fan-in one, depthwise": (lambda: nn.Conv2d(3, 3, 1, groups=3), "weight", r"Conv2d\(3, 3.*groups=3\).*fan-in of 1"),
    "wrong kind": (lambda: nn.Embedding(5, 4), "weight", "Linear or Conv1d-3d layer, not Embedding"),
    "transposed": (lambda: nn.ConvTranspose2d(5, 4, 3), "weight", "not ConvTranspose2d"),
    "missing": (lambda: nn.Linear(4, 3), "wieght", r"no parameter 'wieght'; its parameters are \['weight', 'bias'\]"),
    "absent bias": (
        lambda: nn.Linear(4, 3, bias=False),
        "bias",
        r"no parameter 'bias'; its parameters are \['weight'\]",
    ),
    "not a weight": (lambda: nn.Linear(4, 3), "bias", r"'bias' of Linear\(4, 3\) has shape \(3,\), expected \(3, 4\)"),
    "lazy": (lambda: nn.LazyLinear(3), "weight", "not initialized yet: run one forward pass"),
    "twice": (lambda: linearly_constrained(nn.Linear(4, 3)), "weight", "already linearly constrained; .*remove_param"),
    "other": (lambda: weight_norm(nn.Linear(4, 3)), "weight", "already parametrized; .*remove_parametrizations"),
    "tied": (tied_to_orthonormal, "weight", r"has shape \(4, 3\), expected \(4, 4\).*untie it"),
}


@both
@pytest.mark.parametrize(("make", "name", "message"), ERRORS.values(), ids=ERRORS.keys())
def test_errors_say_what_and_change_nothing(make, name, message, coordinates):
    layer = make()
    kind, state, shown = type(layer), {k: v for k, v in layer.state_dict(keep_vars=True).items()}, repr(layer)
    with pytest.raises(ValueError, match=message):
        linearly_constrained(layer, name, coordinates=coordinates)
    assert type(layer) is kind
    assert repr(layer) == shown
    after = layer.state_dict(keep_vars=True)
    assert list(after) == list(state)
    assert all(after[key] is state[key] for key in state)


def test_unknown_coordinates():
    with pytest.raises(ValueError, match="'ambient' or 'orthonormal', not 'polar'"):
        unchecked()(nn.Linear(4, 3), coordinates="polar")


def test_the_catalogue_names_it():
    assert PARAMETRIZATIONS["lcw"] is linearly_constrained
