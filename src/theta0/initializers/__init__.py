"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.mmd import Mmd, MmdStep, MmdTerms, mmd_
from theta0.initializers.unit_variance import UnitVariance, unit_variance_

INITIALIZERS = {"unit-variance": unit_variance_, "mmd": mmd_}

__all__ = ["INITIALIZERS", "Mmd", "MmdStep", "MmdTerms", "UnitVariance", "mmd_", "unit_variance_"]
