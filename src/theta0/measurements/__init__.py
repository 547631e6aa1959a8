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
from theta0.measurements.neighbours import dead_units, jacobians, neighbours
from theta0.measurements.perturbed_outputs import PerturbedOutputs, perturbed_outputs
from theta0.measurements.signals import signals

MEASUREMENTS = {
    "signals": signals,
    "activation-shift": activation_shift,
    "gradients": gradients,
    "neighbours": neighbours,
    "jacobians": jacobians,
    "dead-units": dead_units,
}

__all__ = [
    "MEASUREMENTS",
    "GradientGram",
    "NeuronShift",
    "PerturbedOutputs",
    "activation_shift",
    "dead_units",
    "fisher_eigenvalues",
    "gradcosine",
    "gradient_gram",
    "gradient_noise",
    "gradient_norms",
    "gradients",
    "jacobians",
    "neighbours",
    "neuron_shifts",
    "perturbed_outputs",
    "signals",
]
