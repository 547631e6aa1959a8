"""Numbers read off a network; a measurement is a function that returns records and leaves the model bit-identical."""

from theta0.measurements.activation_shift import NeuronShift, activation_shift, neuron_shifts
from theta0.measurements.signals import signals

MEASUREMENTS = {"signals": signals, "activation-shift": activation_shift}

__all__ = ["MEASUREMENTS", "NeuronShift", "activation_shift", "neuron_shifts", "signals"]
