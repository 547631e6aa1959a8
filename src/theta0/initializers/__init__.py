"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.gradinit import gradinit_
from theta0.initializers.metainit import metainit_
from theta0.initializers.mmd import mmd_
from theta0.initializers.mmd_results import Mmd, MmdStep, MmdTerms
from theta0.initializers.nio import nio_
from theta0.initializers.random_labels import RandomLabels, RandomLabelStep, random_labels_
from theta0.initializers.scale_recipes import Recipe, apply_recipe_, load_recipe, recipe_of, save_recipe
from theta0.initializers.scale_results import Quality, ScaleSearch
from theta0.initializers.unit_variance import UnitVariance, unit_variance_
from theta0.initializers.weight_norm_start import WeightNormStart, weight_norm_start_

INITIALIZERS = {
    "unit-variance": unit_variance_,
    "weight-norm-start": weight_norm_start_,
    "mmd": mmd_,
    "random-labels": random_labels_,
    "nio": nio_,
    "gradinit": gradinit_,
    "metainit": metainit_,
}

__all__ = [
    "INITIALIZERS",
    "Mmd",
    "MmdStep",
    "MmdTerms",
    "Quality",
    "RandomLabelStep",
    "RandomLabels",
    "Recipe",
    "ScaleSearch",
    "UnitVariance",
    "WeightNormStart",
    "apply_recipe_",
    "gradinit_",
    "load_recipe",
    "metainit_",
    "mmd_",
    "nio_",
    "random_labels_",
    "recipe_of",
    "save_recipe",
    "unit_variance_",
    "weight_norm_start_",
]
