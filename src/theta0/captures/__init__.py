"""A training script, run as it is, becomes a model, batches, a step and an optimizer."""

from theta0._errors import CaptureError
from theta0.captures.captured import Captured, CapturedStep
from theta0.captures.script import capture, capture_steps

__all__ = ["CaptureError", "Captured", "CapturedStep", "capture", "capture_steps"]
