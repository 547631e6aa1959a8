"""Running what the user wrote: whatever it raises becomes one sentence that says where."""

from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")


class UserCodeError(ValueError):  # a class so that what tries other ways on a ValueError does not try on over this
    """The user's own code raised."""


def guarded(where: str, function: Callable[[], T]) -> T:
    """Call a function of the user's.

    Args:
        where: what is called, as the error's first words.
        function: the call.

    Returns:
        What it returns.

    Raises:
        UserCodeError: if it raises; the first line of what it said, the original as the cause.
    """
    try:
        return function()
    except Exception as error:
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        raise UserCodeError(f"{where} raised {kind}{reason}") from error
