import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from theta0.measurements.degeneracy import constant_share, degenerate_loss, degenerate_share
from theta0.measurements.simplex_discrepancy import discrepancy, uniform_simplex


def simplex(*shape, seed=0, dtype=torch.float64, spread=2.0):
    generator = torch.Generator().manual_seed(seed)
    return (spread * torch.randn(*shape, generator=generator, dtype=torch.float64)).softmax(-1).to(dtype)


def by_definition(points, uniform):
    """Pair by pair in Python numbers; the lower median of all distances."""
    p, u = points.tolist(), uniform.tolist()
    both = [*p, *u]
    pairs = [(i, j) for i in range(len(both)) for j in range(i)]
    distances = sorted(math.dist(both[i], both[j]) for i, j in pairs)
    gamma = distances[(len(distances) - 1) // 2]

    def kernel(a, b):
        return math.fsum(math.exp(-(math.dist(a, b) ** 2) / (2 * (2.0**i * gamma) ** 2)) for i in range(-4, 5))

    def inner(rows):
        others = [kernel(a, b) for i, a in enumerate(rows) for j, b in enumerate(rows) if i != j]
        return math.fsum(others) / len(others)

    return inner(p) + inner(u) - 2 * math.fsum(kernel(a, b) for a in p for b in u) / (len(p) * len(u))


@pytest.mark.parametrize(("classes", "spread"), [(2, 2.0), (2, 20.0), (3, 0.1), (12, 3.0), (100, 1.0)])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_value_is_that_of_the_definition(classes, spread, dtype):
    points = simplex(3, 14, classes, dtype=dtype, spread=spread)
    uniform = uniform_simplex(3, 11, classes, torch.Generator().manual_seed(1), dtype)
    expected = [by_definition(p, u) for p, u in zip(points.double(), uniform.double(), strict=True)]
    tolerance = 1e-10 if dtype == torch.float64 else 2e-5
    assert discrepancy(points, uniform).tolist() == pytest.approx(expected, abs=tolerance)


@pytest.mark.sampled(1)
@pytest.mark.parametrize("classes", [2, 4, 11])
def test_derivative_is_that_of_the_value_with_the_bandwidth_held(classes, monkeypatch):
    points = simplex(2, 7, classes).requires_grad_()
    uniform = uniform_simplex(2, 6, classes, torch.Generator().manual_seed(1), torch.float64)
    fixed = torch.tensor(0.3, dtype=torch.float64)
    monkeypatch.setattr("theta0.measurements.simplex_discrepancy._median", lambda values: fixed)
    assert torch.autograd.gradcheck(lambda v: discrepancy(v, uniform), (points,))


@pytest.mark.slow
def test_it_is_unbiased_at_zero_and_large_for_a_point_mass():
    generator = torch.Generator().manual_seed(0)
    same = discrepancy(*(uniform_simplex(400, 24, 3, generator, torch.float64) for _ in range(2)))
    assert abs(float(same.mean())) < 4 * float(same.std()) / 400**0.5
    apart = discrepancy(torch.eye(3)[:1].expand(400, 24, 3), uniform_simplex(400, 24, 3, generator))
    assert float(apart.min()) > 1


def test_uniform_points_have_dirichlet_moments():
    points = uniform_simplex(1, 200_000, 4, torch.Generator().manual_seed(0), torch.float64)[0]
    assert torch.allclose(points.sum(1), torch.ones(1, dtype=torch.float64))
    assert points.mean(0).tolist() == pytest.approx([0.25] * 4, abs=2e-3)
    assert points.var(0).tolist() == pytest.approx([3 / 80] * 4, rel=0.02)  # (d - 1) / (d² (d + 1))


@settings(deadline=None, max_examples=25)
@given(st.integers(0, 2**31), st.integers(2, 5), st.integers(2, 6), st.floats(0.1, 8.0))
def test_discrepancy_ignores_the_order_of_points_and_classes(seed, count, classes, spread):
    points, uniform = simplex(1, count, classes, seed=seed, spread=spread), simplex(1, 5, classes, seed=seed + 1)
    order = torch.randperm(classes, generator=torch.Generator().manual_seed(seed))
    value = discrepancy(points, uniform)
    torch.testing.assert_close(discrepancy(points.flip(1), uniform), value)
    torch.testing.assert_close(discrepancy(points[..., order], uniform[..., order]), value)


def by_equation_14(v):
    count = v.shape[-1]
    total = 0.0
    for outputs in v.tolist():
        furthest = max(
            sum(math.dist(row, [float(i == j) for j in range(count)]) for row in outputs) / len(outputs)
            for i in range(count)
        )
        total += max(furthest, 1 / math.sqrt(count)) - 1 / math.sqrt(count)
    return total / len(v)


@pytest.mark.parametrize("classes", [2, 3, 7])
def test_degenerate_loss_is_equation_14_and_differentiable_at_a_vertex(classes):
    v = simplex(6, 5, classes, spread=4.0).requires_grad_()
    assert degenerate_loss(v).item() == pytest.approx(by_equation_14(v.detach()))
    assert torch.autograd.gradcheck(degenerate_loss, (v,))
    at_vertex = torch.eye(2, dtype=torch.float64)[:1].expand(1, 3, 2).clone().requires_grad_()
    degenerate_loss(at_vertex).backward()
    assert torch.isfinite(at_vertex.grad).all()


@settings(deadline=None, max_examples=40)
@given(st.integers(0, 2**31), st.integers(2, 4), st.integers(2, 12), st.floats(0.1, 8.0))
def test_a_model_without_degenerate_loss_uses_every_class(seed, classes, samples, spread):
    v = simplex(20, samples, classes, seed=seed, spread=spread)
    losses = torch.stack([degenerate_loss(row[None]) for row in v])
    used = torch.tensor([degenerate_share(row[None]) == 0 for row in v])
    assert bool((used | (losses > 0)).all())  # lee2023mmd, theorem 2


def test_shares_by_hand():
    v = torch.tensor([[[0.9, 0.1], [0.2, 0.8]], [[0.9, 0.1], [0.9, 0.1]], [[0.6, 0.4], [0.7, 0.3]]])
    assert degenerate_share(v) == pytest.approx(2 / 3)
    assert constant_share(v) == pytest.approx(1 / 3)
    assert constant_share(v, tolerance=0.2) == pytest.approx(2 / 3)
