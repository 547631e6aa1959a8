"""How large an experiment is, by the name of its scale, and single sizes of it changed: `laptop,steps=2500`."""

import ast
import re
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from types import NoneType
from typing import Any, TypeVar

S = TypeVar("S")
_NEXT = re.compile(r",\s*(?=[A-Za-z_][\w.]*\s*=)")  # a comma before `name=`; those within a value separate its parts


def scale_named(scales: Mapping[str, S], scale: str) -> S:
    """The sizes of an experiment.

    Args:
        scales: by name; an experiment's sizes are a dataclass (a part of it may be one, too) or a number.
        scale: a name, followed by sizes that are to differ, such as `laptop,steps=2500,plan.rate=0.01`. Values are
            numbers, tuples in brackets, None, or text.

    Returns:
        The sizes.

    Raises:
        ValueError: there is no such scale, it has no such size, or the value is not one.

    >>> from dataclasses import dataclass
    >>> @dataclass(frozen=True)
    ... class Sizes:
    ...     steps: int
    ...     labels: tuple[int, ...]
    >>> scale_named({"laptop": Sizes(9375, (5, 20))}, "laptop,steps=2500,labels=(5,)")
    Sizes(steps=2500, labels=(5,))
    """
    name, *changes = _NEXT.split(scale)
    if name not in scales:
        raise ValueError(f"scale {name!r} is not known: choose one of {list(scales)}")
    sizes = scales[name]
    for change in changes:
        path, _, value = change.partition("=")
        sizes = _changed(sizes, path.strip().split("."), value.strip(), scale)
    return sizes


def is_scale(scale: str, name: str) -> bool:
    """Whether a scale is the one of that name, or that one with sizes changed."""
    return _NEXT.split(scale)[0] == name


def _changed(sizes: S, path: list[str], value: str, scale: str) -> S:
    known = [field.name for field in fields(sizes)] if is_dataclass(sizes) else []
    if path[0] not in known:
        has = f"the sizes {', '.join(known)}" if known else "one size, which goes by the name of the scale alone"
        raise ValueError(f"scale {scale!r}: there is no size {path[0]!r} here: this experiment has {has}")
    part = getattr(sizes, path[0])
    new = _changed(part, path[1:], value, scale) if path[1:] else _value(part, path[0], value, scale)
    changed: S = replace(sizes, **{path[0]: new})  # type: ignore[type-var]
    return changed


def _value(before: Any, name: str, text: str, scale: str) -> Any:
    """A value of the kind of the one before; a whole number stands for a fraction too, and None for a number."""
    try:
        value = ast.literal_eval(text)
    except (ValueError, SyntaxError):
        value = text
    wider: dict[type, tuple[type, ...]] = {int: (int, NoneType), float: (float, int), NoneType: (int, float)}
    kinds = wider.get(type(before), (type(before),))
    if not isinstance(value, kinds) or isinstance(value, bool) is not isinstance(before, bool):
        raise ValueError(f"scale {scale!r}: {name}: expected a value like {before!r}, got {text}")
    return value
