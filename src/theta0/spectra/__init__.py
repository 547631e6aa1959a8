"""Fourier amplitudes of what a network computes, along lines, curves and slices of its inputs."""

from theta0.spectra.amplitudes import Spectrum, fourier_amplitude, radial_spectrum
from theta0.spectra.curves import plane, polyline, segment
from theta0.spectra.learned import SpectrumChange, spectrum_change
from theta0.spectra.linear_regions import LinearRegions, linear_regions

__all__ = [
    "LinearRegions",
    "Spectrum",
    "SpectrumChange",
    "fourier_amplitude",
    "linear_regions",
    "plane",
    "polyline",
    "radial_spectrum",
    "segment",
    "spectrum_change",
]
