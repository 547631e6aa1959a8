"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.mmd import mmd_
from theta0.initializers.mmd_results import Mmd, MmdStep, MmdTerms
from theta0.initializers.unit_variance import UnitVariance, unit_variance_
from theta0.initializers.weight_norm_start import WeightNormStart, weight_norm_start_

INITIALIZERS = {"unit-variance": unit_variance_, "weight-norm-start": weight_norm_start_, "mmd": mmd_}

__all__ = [
    "INITIALIZERS",
    "Mmd",
    "MmdStep",
    "MmdTerms",
    "UnitVariance",
    "WeightNormStart",
    "mmd_",
    "unit_variance_",
    "weight_norm_start_",
]
