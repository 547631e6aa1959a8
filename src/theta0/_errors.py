"""What users meet when something cannot be done; and running their own code, whose errors say where they came from."""

from collections.abc import Callable
from typing import Any, TypeVar

T = TypeVar("T")


class UserCodeError(ValueError):
    """The user's own code (model, loss, data) raised; the original error is the cause."""


class CaptureError(ValueError):
    """No training of a script was seen, or what was seen cannot be replayed."""


class InapplicableError(ValueError):
    """A model has nothing of the kind that a remedy changes."""


class NoCurvatureError(ValueError):
    """The loss has no curvature at a point, as where nothing reaches the weights: no learning rate is too high."""


class NotTrainableError(ValueError):
    """A diagnosis found what the caller wanted to stop at; `diagnosis` holds it."""

    diagnosis: Any = None


class NothingBetterError(ValueError):
    """A search found no start that is better; the model is as it was."""


class TimeEndedError(Exception):
    """The time that a verb was given is over.

    No `ValueError` or `RuntimeError`, which a search takes for something that cannot be done.
    """


class RankError(OSError):
    """Another rank of a process group failed, does something else, or did not come in time.

    No `ValueError`, which a search takes for a remedy that cannot be applied.
    """


def guarded(where: str, function: Callable[[], T], more: Callable[[], str] = str) -> T:
    """Call a function of the user's; what it raises becomes the cause of a `UserCodeError` with its first line.

    Args:
        where: what is called.
        function: the call.
        more: what else is known where it raises, as the end of the sentence.

    Returns:
        What it returns.

    Raises:
        UserCodeError: if it raises; one that says where it comes from already, as it is.
    """
    try:
        return function()
    except UserCodeError:
        raise
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        if isinstance(error, ValueError) and reason.startswith("expected "):  # a check of this library's
            raise UserCodeError(f"{where.removesuffix(':')}: {reason}") from error
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise UserCodeError(f"{where} raised {kind}{reason}{more()}") from error


def shown(value: object) -> str:
    """A value as messages show it: what is short as it is written, else its type and shape."""
    if isinstance(value, type):
        return f"the class {value.__name__}"
    text = repr(value)
    if len(text) <= 60 and "\n" not in text:
        return text
    shape = getattr(value, "shape", None)
    return type(value).__name__ if shape is None else f"a {type(value).__name__} of shape {tuple(shape)}"
