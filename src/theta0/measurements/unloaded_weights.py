"""Weights that a script meant to load: did they reach the module?"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn


@dataclass(frozen=True)
class NotLoaded:
    """A call of `load_state_dict(…, strict=False)` that left out weights which belong to the module.

    Attributes:
        module: the class of the module that loads.
        given: how many tensors it was given.
        loaded: how many of them it has under the same name.
        prefix: what the others' names have too much, or too little with a leading "-", to be the module's; "" where
            no prefix explains them.
        example: a name that was given and not found.
        line: the source line that loads; "" where it is not known.
    """

    module: str
    given: int
    loaded: int
    prefix: str
    example: str
    line: str = ""


def not_loaded(
    module: nn.Module, state: Mapping[str, Any], missing: Sequence[str], unexpected: Sequence[str], line: str = ""
) -> NotLoaded | None:
    """What `module.load_state_dict(state, strict=False)` left out, where that can hardly be meant.

    That is the case where none of the tensors given reached the module; or where all that are left out have the name
    and the shape of tensors of the module's, which got none, but for one prefix.

    Args:
        module: that loads.
        state: what it was given.
        missing: names of the module's that got nothing, as `load_state_dict` returns them.
        unexpected: names that were given and are none of the module's, likewise; hooks may have renamed some before.
        line: the source line.

    Returns:
        What is left out; None where everything is loaded, or what is not can be meant (another head).

    Example:
        >>> from torch import nn
        >>> layer = nn.Linear(2, 2)
        >>> wrapped = {f"module.{name}": value for name, value in layer.state_dict().items()}
        >>> found = not_loaded(layer, wrapped, *layer.load_state_dict(wrapped, strict=False))
        >>> found.given, found.loaded, found.prefix
        (2, 0, 'module.')
    """
    given = {name: value for name, value in state.items() if isinstance(value, Tensor)}
    unknown = [name for name in unexpected if name in given]
    own = {**dict(module.named_parameters(remove_duplicate=False)), **dict(module.named_buffers())}
    if not unknown or not own:
        return None
    prefix = _prefix(unknown, missing)
    shifted = {name: own.get(new) for name, new in _renamed(prefix, unknown).items()}
    fits = bool(prefix) and all(to is not None and to.shape == given[name].shape for name, to in shifted.items())
    if len(unknown) < len(given) and not fits:
        return None
    reached = len(given) - len(unknown)
    return NotLoaded(type(module).__name__, len(given), reached, prefix if fits else "", unknown[0], line)


def _prefix(unknown: Sequence[str], missing: Sequence[str]) -> str:
    """What the first name has too much before one of the missing names; with "-", too little; "" where neither."""
    first = unknown[0]
    longer = [first.removesuffix(name) for name in missing if first.endswith("." + name)]
    shorter = ["-" + name.removesuffix(first) for name in missing if name.endswith("." + first)]
    return min(longer, key=len, default="") or min(shorter, key=len, default="")


def _renamed(prefix: str, names: Sequence[str]) -> dict[str, str]:
    """Each name and what it is without, or with, the prefix; "" where it does not have it."""
    if prefix.startswith("-"):
        return {name: prefix[1:] + name for name in names}
    return {name: name.removeprefix(prefix) if name.startswith(prefix) else "" for name in names}
