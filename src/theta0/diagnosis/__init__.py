"""What is wrong with a starting point."""

from theta0.diagnosis.diagnose import diagnose
from theta0.diagnosis.results import Diagnosis, Finding, Severity

__all__ = ["Diagnosis", "Finding", "Severity", "diagnose"]
