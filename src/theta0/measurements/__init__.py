"""Numbers read off a network; a measurement is a function that returns records and leaves the model bit-identical."""

from theta0.measurements.activation_shift import NeuronShift, activation_shift, neuron_shifts
from theta0.measurements.gradient_alignment import (
    GradientGram,
    fisher_eigenvalues,
    gradcosine,
    gradient_noise,
    gradient_norms,
    path_bound,
)
from theta0.measurements.gradients import gradient_gram, gradients
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
    "path_bound",
    "signals",
]
