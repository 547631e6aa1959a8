"""Lipschitz bounds, ordered as the theorems say on hundreds of networks, and against explicit operators."""

import math
from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn
from torch.nn import functional as F

from cases import case
from theta0.measurements import (
    capacity,
    generalization_gap,
    lipschitz_bounds,
    lipschitz_lower_bound,
    rademacher_bound,
)
from theta0.regularizers import l1_norm, path_norm


def chain(widths, seed, nonlinearity=nn.ReLU):
    generator = torch.Generator().manual_seed(seed)
    parts = []
    for a, b in pairwise(widths):
        layer = nn.Linear(a, b).double()
        for parameter in layer.parameters():
            nn.init.normal_(parameter, generator=generator)
        parts += [layer, nonlinearity()]
    return nn.Sequential(*parts[:-1])


def operator_norm(function, *shape):
    inputs = torch.eye(torch.Size(shape).numel(), dtype=torch.float64).view(-1, *shape)
    return torch.linalg.matrix_norm(function(inputs).flatten(1), 2).item()


@settings(max_examples=20, deadline=None)
@given(
    st.lists(st.integers(1, 6), min_size=2, max_size=5),
    st.integers(0, 10**6),
    st.sampled_from([nn.ReLU, nn.Tanh, nn.LeakyReLU, nn.Sigmoid]),
)
def test_bounds_are_ordered_as_the_theorems_say(widths, seed, nonlinearity):
    model = chain(widths, seed, nonlinearity)
    bounds = lipschitz_bounds(model)
    slack = 1 + 1e-9
    depth = len(widths) - 1
    assert bounds.spectral <= bounds.frobenius * slack
    assert bounds.frobenius <= bounds.l1 * slack
    assert bounds.path <= bounds.l1 * slack
    assert bounds.l1 <= l1_norm(model).item() ** depth * slack
    assert bounds.path == pytest.approx(path_norm(model).item())
    if max(widths[1:-1], default=1) == 1:
        assert bounds.path == pytest.approx(bounds.l1)
    x = torch.randn(64, widths[0], generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    lower = lipschitz_lower_bound(model, [x])
    steepest = (torch.pdist(model(x)) / torch.pdist(x)).max().item()
    for upper in (bounds.spectral, bounds.frobenius, bounds.l1, bounds.path):
        assert max(lower, steepest) <= upper * slack


@pytest.mark.slow
@settings(max_examples=40, deadline=None)
@given(
    st.sampled_from([nn.Conv1d, nn.Conv2d, nn.ConvTranspose1d, nn.ConvTranspose2d]),
    st.integers(1, 3), st.integers(1, 2), st.integers(0, 2), st.integers(1, 2), st.integers(1, 2),
    st.integers(0, 10**6),
)  # fmt: skip
def test_a_convolution_is_bounded_as_the_matrix_that_it_is(kind, size, stride, padding, dilation, groups, seed):
    axes = int(kind.__name__[-2])
    torch.manual_seed(seed)
    padding = min(padding, dilation * (size - 1)) if "Transpose" in kind.__name__ else padding
    layer = kind(2, 4, size, stride=stride, padding=padding, dilation=dilation, groups=groups).double()
    shape = (2, *(7, 6)[:axes])
    bounds = lipschitz_bounds(layer, torch.ones(1, *shape))

    def linear(x):
        return layer(x) - layer(torch.zeros_like(x))

    inputs = torch.eye(math.prod(shape), dtype=torch.float64).view(-1, *shape)
    matrix = linear(inputs).flatten(1)
    assert bounds.frobenius == pytest.approx(matrix.norm().item())
    assert bounds.l1 == pytest.approx(matrix.abs().sum().item())
    assert bounds.spectral >= torch.linalg.matrix_norm(matrix, 2).item() * (1 - 1e-9)


def test_the_bound_of_a_convolution_is_tight_on_large_images_and_loose_above_the_size_limit(monkeypatch):
    torch.manual_seed(0)
    layer = nn.Conv2d(3, 4, 3, padding=1).double()
    exact = operator_norm(lambda x: F.conv2d(x, layer.weight, padding=1), 3, 16, 16)
    example = torch.ones(1, 3, 16, 16)
    assert exact <= lipschitz_bounds(layer, example).spectral <= 1.03 * exact
    monkeypatch.setattr("theta0.measurements.lipschitz._LARGEST_SYMBOL", 0)
    assert 1.03 * exact < lipschitz_bounds(layer, example).spectral < 3 * exact


class Branches(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(2, 2, 3, padding=1, padding_mode="reflect")
        self.norm = nn.BatchNorm2d(2)
        self.side = nn.Conv2d(2, 3, 1)
        self.head = nn.Linear(20, 3)

    def forward(self, x):
        h = x - 2 * F.gelu(self.norm(self.conv(x))) / 4
        h = torch.cat([h, self.side(x)], 1)
        return self.head(F.max_pool2d(h, 3, stride=2, padding=1).flatten(1)) * torch.tensor([1.0, -2.0, 0.5])


@pytest.mark.parametrize("seed", range(5))
def test_branching_networks_are_never_steeper_than_their_bounds(seed):
    torch.manual_seed(seed)
    model = Branches().double()
    nn.init.uniform_(model.norm.running_var, 0.5, 2)
    x = torch.randn(60, 2, 4, 4, dtype=torch.float64)
    bounds, lower = lipschitz_bounds(model, x), lipschitz_lower_bound(model, [x])
    assert 0 < lower <= min(bounds.spectral, bounds.path)
    assert [record.layer for record in bounds.layers[::3]] == ["conv", "side", "head"]
    assert model.training


def test_the_slope_on_the_data_of_a_linear_map_is_its_norm():
    model = nn.Linear(5, 3).double()
    expected = torch.linalg.matrix_norm(model.weight, 2).item()
    x = torch.randn(4, 5)
    assert lipschitz_lower_bound(model, [x]) == pytest.approx(expected)
    bounds = lipschitz_bounds(model)
    assert bounds.spectral == pytest.approx(expected)
    assert [r.layer for r in bounds.layers] == ["(model)"] * 3


@pytest.mark.parametrize("name", ["cnn", "norm and dropout", "two inputs", "own loss", "lazy", "mixed modes"])
def test_capacity_reads_a_network_and_leaves_it(name):
    model, batches = case(name).model(), case(name).batches()
    before = (
        {k: v.clone() for k, v in model.state_dict().items() if isinstance(v, torch.Tensor)} if name != "lazy" else {}
    )
    records = {r.quantity: r.value for r in capacity(model, batches)}
    assert 0 < records["lipschitz_lower"] <= records["lipschitz_spectral"] <= records["lipschitz_frobenius"]
    assert records["lipschitz_lower"] <= records["lipschitz_path"]
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items() if key in before)
    assert all(p.grad is None for p in model.parameters())


def test_tokens_have_no_slopes():
    with pytest.raises(ValueError, match="floating inputs"):
        capacity(case("lstm").model(), case("lstm").batches())


def test_theorems_one_and_two():
    # L = 1, a single linear layer: the exact complexity of {w: |w| <= K} is at most K max|x| / sqrt(N).
    assert rademacher_bound(2.0, 1, 3.0, 4) == pytest.approx(math.sqrt(2) * 3)
    x = torch.randn(50, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    signs = torch.randint(2, (2000, 50), generator=torch.Generator().manual_seed(1)).double() * 2 - 1
    exact = 2.0 * torch.linalg.vector_norm(signs @ x, dim=1).mean().item() / 50
    assert exact <= rademacher_bound(2.0, 1, x.norm(dim=1).max().item(), 50)
    assert generalization_gap(0.5, 32, loss_lipschitz=2.0, loss_bound=0.0, delta=0.1) == pytest.approx(2.0)
    near_one = generalization_gap(0.0, 8, loss_lipschitz=1.0, loss_bound=3.0, delta=4 * math.exp(-4))
    assert near_one == pytest.approx(4 * 3 * 1.0)
    with pytest.raises(ValueError, match="delta"):
        generalization_gap(0.5, 32, loss_lipschitz=2.0, loss_bound=1.0, delta=1.5)
    with pytest.raises(ValueError, match="depth 0"):
        rademacher_bound(1.0, 0, 1.0, 1)
