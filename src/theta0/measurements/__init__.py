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
    path_bound,
)
from theta0.measurements.lipschitz import LipschitzBounds, lipschitz_bounds
from theta0.measurements.neighbours import dead_units, jacobians, neighbours
from theta0.measurements.perturbed_outputs import PerturbedOutputs, perturbed_outputs
from theta0.measurements.signals import signals

__all__ = [
    "GradientGram",
    "LipschitzBounds",
    "NeuronShift",
    "PerturbedOutputs",
    "activation_shift",
    "capacity",
    "dead_units",
    "fisher_eigenvalues",
    "generalization_gap",
    "gradcosine",
    "gradient_gram",
    "gradient_noise",
    "gradient_norms",
    "gradients",
    "jacobians",
    "lipschitz_bounds",
    "lipschitz_lower_bound",
    "neighbours",
    "neuron_shifts",
    "path_bound",
    "perturbed_outputs",
    "rademacher_bound",
    "signals",
]
