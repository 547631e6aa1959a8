"""What users meet when something cannot be done; and running their own code, whose errors say where they came from."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class UserCodeError(ValueError):
    """The user's own code (model, loss, data) raised; the original error is the cause."""


class CaptureError(ValueError):
    """No training of a script was seen, or what was seen cannot be replayed."""


class InapplicableError(ValueError):
    """A model has nothing of the kind that a remedy changes."""


class NoCurvatureError(ValueError):
    """The loss has no curvature at a point, as where nothing reaches the weights: no learning rate is too high."""


class NothingBetterError(ValueError):
    """A search found no start that is better; the model is as it was."""


def guarded(where: str, function: Callable[[], T]) -> T:
    """Call a function of the user's; what it raises becomes the cause of a `UserCodeError` with its first line."""
    try:
        return function()
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise UserCodeError(f"{where} raised {kind}{reason}") from error
