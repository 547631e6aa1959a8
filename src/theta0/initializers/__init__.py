"""Starting points: `name_(model, …)` returns the model, `initialize(name, model, …)` says what was done to it."""

from theta0.initializers.gradinit import gradinit_
from theta0.initializers.initialize import INITIALIZERS, initialize
from theta0.initializers.metainit import metainit_
from theta0.initializers.mmd import Mmd, MmdStep, MmdTerms, mmd_
from theta0.initializers.nio import nio_
from theta0.initializers.random_labels import RandomLabels, RandomLabelStep, random_labels_
from theta0.initializers.scale_recipes import Recipe, apply_recipe_, load_recipe, recipe_of, save_recipe
from theta0.initializers.scale_search import ScaleSearch
from theta0.initializers.scaled_network import Quality
from theta0.initializers.unit_variance import UnitVariance, unit_variance_
from theta0.initializers.weight_norm_start import WeightNormStart, weight_norm_start_

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
    "initialize",
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
