"""Merged moments are those of the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from theta0._moments import mean_of, merged, moments, sample_moments, spread_of, square_sum

parts = st.lists(st.lists(st.floats(-1e6, 1e6, width=64), min_size=1, max_size=12), min_size=1, max_size=5)


@given(parts, st.sampled_from([0.0, 1.0, 1e9]))
def test_merging_is_concatenating(values, offset):
    tensors = [torch.tensor(part, dtype=torch.float64) + offset for part in values]
    total = moments(tensors[0])
    for part in tensors[1:]:
        total = merged(total, moments(part))
    whole = torch.cat(tensors).numpy().astype(np.longdouble)
    mean = whole.mean()
    size = np.abs(whole).max() + 1e-300
    assert total.count == whole.size
    assert float(total.mean) == pytest.approx(float(mean), abs=float(1e-14 * size))
    variance, rounding = ((whole - mean) ** 2).mean(), (1e-14 * size) ** 2 * 1e2
    assert float(total.variance) == pytest.approx(
        float(variance), rel=1e-9, abs=float(1e-15 * size * variance**0.5 + rounding + 1e-300)
    )


@given(st.integers(0, 100))
def test_relative_spread_of_a_billionth_survives(seed):
    noise = torch.randn(60, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    values = 1.0 + 1e-9 * noise
    total = merged(merged(moments(values[:7]), moments(values[7:31])), moments(values[31:]))
    exact = ((values - 1.0) * 1e9).var(0, correction=0) * 1e-18
    torch.testing.assert_close(total.variance, exact, rtol=1e-6, atol=0)


def test_half_precision_does_not_overflow():
    values = torch.full((10, 2), 6e4, dtype=torch.float16)
    assert moments(values).mean.tolist() == [pytest.approx(6e4, rel=1e-3)] * 2
    assert moments(values).variance.tolist() == [0, 0]


@pytest.mark.parametrize("kind", [torch.float32, torch.float16, torch.float64], ids=str)
@pytest.mark.parametrize(("scale", "offset"), [(1.0, 0.0), (1.0, 30.0), (1e-2, 100.0)])
def test_large_tensors_are_reduced_in_their_own_precision(kind, scale, offset):
    noise = torch.randn(8, 40, 251, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    values = (offset + scale * noise).to(kind)
    for layout in (values, values.transpose(1, 2)):
        exact = layout.double()
        mean, variance, mean_square = spread_of(layout)
        assert mean == pytest.approx(float(exact.mean()), abs=1e-6 * float(exact.abs().max()))
        assert variance == pytest.approx(float(exact.var(correction=0)), rel=1e-5)
        assert mean_square == pytest.approx(float(exact.square().mean()), rel=1e-6)
        found = sample_moments(layout, 0, 1)
        assert found.squares == pytest.approx(float(exact.var(0, correction=0).sum() * 8), rel=1e-4)
        assert found.units.mean.shape == (1, layout.shape[1])


@pytest.mark.parametrize("size", [1e-30, 1e30])
def test_squares_outside_the_range_of_single_precision(size):
    values = size * torch.randn(300, 300, generator=torch.Generator().manual_seed(0))
    assert square_sum(values) == pytest.approx(float(values.double().square().sum()), rel=1e-6)
    assert mean_of(values) == pytest.approx(float(values.double().mean()), abs=1e-7 * size)
