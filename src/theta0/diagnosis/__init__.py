"""What is wrong with a starting point: rules over evidence, and a rule of your own beside them."""

from theta0.diagnosis.diagnose import PROBE_STEPS, diagnose
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Diagnosis, Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.diagnosis.rules import RULES
from theta0.measurements.observed_training import ObservedTraining

__all__ = [
    "PROBE_STEPS",
    "RULES",
    "Diagnosis",
    "Evidence",
    "Finding",
    "ObservedTraining",
    "Place",
    "Rule",
    "RuleDoc",
    "Severity",
    "diagnose",
]
