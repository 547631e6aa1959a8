"""A constrained Linear layer that centres its input: the same function, and only where it is right and cheaper."""

import copy

import pytest
import torch
from kinds import qr_basis
from lcw_cases import imbalance, random
from torch import nn
from torch.func import functional_call, hessian
from torch.nn import functional as F
from torch.nn.utils import parametrize
from torch.utils.checkpoint import checkpoint

from theta0._trace.calls import trace_calls
from theta0.parametrizations import linearly_constrained, parametrize_


def layer_of(m=12, units=10, dtype=torch.float64, bias=True):
    torch.manual_seed(0)
    return linearly_constrained(nn.Linear(m, units, bias=bias).to(dtype))


class Watched:
    """Counts how often the weight was made: never, where the input is centred."""

    def __init__(self, layer):
        self.made = 0
        layer.parametrizations.weight.register_forward_hook(self.count)

    def count(self, *_):
        self.made += 1


def calls_of_weight(layer, *inputs, within=None):
    watched = Watched(layer)
    if within is None:
        layer(*inputs)
    else:
        with within:
            layer(*inputs)
    return watched.made


def test_few_rows_centre_the_input_and_many_the_weight():
    assert calls_of_weight(layer_of(), random(9, 12)) == 0
    assert calls_of_weight(layer_of(), random(3, 3, 12)) == 0
    assert calls_of_weight(layer_of(), random(12)) == 0
    assert calls_of_weight(layer_of(), random(10, 12)) == 1
    assert calls_of_weight(layer_of(), random(2, 5, 12)) == 1


SITUATIONS = {
    "watched": lambda layer: trace_calls(layer),
    "autocast": lambda layer: torch.autocast("cpu", dtype=torch.bfloat16),
    "cached": lambda layer: parametrize.cached(),
}


@pytest.mark.parametrize("within", SITUATIONS.values(), ids=SITUATIONS.keys())
def test_the_weight_computes_where_the_input_must_not(within):
    layer = layer_of(dtype=torch.float32)
    assert calls_of_weight(layer, random(3, 12).float(), within=within(layer)) == 1


def test_half_precision_and_mixed_parametrizations_take_the_weight():
    assert calls_of_weight(layer_of(dtype=torch.bfloat16), random(3, 12).bfloat16()) == 1
    layer = layer_of()
    parametrize.register_parametrization(layer, "weight", nn.Tanh())
    x = random(3, 12)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias))


def test_a_subclass_with_its_own_forward_keeps_it():
    class Doubled(nn.Linear):
        def forward(self, x):
            return 2 * super().forward(x)

    layer = linearly_constrained(Doubled(6, 5).double())
    x = random(2, 6)
    torch.testing.assert_close(layer(x), 2 * F.linear(x, layer.weight, layer.bias))


@pytest.mark.parametrize("rows", [(4,), (1,), (2, 3), ()])
@pytest.mark.parametrize("bias", [True, False])
def test_same_function_same_derivatives(rows, bias):
    layer = layer_of(bias=bias)
    x = (random(*rows, 12) + 3).requires_grad_()
    parameters = [x, *layer.parameters()]

    def twice(outputs):
        first = torch.autograd.grad(outputs.tanh().square().sum(), parameters, create_graph=True)
        return first, torch.autograd.grad(sum(g.square().sum() for g in first), parameters)

    found, expected = layer(x), F.linear(x, layer.weight, layer.bias)
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-13)
    torch.testing.assert_close(twice(found), twice(expected), rtol=1e-10, atol=1e-12)


@pytest.mark.filterwarnings("ignore:.torch.jit.script. is deprecated")  # torch's own, from its forward-mode rules
def test_forward_mode_and_transforms_over_inputs():
    layer = layer_of()
    x = random(12)
    assert calls_of_weight(layer, x) == 0
    by_weight = lambda x: F.linear(x, layer.weight, layer.bias)  # noqa: E731
    torch.testing.assert_close(torch.func.jacfwd(layer)(x), torch.func.jacrev(by_weight)(x))
    torch.testing.assert_close(torch.func.vmap(layer)(random(3, 12)), by_weight(random(3, 12)))
    torch.testing.assert_close(
        hessian(lambda x: layer(x).tanh().sum())(x), hessian(lambda x: by_weight(x).tanh().sum())(x)
    )


def test_replaced_parameters_are_used():
    layer = layer_of()
    x = random(3, 12)
    v = random(10, 12, seed=4)
    found = functional_call(layer, {"parametrizations.weight.original": v}, x)
    torch.testing.assert_close(found, F.linear(x, v - v.mean(1, keepdim=True), layer.bias))


@pytest.mark.parametrize("drift", [0.0, 0.01, 0.3, 5.0, 1e3, 1e6])
@pytest.mark.parametrize("common", [0.0, 0.5, 100.0])
def test_float32_is_as_exact_however_far_the_mean_drifted(drift, common):
    layer = layer_of(256, 300, torch.float32)
    v = layer.parametrizations.weight.original
    v.data.add_(drift * layer.weight.detach().std())
    x = common + random(64, 256).float()
    exact = F.linear(x.double(), v.double() - v.double().mean(1, keepdim=True), layer.bias.double())
    by_weight = F.linear(x, layer.weight, layer.bias)
    found = (layer(x).double() - exact).abs().max()
    assert found <= 8 * (by_weight.double() - exact).abs().max() + 1e-6 * exact.abs().max()


def test_drift_is_seen_during_training():
    layer = layer_of(16, 40, torch.float32)
    x = random(4, 16).float()
    watched = Watched(layer)
    with torch.no_grad():
        for _ in range(64):
            layer.parametrizations.weight.original.add_(0.5)
            layer(x)
    assert watched.made == 48  # all but the first sixteen


def test_a_loaded_drift_is_seen_at_once():
    layer = layer_of(16, 40, torch.float32)
    x = random(4, 16).float()
    layer(x)
    state = copy.deepcopy(layer.state_dict())
    state["parametrizations.weight.original"].add_(1e4)
    layer.load_state_dict(state)
    torch.testing.assert_close(layer(x), F.linear(x, layer.weight, layer.bias), rtol=0, atol=0)


@pytest.mark.parametrize("watched", [False, True])
def test_a_checkpointed_block_runs_again_as_it_ran(watched):
    layer = layer_of()
    x = random(3, 12).requires_grad_()
    if watched:
        with trace_calls(layer):
            outputs = checkpoint(layer, x, use_reentrant=False)
    else:
        outputs = checkpoint(layer, x, use_reentrant=False)
    outputs.square().sum().backward()
    expected = torch.autograd.grad(F.linear(x, layer.weight, layer.bias).square().sum(), x)
    torch.testing.assert_close(x.grad, expected[0])


def test_watching_sees_the_true_input_and_the_true_weight():
    net = nn.Sequential(nn.Linear(6, 8), nn.Sigmoid(), nn.Linear(8, 9)).double()
    parametrize_(net, "lcw")
    seen = []
    x = random(3, 6) + 2
    with trace_calls(net, seen.append):
        net(x)
    assert [call.layer for call in seen] == ["0", "2"]
    assert torch.equal(seen[0].input, x)
    assert imbalance(seen[0].weight) < 1e-15


SGD = {
    "sgd": {"lr": 0.05},
    "momentum, weight decay": {"lr": 0.05, "momentum": 0.9, "weight_decay": 0.01},
}


@pytest.mark.sampled(1)
@pytest.mark.parametrize("options", SGD.values(), ids=SGD.keys())
def test_trajectory_of_a_network_equals_that_of_the_dense_basis(options):
    torch.manual_seed(0)
    net = nn.Sequential(nn.Linear(8, 12), nn.Sigmoid(), nn.Linear(12, 10), nn.Sigmoid(), nn.Linear(10, 7)).double()
    x, targets = random(6, 8) + 1, random(6, 7, seed=2)
    parametrize_(net, "lcw")
    linear = [net[0], net[2], net[4]]
    basis = [qr_basis(layer.in_features) for layer in linear]
    vs = [(layer.weight.detach() @ b).requires_grad_() for layer, b in zip(linear, basis, strict=True)]
    biases = [layer.bias.detach().clone().requires_grad_() for layer in linear]
    watched = [Watched(layer) for layer in linear]
    ours, dense = torch.optim.SGD(net.parameters(), **options), torch.optim.SGD([*vs, *biases], **options)
    for _ in range(200):
        ours.zero_grad(), dense.zero_grad()
        (net(x) - targets).square().mean().backward()
        ours.step()
        h = x
        for at in range(3):
            h = F.linear(h, vs[at] @ basis[at].T, biases[at])
            h = h.sigmoid() if at < 2 else h
        (h - targets).square().mean().backward()
        dense.step()
    assert [w.made for w in watched] == [0, 0, 0]
    for layer, v, b in zip(linear, vs, basis, strict=True):
        torch.testing.assert_close(layer.weight, v @ b.T, rtol=0, atol=1e-10)


OPTIMIZERS = {
    "sgd, weight decay": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, weight_decay=5e-4),
    "adam": lambda p: torch.optim.Adam(p, lr=0.01),
    "adamw": lambda p: torch.optim.AdamW(p, lr=0.01, weight_decay=0.1),
}


@pytest.mark.slow
@pytest.mark.parametrize("bf16", [False, True], ids=["float32", "bf16 autocast"])
@pytest.mark.parametrize("optimizer", ["sgd, weight decay", pytest.param("adam", marks=pytest.mark.slow), "adamw"])
def test_sums_after_a_thousand_steps(optimizer, bf16):
    torch.manual_seed(0)
    layer = linearly_constrained(nn.Linear(40, 48))
    x, targets = random(8, 40).float().abs(), random(8, 48, seed=1).float()
    optimizer = OPTIMIZERS[optimizer](layer.parameters())
    with torch.autocast("cpu", dtype=torch.bfloat16, enabled=bf16):
        for _ in range(1000):
            optimizer.zero_grad()
            (layer(x).sigmoid() - targets).square().mean().backward()
            optimizer.step()
    assert imbalance(layer.weight) <= 1e-6
    assert layer.weight.isfinite().all()
