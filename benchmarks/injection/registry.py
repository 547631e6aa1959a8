"""The kinds of fault: each draws its place and size and returns the injected problem, or None where it does not fit."""

import random
from collections.abc import Callable
from dataclasses import dataclass

from .problem import Problem

SMALL = ("vanishing-activations", "vanishing-gradients", "constant-output", "zero-gradient")
LARGE = ("exploding-activations", "exploding-gradients", "saturated-units", "initial-loss", "vanishing-gradients")


@dataclass(frozen=True)
class Injected:
    """A problem with a fault.

    Attributes:
        problem: the same problem, ill.
        size: how much, in words.
        places: module paths that are right, the injected one first; empty where the fault has no place.
        single: whether the values of one module alone are at fault, so that a new draw of them would cure it.
        codes: right first findings, where they depend on what was drawn; else the kind's.
    """

    problem: Problem
    size: str = ""
    places: tuple[str, ...] = ()
    single: bool = False
    codes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Kind:
    """A kind of fault.

    Attributes:
        name: as in the table.
        codes: right first findings.
        structural: whether the program is wrong whatever that costs: a path that is cut, a loss that does not fit.
        inject: the transformation.
    """

    name: str
    codes: tuple[str, ...]
    structural: bool
    inject: Callable[[Problem, random.Random], Injected | None]


KINDS: dict[str, Kind] = {}


def kind(*codes: str, structural: bool = False) -> Callable[[Callable], Callable]:
    """Register a kind under its function's name."""

    def register(function: Callable) -> Callable:
        KINDS[function.__name__] = Kind(function.__name__, codes, structural, function)
        return function

    return register
