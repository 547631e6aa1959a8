"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.mmd import mmd_
from theta0.initializers.mmd_results import Mmd, MmdStep, MmdTerms
from theta0.initializers.random_labels import RandomLabels, RandomLabelStep, random_labels_
from theta0.initializers.unit_variance import UnitVariance, unit_variance_

# Random labels are missing: a baseline to compare with, not a remedy.
INITIALIZERS = {"unit-variance": unit_variance_, "mmd": mmd_}

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
