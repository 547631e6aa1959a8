"""Libraries that only the experiments need, imported when an experiment asks for them."""

import importlib
from types import ModuleType


def extra(module: str) -> ModuleType:
    """A module of the optional group `papers`.

    Args:
        module: its dotted import name.

    Returns:
        The imported module.

    Raises:
        ImportError: it is not installed; the message names the command that installs it.
    """
    try:
        return importlib.import_module(module)
    except ImportError as error:
        raise ImportError(
            f"the experiments need {module!r}, which is not installed: run  pip install 'theta0[papers]'"
        ) from error
