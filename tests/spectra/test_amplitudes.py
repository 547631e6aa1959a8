"""Spectra of functions whose transforms are known in closed form, and what is told about bad grids and values."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from theta0.spectra import fourier_amplitude, plane, polyline, radial_spectrum, segment


def grid(n, length=1.0, start=0.0):
    return start + torch.arange(n, dtype=torch.float64) * length / n


@settings(max_examples=30, deadline=None)
@given(
    st.dictionaries(st.integers(0, 31), st.floats(0.01, 10), max_size=6),
    st.floats(0, 6.28),
    st.floats(0.1, 50),
    st.floats(-5, 5),
)
def test_amplitudes_of_sums_of_sines(waves, phase, length, start):
    def f(t):
        total = torch.zeros_like(t)
        for k, a in waves.items():
            total = total + a * (torch.sin(2 * torch.pi * k * t / length + phase) if k else torch.ones_like(t))
        return total

    spectrum = fourier_amplitude(f, grid(64, length, start))
    assert torch.allclose(spectrum.frequencies, torch.arange(33, dtype=torch.float64) / length)
    expected = [waves.get(k, 0.0) for k in range(33)]
    assert spectrum.amplitudes.squeeze(0).tolist() == pytest.approx(expected, abs=1e-6)


@pytest.mark.parametrize("n", [2, 64, 100])
def test_a_step_has_odd_frequencies_only(n):
    amplitudes = fourier_amplitude(lambda t: (t < 0.5).double(), grid(n)).amplitudes[0]
    expected = [0.5] + [k % 2 * 2 / n / math.sin(math.pi * k / n) for k in range(1, n // 2 + 1)]
    if n // 2 % 2:
        expected[-1] /= 2  # the Nyquist frequency is its own negative
    assert amplitudes.tolist() == pytest.approx(expected, abs=1e-6)


def test_windows_and_normalisations():
    def f(t):
        return 2 * torch.sin(2 * torch.pi * 8 * t)

    hann = fourier_amplitude(f, grid(64), window="hann").amplitudes[0]
    assert hann[[6, 7, 8, 9, 10]].tolist() == pytest.approx([0, 1, 2, 1, 0], abs=1e-9)
    unit = fourier_amplitude(f, grid(64), normalization="unit").amplitudes[0]
    assert unit.norm().item() == pytest.approx(1)
    assert fourier_amplitude(f, grid(64), normalization="none").at(8).item() == pytest.approx(64)
    leaking, faded = (
        fourier_amplitude(lambda t: t, grid(256), window=window).amplitudes[0, 40:].max() for window in ("none", "hann")
    )
    assert faded < leaking / 100


@pytest.mark.parametrize("n", [16, 17])
def test_a_constant_has_no_frequency_under_any_window(n):
    def f(t):
        return torch.full_like(t, -1.5)

    for window in ("none", "hann"):
        amplitudes = fourier_amplitude(f, grid(n), window=window).amplitudes[0]
        assert amplitudes.tolist() == pytest.approx([1.5] + [0] * (n // 2), abs=1e-12)
        rings = radial_spectrum(lambda c: f(c[:, 0]), grid(n), grid(n), window=window).amplitudes
        assert rings.tolist() == pytest.approx([1.5] + [0] * (n // 2), abs=1e-12)
    ones = fourier_amplitude(lambda t: 3 + torch.cos(2 * torch.pi * t), grid(n), window="hann").amplitudes[0]
    assert ones[:4].tolist() == pytest.approx([2.5, 1, 0.5, 0], abs=1e-12)  # the window spreads k = 1 to 0 and 2


def test_every_output_and_the_error_against_a_target():
    t = grid(50)

    def f(t):
        waves = torch.stack([torch.sin(2 * torch.pi * k * t[:, 0]) for k in (3, 7)], 1)
        return torch.stack([waves, 2 * waves], 1)

    spectrum = fourier_amplitude(f, t, batch_size=7)
    assert spectrum.amplitudes.shape == (2, 2, 26)
    assert spectrum.at(3.2).flatten().tolist() == pytest.approx([1, 0, 2, 0], abs=1e-9)
    assert spectrum.at(7)[:, 1].tolist() == pytest.approx([1, 2])
    error = fourier_amplitude(f, t, target=f(t[:, None]) - 0.25 * torch.sin(2 * torch.pi * 11 * t)[:, None, None])
    assert error.amplitudes.argmax(-1).unique().tolist() == [11]
    assert error.at(11).flatten().tolist() == pytest.approx([0.25] * 4)


def test_a_network_is_evaluated_untouched():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(1, 5), nn.BatchNorm1d(5), nn.Dropout(0.5), nn.ReLU(), nn.Linear(5, 2))
    before = {key: value.clone() for key, value in model.state_dict().items()}
    one, two = (fourier_amplitude(model, grid(32).float()).amplitudes for _ in range(2))
    assert torch.equal(one, two)
    assert one.shape == (2, 17)
    assert model.training
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


def test_a_linear_network_along_a_segment_is_a_ramp():
    a, b = torch.tensor([1.0, 2.0, 3.0]).double(), torch.tensor([2.0, 0.0, 5.0]).double()
    w = torch.tensor([1.0, -1.0, 2.0]).double()
    spectrum = fourier_amplitude(lambda t: segment(a, b)(t) @ w, grid(40))
    height = ((b - a) @ w).item()
    expected = [abs(height) / 40 / math.sin(math.pi * k / 40) for k in range(1, 20)]
    assert spectrum.amplitudes[1:20].tolist() == pytest.approx(expected, abs=1e-9)


def test_curves():
    points = torch.tensor([[0.0, 0.0], [1.0, 0.0], [1.0, 2.0]])
    at = polyline(points)(torch.tensor([[0.0], [0.25], [0.5], [0.75], [1.0]]))
    assert at.tolist() == [[0, 0], [0.5, 0], [1, 0], [1, 1], [1, 2]]
    corners = plane(torch.zeros(3), torch.ones(3), torch.arange(3.0))
    assert corners(torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 1.0]])).tolist() == [[1, 1, 1], [0, 1, 2], [1, 2, 3]]
    with pytest.raises(ValueError, match="one shape"):
        segment(torch.ones(2), torch.ones(3))
    with pytest.raises(ValueError, match="at least two"):
        polyline(torch.ones(1, 2))
    with pytest.raises(ValueError, match="finite"):
        segment(torch.ones(2), torch.full((2,), torch.nan))


@pytest.mark.parametrize(("k", "ring"), [((0, 0), 0), ((3, 0), 3), ((0, 5), 5), ((3, 4), 5), ((-6, 6), 8)])
def test_plane_waves_lie_in_the_ring_of_their_length(k, ring):
    def f(c):
        return 1.5 * torch.cos(2 * torch.pi * (c @ torch.tensor(k).double()) + (0 if ring == 0 else 0.7))

    spectrum = radial_spectrum(f, grid(24), grid(32))
    expected = torch.zeros(13)
    expected[ring] = 1.5
    assert spectrum.amplitudes.tolist() == pytest.approx(expected.tolist(), abs=1e-9)
    assert spectrum.frequencies.tolist() == pytest.approx(list(range(13)))
    error = radial_spectrum(f, grid(24), grid(32), target=f(torch.cartesian_prod(grid(24), grid(32))).view(24, 32))
    assert error.amplitudes.max() < 1e-12


@pytest.mark.parametrize(
    ("points", "match"),
    [
        (torch.tensor([0.0]), "at least two points"),
        (torch.empty(0), "at least two points"),
        (torch.tensor([0.0, 0.1, 0.3, 0.4]), "0.2 between points 1 and 2"),
        (torch.tensor([0.3, 0.2, 0.1]), "increasing"),
        (torch.tensor([0.0, torch.nan, 1.0]), "equal distances"),
        (torch.logspace(-3, 0, 20), "uniform grid"),
    ],
)
def test_bad_grids(points, match):
    with pytest.raises(ValueError, match=match):
        fourier_amplitude(torch.sin, points)


@pytest.mark.parametrize(
    ("points", "match"), [(torch.arange(8), "one of torch.int64"), ([0.0, 0.1], "got list"), (None, "got NoneType")]
)
def test_grids_that_are_no_floating_tensors(points, match, unchecked):
    with pytest.raises(ValueError, match=match):
        fourier_amplitude(torch.sin, points)


def test_single_precision_grids_far_from_zero_are_uniform():
    fourier_amplitude(torch.sin, torch.linspace(100, 101, 1000))


def test_values_that_cannot_be_transformed():
    with pytest.raises(ValueError, match=r"at 1 of 8 points, first at \[0.0\]"):
        fourier_amplitude(lambda t: 1 / t, grid(8))
    with pytest.raises(ValueError, match="one floating output for each of 8"):
        fourier_amplitude(lambda t: t.sum(0), grid(8))
    with pytest.raises(ValueError, match=r"one floating output .* got torch.int64 of shape \(8, 1\)"):
        fourier_amplitude(lambda t: t.long(), grid(8))
    with pytest.raises(ValueError, match="got NoneType"):
        fourier_amplitude(lambda t: None, grid(8))
    with pytest.raises(ValueError, match=r"inputs \[n, 1\] .* raised RuntimeError"):
        fourier_amplitude(nn.Linear(2, 1), grid(8).float())
    with pytest.raises(ValueError, match="target: expected finite"):
        fourier_amplitude(torch.sin, grid(8), target=torch.full((8,), torch.inf))
    with pytest.raises(ValueError, match="batch_size: expected at least 1"):
        fourier_amplitude(torch.sin, grid(8), batch_size=0)


@pytest.mark.usefixtures("unchecked")
def test_unknown_options():
    with pytest.raises(ValueError, match="the outputs' shape"):
        fourier_amplitude(torch.sin, grid(8), target=torch.zeros(7))
    with pytest.raises(ValueError, match="'none' or 'hann'"):
        fourier_amplitude(torch.sin, grid(8), window="kaiser")
    with pytest.raises(ValueError, match="'amplitude', 'unit'"):
        fourier_amplitude(torch.sin, grid(8), normalization="max")
