"""Numbers read off a network; a measurement is a function that returns records and leaves the model bit-identical."""

from theta0.measurements.activation_shift import NeuronShift, activation_shift, neuron_shifts
from theta0.measurements.gradients import (
    GradientGram,
    fisher_eigenvalues,
    gradcosine,
    gradient_gram,
    gradient_noise,
    gradient_norms,
    gradients,
)
from theta0.measurements.signals import signals

MEASUREMENTS = {"signals": signals, "activation-shift": activation_shift, "gradients": gradients}

__all__ = [
    "MEASUREMENTS",
    "GradientGram",
    "NeuronShift",
    "activation_shift",
    "fisher_eigenvalues",
    "gradcosine",
    "gradient_gram",
    "gradient_noise",
    "gradient_norms",
    "gradients",
    "neuron_shifts",
    "signals",
]
