"""Merged moments are those of the whole."""

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from theta0._moments import merged, moments

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
        float(variance), rel=1e-9, abs=float(1e-15 * size * variance**0.5 + rounding)
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
