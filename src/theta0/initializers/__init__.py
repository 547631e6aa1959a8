"""Starting points: `name_(model, batches, …)` changes values in place and returns the model."""

from theta0.initializers.gradinit import gradinit_
from theta0.initializers.metainit import metainit_
from theta0.initializers.nio import nio_
from theta0.initializers.scale_recipes import Recipe, apply_recipe_, load_recipe, recipe_of, save_recipe
from theta0.initializers.scale_results import Quality, ScaleSearch
from theta0.initializers.unit_variance import UnitVariance, unit_variance_

INITIALIZERS = {"unit-variance": unit_variance_, "nio": nio_, "gradinit": gradinit_, "metainit": metainit_}

__all__ = [
    "INITIALIZERS",
    "Quality",
    "Recipe",
    "ScaleSearch",
    "UnitVariance",
    "apply_recipe_",
    "gradinit_",
    "load_recipe",
    "metainit_",
    "nio_",
    "recipe_of",
    "save_recipe",
    "unit_variance_",
]
