"""Fourier amplitudes of what a network computes, along lines, curves and slices of its inputs."""

from theta0.spectra.amplitudes import Spectrum, fourier_amplitude, radial_spectrum
from theta0.spectra.curves import plane, polyline, segment
from theta0.spectra.learned import SpectrumChange, spectrum_change

__all__ = [
    "Spectrum",
    "SpectrumChange",
    "fourier_amplitude",
    "plane",
    "polyline",
    "radial_spectrum",
    "segment",
    "spectrum_change",
]
