"""Races of starting points: which start, at which rate, trains best in a short run."""

from theta0.comparison.compare import compare, winning_start_
from theta0.comparison.results import Candidate, Comparison, Standing, TuningRun
from theta0.comparison.starts import STARTS

__all__ = ["STARTS", "Candidate", "Comparison", "Standing", "TuningRun", "compare", "winning_start_"]
