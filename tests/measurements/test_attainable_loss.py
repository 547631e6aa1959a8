"""Intervals contain what is computed, and least losses are what a search finds."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.nn import functional as F

from cases import normal
from theta0.measurements.attainable_loss import attainable_loss
from theta0.measurements.intervals import Interval, interval_of
from theta0.measurements.parameters import identical_share

BOUNDED = [
    torch.sigmoid,
    torch.tanh,
    F.relu,
    F.relu6,
    F.softplus,
    F.gelu,
    F.silu,
    F.mish,
    torch.exp,
    torch.sin,
    F.logsigmoid,
]


@pytest.mark.parametrize("function", BOUNDED)
def test_values_lie_in_the_interval(function):
    interval = interval_of(function, (torch.zeros(1),), {}, lambda value: None)
    values = function(torch.linspace(-20, 20, 4001, dtype=torch.float64))
    assert interval is not None
    assert float(values.min()) >= interval.low
    assert float(values.max()) <= interval.high


@settings(deadline=None, max_examples=30)
@given(a=st.floats(-3, 3), b=st.floats(-3, 3))
def test_sums_and_multiples_move_the_ends(a, b):
    x = torch.tanh(torch.linspace(-9, 9, 101, dtype=torch.float64))
    known = Interval(-1.0, 1.0, "tanh")
    for function, arguments in (
        (torch.mul, (x, a)), (torch.add, (x, b)), (torch.sub, (x, b)), (torch.Tensor.__rsub__, (x, b)),
        (torch.neg, (x,)),
    ):  # fmt: skip
        found = interval_of(function, arguments, {}, lambda value: known if value is x else None)
        values = function(*arguments)
        assert found is not None
        assert float(values.min()) >= found.low - 1e-12
        assert float(values.max()) <= found.high + 1e-12
        assert found.high - found.low == pytest.approx(2 * (abs(a) if function is torch.mul else 1))


def test_what_mixes_with_free_values_is_free():
    x, free = torch.tanh(normal(4, 3)), normal(4, 3)
    known = {id(x): Interval(-1.0, 1.0, "tanh")}
    for function, arguments in ((torch.add, (x, free)), (torch.mul, (x, free)), (torch.matmul, (x, free.T))):
        assert interval_of(function, arguments, {}, lambda value: known.get(id(value))) is None


@settings(deadline=None, max_examples=20)
@given(low=st.floats(-2, 0), width=st.floats(0.1, 4), seed=st.integers(0, 99))
def test_the_least_loss_is_below_every_choice_and_reached_by_one(low, width, seed):
    high, targets = low + width, torch.rand(64, 1, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    interval = Interval(low, high, "hardtanh")
    grid = torch.linspace(low, high, 2001, dtype=torch.float64)
    for kind, loss in (("bce", F.binary_cross_entropy_with_logits), ("difference", F.mse_loss)):
        found = attainable_loss(kind, targets.clone(), targets, interval)
        every = loss(grid.expand(64, -1), targets.expand(-1, 2001), reduction="none").amin(1).mean()
        assert found is not None
        assert found.best == pytest.approx(float(every), abs=1e-5)


def test_unit_vectors_reach_the_simplex():
    """Class vectors of a regular simplex: inner products 1 and -1/(C-1), and nothing does better."""
    classes = 5
    corners = torch.eye(classes, dtype=torch.float64) - 1 / classes
    corners = F.normalize(corners, dim=1)
    for scale in (1.0, 4.0):
        logits = scale * corners @ corners.T
        found = attainable_loss(
            "cross_entropy", logits, torch.arange(classes), Interval(-scale, scale, "normalize", cosine=True)
        )
        assert found is not None
        assert found.best == pytest.approx(float(F.cross_entropy(logits, torch.arange(classes))), rel=1e-9)


@pytest.mark.parametrize("half", [False, True])
def test_copies_are_counted(half):
    weight, slope = normal(6, 4), normal(6, 4, seed=1)
    weight[[0, 3]], slope[[0, 3]] = weight[1].clone(), slope[1].clone()
    weight, slope = (weight.half(), slope.half()) if half else (weight, slope)
    assert identical_share(weight, slope) == pytest.approx(3 / 6)
    slope[3] = -slope[3]
    assert identical_share(weight, slope) == pytest.approx(2 / 6)
    assert identical_share(torch.zeros(6, 4), slope) == 0
    assert identical_share(torch.ones(6, 1), torch.ones(6, 1)) == 0
    assert identical_share(torch.ones(6, 4), torch.zeros(6, 4)) == 0


def test_cosines_by_hand_lie_between_minus_one_and_one():
    a, b = (F.normalize(normal(4, 3, seed=seed), dim=-1) for seed in (0, 1))
    unit = interval_of(F.normalize, (normal(4, 3),), {}, lambda value: None)
    known = {id(a): unit, id(b): unit}
    product = interval_of(torch.mul, (a, b), {}, lambda value: known.get(id(value)))
    known[id(a * b)] = product
    whole = interval_of(torch.sum, (product, -1), {}, lambda value: value)
    assert (whole.low, whole.high, whole.length) == (-1.0, 1.0, 0.0)


def test_clamps_and_quotients():
    x, known = normal(4), Interval(-1.0, 1.0, "tanh")
    for function, arguments, ends in (
        (torch.clamp, (x, 0.0), (0.0, 1.0)),
        (torch.clamp, (x, -5.0, 0.5), (-1.0, 0.5)),
        (F.hardtanh, (x, -0.5, 2.0), (-0.5, 1.0)),
        (torch.div, (x, -4.0), (-0.25, 0.25)),
    ):
        found = interval_of(function, arguments, {}, lambda value: known if value is x else None)
        assert (found.low, found.high) == ends
