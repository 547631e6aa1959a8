"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.unit_variance import UnitVariance, unit_variance_

INITIALIZERS = {"unit-variance": unit_variance_}

__all__ = ["INITIALIZERS", "UnitVariance", "unit_variance_"]
