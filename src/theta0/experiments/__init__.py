"""Short runs that decide: continued, compared and dropped inside a snapshot of the model."""

from theta0.experiments.learning_rate import suggest_learning_rate
from theta0.experiments.optimizers import OptimizerKind, optimizer_kind
from theta0.experiments.runs import Experiment, PausedRun, continued, prepared, started
from theta0.experiments.verification import verify_learning_rate

__all__ = [
    "Experiment",
    "OptimizerKind",
    "PausedRun",
    "continued",
    "optimizer_kind",
    "prepared",
    "started",
    "suggest_learning_rate",
    "verify_learning_rate",
]
