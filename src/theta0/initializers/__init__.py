"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.unit_variance import UnitVariance, unit_variance_
from theta0.initializers.weight_norm_start import WeightNormStart, weight_norm_start_

INITIALIZERS = {"unit-variance": unit_variance_, "weight-norm-start": weight_norm_start_}

__all__ = ["INITIALIZERS", "UnitVariance", "WeightNormStart", "unit_variance_", "weight_norm_start_"]
