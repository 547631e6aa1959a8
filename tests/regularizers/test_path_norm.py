"""The path norm against explicit sums over paths and unrolled matrices; what it costs; what it refuses."""

from itertools import pairwise, product

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F
from torch.utils.checkpoint import checkpoint
from torch.utils.flop_counter import FlopCounterMode

from cases import case, each_case
from theta0.layers import StochasticDepth
from theta0.regularizers import REGULARIZERS, l1_norm, l2_norm, path_norm


def unrolled(function, *shape):
    """|A| of a linear function without bias, one column per input entry."""
    inputs = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).view(-1, *shape)
    return function(inputs).flatten(1).T.abs()


def chain(widths, seed=0, biases=True, nonlinearity=nn.ReLU):
    torch.manual_seed(seed)
    parts = [p for a, b in pairwise(widths) for p in (nn.Linear(a, b, biases), nonlinearity())]
    return nn.Sequential(*parts[:-1]).double()


def sum_over_paths(matrices):
    """Every path, one by one."""
    widths = [matrices[0].shape[1], *(m.shape[0] for m in matrices)]
    total = 0.0
    for path in product(*map(range, widths)):
        weight = 1.0
        for matrix, (begin, end) in zip(matrices, pairwise(path), strict=True):
            weight *= abs(matrix[end, begin].item())
        total += weight
    return total


@settings(max_examples=30, deadline=None)
@given(st.lists(st.integers(1, 4), min_size=2, max_size=5), st.integers(0, 10**6))
def test_equals_the_sum_over_every_path(widths, seed):
    model = chain(widths, seed)
    expected = sum_over_paths([layer.weight for layer in model if isinstance(layer, nn.Linear)])
    assert path_norm(model).item() == pytest.approx(expected, rel=1e-12)


@pytest.mark.parametrize("kind", [nn.Conv1d, nn.Conv2d, nn.Conv3d, nn.ConvTranspose1d, nn.ConvTranspose2d])
def test_convolutions_equal_their_unrolled_matrices(kind):
    torch.manual_seed(0)
    axes = int(kind.__name__[-2])
    first = kind(2, 4, 3, stride=2, padding=1, groups=2).double()
    second = kind(4, 2, 2, dilation=2, padding=2).double()
    shape = (2, *(5, 4, 4)[:axes])
    x = torch.randn(3, *shape, dtype=torch.float64)
    first_matrix = unrolled(lambda v: first(v) - first(torch.zeros_like(v)), *shape)
    middle = first(x).shape[1:]
    second_matrix = unrolled(lambda v: second(v) - second(torch.zeros_like(v)), *middle)
    expected = (second_matrix @ first_matrix).sum().item()
    model = nn.Sequential(first, nn.Tanh(), second)
    assert path_norm(model, x).item() == pytest.approx(expected, rel=1e-12)


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1)
        self.norm = nn.BatchNorm2d(2)
        self.side = nn.Conv2d(2, 3, 1)
        self.head = nn.Linear(5 * 4, 3)
        self.scale = nn.Parameter(torch.tensor([-0.5, 2.0]).view(2, 1, 1))

    def forward(self, x):
        h = F.dropout(F.relu(self.norm(self.conv(x))), 0.5, self.training) * self.scale
        h = x - 0.5 * h + 1.0
        h += x
        h = torch.cat([h, self.side(x)], 1)
        return self.head(F.avg_pool2d(h, 2).flatten(1))


def test_residual_branches_joins_pooling_and_normalisation_equal_their_matrices():
    torch.manual_seed(1)
    model = Block().double()
    with torch.no_grad():
        model.norm.running_var.uniform_(0.5, 2.0)
        model.norm.weight.uniform_(-2.0, 2.0)
    x = torch.randn(5, 2, 4, 4, dtype=torch.float64)
    conv = unrolled(lambda v: F.conv2d(v, model.conv.weight, padding=1), 2, 4, 4)
    side = unrolled(lambda v: F.conv2d(v, model.side.weight), 2, 4, 4)
    pool = unrolled(lambda v: F.avg_pool2d(v, 2), 5, 4, 4)
    gamma = model.norm.weight.abs() / (model.norm.running_var + model.norm.eps).sqrt()
    channel = (gamma * model.scale.flatten().abs()).repeat_interleave(16)
    trunk = 2 * torch.eye(32, dtype=torch.float64) + 0.5 * channel[:, None] * conv
    expected = (model.head.weight.abs() @ pool @ torch.cat([trunk, side])).sum().item()
    before = {key: value.clone() for key, value in model.state_dict().items()}
    assert model.training
    assert path_norm(model, x).item() == pytest.approx(expected, rel=1e-12)
    assert all(module.training for module in model.modules())
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("options", [
    {"kernel_size": 2}, {"kernel_size": 3, "stride": 2, "padding": 1}, {"kernel_size": 2, "dilation": 2},
    {"kernel_size": 3, "stride": 2, "ceil_mode": True}, {"kernel_size": 2, "stride": 3, "ceil_mode": True},
])  # fmt: skip
@pytest.mark.parametrize("axes", [1, 2, 3])
def test_max_pooling_sums_its_windows(axes, options):
    size = (6, 5, 4)[:axes]
    pool = (nn.MaxPool1d, nn.MaxPool2d, nn.MaxPool3d)[axes - 1](**options)
    # Which entries a window holds: a spike of one entry is the maximum of the windows that hold it.
    spikes = torch.eye(torch.Size(size).numel(), dtype=torch.float64).view(-1, 1, *size)
    matrix = pool(spikes).clamp_min(0).flatten(1).T
    weight = nn.Linear(matrix.shape[0], 2).double()
    expected = (weight.weight.abs() @ matrix).sum().item()
    model = nn.Sequential(pool, nn.Flatten(), weight)
    assert path_norm(model, torch.zeros(2, 1, *size)).item() == pytest.approx(expected, rel=1e-6)


def test_adaptive_max_pooling_sums_its_windows():
    pool = nn.AdaptiveMaxPool2d((2, 3))
    spikes = torch.eye(35, dtype=torch.float64).view(-1, 1, 5, 7)
    model = nn.Sequential(pool, nn.Flatten(), nn.Linear(6, 2).double())
    expected = (model[2].weight.abs() @ pool(spikes).flatten(1).T).sum().item()
    assert path_norm(model, spikes).item() == pytest.approx(expected, rel=1e-12)


class InPlace(nn.Module):
    def __init__(self):
        super().__init__()
        self.first = nn.Linear(2, 3, bias=False)
        self.last = nn.Linear(3, 1, bias=False)

    def forward(self, x):
        h = self.first(x)
        branch = F.dropout(F.relu(h), 0.5, False)
        branch *= 3
        branch.sub_(h)
        F.relu(h, inplace=True).mul_(2)
        return self.last(torch.neg(branch).add_(1.0) + h)


def test_what_is_done_in_place_is_done_to_one_tensor_only():
    model = InPlace().double()
    expected = (model.last.weight.abs() @ ((3 + 1 + 2) * model.first.weight.abs())).sum()
    assert path_norm(model).item() == pytest.approx(expected.item())


def test_stochastic_depth_counts_as_in_evaluation():
    block = StochasticDepth(nn.Linear(2, 2), 0.25)
    expected = 2 + 0.25 * block.branch.weight.abs().sum().item()
    assert path_norm(block).item() == pytest.approx(expected)


def test_costs_one_forward_pass_of_one_sample():
    model, x = case("cnn").model(), torch.randn(1, 2, 7, 7)
    with FlopCounterMode(display=False) as plain:
        model(x)
    with FlopCounterMode(display=False) as paths:
        path_norm(model, torch.randn(64, 2, 7, 7))
    assert paths.get_total_flops() == plain.get_total_flops() > 0


def test_gradients():
    model = nn.Sequential(
        nn.Conv1d(1, 2, 3), nn.BatchNorm1d(2), nn.MaxPool1d(2), nn.Flatten(), nn.Linear(4, 2)
    ).double()
    names, values = zip(*model.named_parameters(), strict=True)
    x = torch.ones(1, 1, 6, dtype=torch.float64)

    class Measured(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = model

        def forward(self):
            return path_norm(self.inner, x)

    def value(*weights):
        named = {f"inner.{name}": weight for name, weight in zip(names, weights, strict=True)}
        return torch.func.functional_call(Measured(), named, ())

    assert torch.autograd.gradcheck(value, tuple(v.detach().requires_grad_() for v in values))
    for norm in (l1_norm, l2_norm):
        norm(model).backward()
        assert model[0].weight.grad.abs().sum() > 0


def test_a_stack_of_networks_is_penalised_by_vmap():
    models = [chain((2, 3, 1), seed) for seed in range(3)]
    weights, _ = torch.func.stack_module_state(models)

    class Penalty(nn.Module):
        def __init__(self):
            super().__init__()
            self.inner = models[0]

        def forward(self):
            return path_norm(self.inner)

    penalty = Penalty()
    stacked = torch.func.vmap(
        lambda w: torch.func.functional_call(penalty, {f"inner.{k}": v for k, v in w.items()}, ())
    )(weights)
    assert torch.allclose(stacked, torch.stack([path_norm(m) for m in models]))


FOLLOWED = {
    "mlp", "single linear", "cnn", "other convolutions", "norm and dropout", "residual", "frozen", "twice", "bare",
    "weight_norm", "weight_norm, old", "spectral_norm", "spectral_norm, old", "constrained", "mixed modes", "in place",
    "functional", "two inputs", "tuple output", "own loss", "checkpointed", "compiled", "compiled inside", "half",
    "regression", "zero head", "lazy",
}  # fmt: skip


@each_case
def test_every_network_is_followed_or_refused(case):
    model, (inputs, *_) = case.model(), case.batches()
    example = inputs[0] if isinstance(inputs, tuple) else {k: v for k, v in inputs.items() if k != "labels"}
    if case.name == "lazy":
        model(example)
    if case.name in FOLLOWED:
        assert 0 <= path_norm(model, example).item() < torch.inf
    else:
        with pytest.raises(ValueError, match="expected"):
            path_norm(model, example)


@pytest.mark.parametrize(
    ("module", "shape", "named"),
    [
        (nn.Sequential(nn.Linear(4, 4), nn.LayerNorm(4)), (2, 4), "1 .LayerNorm.*layer_norm"),
        (nn.Sequential(nn.Linear(4, 4), nn.GLU()), (2, 4), "1 .GLU.*glu"),
        (nn.MultiheadAttention(4, 1), (2, 3, 4), "missing 2 required"),
        (nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4, track_running_stats=False)), (2, 4), "running statistics"),
        (nn.Sequential(nn.Conv1d(1, 1, 1)), None, "pass some inputs as example"),
        (nn.Sequential(nn.Linear(4, 4), nn.Softmax(1)), (2, 4), "1 .Softmax.*softmax"),
        (nn.LSTM(4, 4), (2, 3, 4), "lstm"),
    ],
)
def test_what_cannot_be_followed_is_named(module, shape, named):
    with pytest.raises(ValueError, match=named):
        path_norm(module, None if shape is None else torch.ones(shape))
    assert not torch.overrides._len_torch_function_stack()


@pytest.mark.parametrize("reentrant", [False, True])
def test_checkpointed_parts_have_the_same_gradient(reentrant):
    class Saving(nn.Sequential):
        def forward(self, x):
            hidden = checkpoint(self[0], x, use_reentrant=reentrant)
            return self[2](checkpoint(self[1], hidden, use_reentrant=reentrant))

    plain = chain((3, 4, 2))
    saving = Saving(*chain((3, 4, 2)))
    path_norm(plain).backward()
    path_norm(saving).backward()
    for one, two in zip(plain.parameters(), saving.parameters(), strict=True):
        assert (one.grad is None and two.grad is None) or torch.equal(one.grad, two.grad)
    x = torch.ones(1, 3, dtype=torch.float64, requires_grad=True)
    saving(x).sum().backward()  # checkpoints work as before afterwards
    assert saving[0].bias.grad is not None


def test_products_of_two_signals_are_refused():
    class Gate(nn.Linear):
        def forward(self, x):
            return x * super().forward(x)

    with pytest.raises(ValueError, match="not of two signals"):
        path_norm(Gate(3, 3))


@pytest.mark.parametrize(
    "nonlinearity", [nn.GELU, nn.SiLU, nn.Mish, nn.SELU, nn.Hardswish, nn.LeakyReLU, nn.PReLU, nn.ELU]
)
def test_bounds_the_slope_of_every_nonlinearity(nonlinearity):
    model = chain((1, 3, 2, 1), 3, nonlinearity=nonlinearity)
    x = torch.linspace(-4, 4, 2001, dtype=torch.float64).view(-1, 1).requires_grad_()
    (slopes,) = torch.autograd.grad(model(x).sum(), x)
    assert slopes.abs().max() <= path_norm(model)


def test_weights_are_counted_once_and_without_biases():
    model = nn.Sequential(nn.Linear(2, 2), nn.BatchNorm1d(2), nn.Linear(2, 2))
    model[2].weight = model[0].weight
    with torch.no_grad():
        model[0].weight.copy_(torch.tensor([[3.0, 0.0], [0.0, -4.0]]))
    assert l1_norm(model).item() == 7
    assert l2_norm(model).item() == 5
    assert set(REGULARIZERS) == {"l1", "l2", "path"}
    with torch.no_grad():
        model[0].weight.zero_()
    l2_norm(model).backward()
    assert torch.equal(model[0].weight.grad, torch.zeros(2, 2))


@pytest.mark.parametrize(
    ("model", "match"),
    [
        (nn.ReLU(), "got none"),
        (nn.LazyLinear(2), "lazy"),
        (case("weight_norm, old").model(), "old hook"),
    ],
)
def test_models_without_plain_weights(model, match):
    with pytest.raises(ValueError, match=match):
        l2_norm(model)


def test_parametrized_weights_count_as_applied():
    model = case("weight_norm").model()
    expected = sum(model[i].weight.norm().item() for i in (0, 2, 4))
    assert l2_norm(model).item() == pytest.approx(expected)


class Formula(nn.Module):
    """A weight, a bias, and what is computed of them."""

    def __init__(self, function):
        super().__init__()
        self.function = function
        self.weight = nn.Parameter(torch.tensor([[1.0, -2.0], [0.5, 3.0], [-1.0, 1.0]]))
        self.bias = nn.Parameter(torch.ones(3))

    def forward(self, x):
        return self.function(self, x)


WRITTEN = {
    "by keyword": lambda m, x: F.linear(x, weight=m.weight, bias=m.bias),
    "addmm": lambda m, x: torch.addmm(m.bias, x, m.weight.T),
    "added by keyword": lambda m, x: torch.add(F.linear(x, m.weight), other=m.bias),
    "divided": lambda m, x: 2 * F.linear(x, m.weight, m.bias) / -2.0,
}
NOT_FOLLOWED = {
    "expected a division by a constant": lambda m, x: torch.div(torch.ones(1, 3), F.linear(x, m.weight)),
    "positive weights and not bicubic": lambda m, x: F.interpolate(
        F.linear(x, m.weight)[:, None, None].expand(-1, 1, 3, 3), size=6, mode="bicubic"
    ),
    "changed in place and not a constant": lambda m, x: torch.zeros(1, 3).add_(F.linear(x, m.weight)),
}


@pytest.mark.parametrize("name", WRITTEN)
def test_a_layer_has_one_path_norm_however_it_is_written(name):
    plain = path_norm(Formula(lambda m, x: F.linear(x, m.weight, m.bias)), torch.ones(1, 2))
    assert path_norm(Formula(WRITTEN[name]), torch.ones(1, 2)).item() == pytest.approx(plain.item())


@pytest.mark.parametrize("named", NOT_FOLLOWED)
def test_functions_whose_paths_do_not_add_up_are_refused(named):
    with pytest.raises(ValueError, match=named):
        path_norm(Formula(NOT_FOLLOWED[named]), torch.ones(1, 2))
