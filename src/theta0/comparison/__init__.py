"""Races of starting points: which start, at which rate, trains best in a short run."""

from theta0.comparison.compare import compare, winning_start_
from theta0.comparison.results import Comparison, Entrant, Heat, Standing
from theta0.comparison.starts import STARTS

__all__ = ["STARTS", "Comparison", "Entrant", "Heat", "Standing", "compare", "winning_start_"]
