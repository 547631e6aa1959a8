"""The comparison of starting points of yang2022nio, and its hyper-parameters."""

from collections.abc import Callable

from theta0.papers.yang2022nio.appendix import RECIPES, Recipe
from theta0.papers.yang2022nio.table import starts_table

ITEMS: dict[str, Callable[..., str]] = {"starts": starts_table}

__all__ = ["ITEMS", "RECIPES", "Recipe", "starts_table"]
