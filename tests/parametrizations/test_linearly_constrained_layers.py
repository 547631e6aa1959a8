"""LCW layers under torch's tools: compile, removal, copies, checkpoints, dtypes, ties; and every error."""

import copy

import pytest
import torch
from lcw_cases import both, each_layer, imbalance, inputs_for, original, random
from torch import nn
from torch.nn.utils import parametrize
from torch.nn.utils.parametrizations import weight_norm

from theta0.parametrizations import is_linearly_constrained, linearly_constrained, relative_sums


@pytest.mark.slow
@both
@pytest.mark.parametrize("make", [lambda: nn.Conv1d(2, 3, 2), lambda: nn.Linear(3, 8)], ids=["conv", "linear"])
@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")
def test_compiles_into_one_graph(make, coordinates, unchecked_parametrizations):
    layer = make().double()
    unchecked_parametrizations.linearly_constrained(layer, coordinates=coordinates)  # checks cannot be traced
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
    torch.testing.assert_close(layer(inputs), expected, rtol=0, atol=1e-14)
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
    "wrong kind": (lambda: nn.Embedding(5, 4), "weight", "Linear or Conv1d-3d layer.* not Embedding"),
    "fan-in one, transposed": (
        lambda: nn.ConvTranspose1d(3, 3, 1, groups=3),
        "weight",
        r"ConvTranspose1d.*fan-in of 1",
    ),
    "fan-in one, recurrent": (lambda: nn.GRU(3, 1), "weight_hh_l0", r"GRU\(3, 1\).*fan-in of 1"),
    "attention without a name": (lambda: nn.MultiheadAttention(4, 2), "weight", "its parameters are .'in_proj_weight'"),
    "recurrent bias": (lambda: nn.LSTM(4, 3), "bias_ih_l0", r"has shape \(12,\), expected a weight"),
    "missing": (lambda: nn.Linear(4, 3), "wieght", r"no parameter 'wieght'; its parameters are \['weight', 'bias'\]"),
    "absent bias": (
        lambda: nn.Linear(4, 3, bias=False),
        "bias",
        r"no parameter 'bias'; its parameters are \['weight'\]",
    ),
    "not a weight": (lambda: nn.Linear(4, 3), "bias", r"'bias' of Linear\(4, 3\) has shape \(3,\), expected \(3, 4\)"),
    "lazy": (lambda: nn.LazyLinear(3), "weight", "not initialized yet: run one forward pass"),
    "twice": (
        lambda: linearly_constrained(nn.Linear(4, 3)),
        "weight",
        r"already parametrized \((Centered|HouseholderBasis)\); .*remove_param",
    ),
    "other": (
        lambda: weight_norm(nn.Linear(4, 3)),
        "weight",
        r"already parametrized \(_WeightNorm\); .*remove_parametrizations",
    ),
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


@pytest.mark.usefixtures("unchecked")
def test_unknown_coordinates():
    with pytest.raises(ValueError, match="'ambient' or 'orthonormal', not 'polar'"):
        linearly_constrained(nn.Linear(4, 3), coordinates="polar")


@pytest.mark.parametrize(("layer", "name"), [(nn.Linear(3, 2), "bias"), (nn.LSTM(3, 2), "weight"), (nn.ReLU(), "x")])
def test_sums_of_what_is_no_weight_are_refused(layer, name):
    with pytest.raises(ValueError, match=f"name: expected a weight .* got '{name}'"):
        relative_sums(layer, name)
