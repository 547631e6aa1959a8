"""What fixes a starting point, and the proof that it does."""

from theta0._training import Run
from theta0.treatment.remedies import REMEDIES
from theta0.treatment.results import Attempt, Treatment
from theta0.treatment.starts import load_start_, save_start
from theta0.treatment.treat import treat

__all__ = ["REMEDIES", "Attempt", "Run", "Treatment", "load_start_", "save_start", "treat"]
