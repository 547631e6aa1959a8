"""Numbers read off a network; a measurement is a function that returns records and leaves the model bit-identical."""

from theta0.measurements.activation_shift import NeuronShift, activation_shift, neuron_shifts
from theta0.measurements.capacity import (
    capacity,
    generalization_gap,
    lipschitz_lower_bound,
    rademacher_bound,
)
from theta0.measurements.gradients import (
    GradientGram,
    fisher_eigenvalues,
    gradcosine,
    gradient_gram,
    gradient_noise,
    gradient_norms,
    gradients,
)
from theta0.measurements.lipschitz import LipschitzBounds, lipschitz_bounds
from theta0.measurements.signals import signals

MEASUREMENTS = {"signals": signals, "activation-shift": activation_shift, "gradients": gradients, "capacity": capacity}

__all__ = [
    "MEASUREMENTS",
    "GradientGram",
    "LipschitzBounds",
    "NeuronShift",
    "activation_shift",
    "capacity",
    "fisher_eigenvalues",
    "generalization_gap",
    "gradcosine",
    "gradient_gram",
    "gradient_noise",
    "gradient_norms",
    "gradients",
    "lipschitz_bounds",
    "lipschitz_lower_bound",
    "neuron_shifts",
    "rademacher_bound",
    "signals",
]
