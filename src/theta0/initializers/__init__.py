"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.mmd import mmd_
from theta0.initializers.mmd_results import Mmd, MmdStep, MmdTerms
from theta0.initializers.random_labels import RandomLabels, RandomLabelStep, random_labels_
from theta0.initializers.unit_variance import UnitVariance, unit_variance_
from theta0.initializers.weight_norm_start import WeightNormStart, weight_norm_start_

# Random labels are missing: a baseline to compare with, not a remedy.
INITIALIZERS = {"unit-variance": unit_variance_, "weight-norm-start": weight_norm_start_, "mmd": mmd_}

__all__ = [
    "INITIALIZERS",
    "Mmd",
    "MmdStep",
    "MmdTerms",
    "RandomLabelStep",
    "RandomLabels",
    "UnitVariance",
    "WeightNormStart",
    "mmd_",
    "random_labels_",
    "unit_variance_",
    "weight_norm_start_",
]
