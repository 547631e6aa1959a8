"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.mmd import Mmd, MmdStep, MmdTerms, mmd_
from theta0.initializers.random_labels import RandomLabels, RandomLabelStep, random_labels_
from theta0.initializers.unit_variance import UnitVariance, unit_variance_

INITIALIZERS = {
    "unit-variance": unit_variance_,
    "mmd": mmd_,
}  # random labels are a baseline to compare with, not a remedy

__all__ = [
    "INITIALIZERS",
    "Mmd",
    "MmdStep",
    "MmdTerms",
    "RandomLabelStep",
    "RandomLabels",
    "UnitVariance",
    "mmd_",
    "random_labels_",
    "unit_variance_",
]
