"""What a race can be asked for."""

import math
from collections.abc import Sequence
from typing import Any

from theta0.comparison.starts import STARTS


def check_arguments(starts: Sequence[str], rates: Any, steps: int, seeds: int, budget_s: float | None) -> None:
    """Refuse what cannot be raced.

    Raises:
        ValueError: on an unknown start, a rate that is not positive, no step, no seed or no time.
    """
    unknown = [start for start in starts if start not in STARTS]
    if unknown or not starts:
        raise ValueError(f"starts: expected names out of {', '.join(STARTS)}, got {', '.join(unknown) or 'none'}")
    fair = isinstance(rates, Sequence) and len(rates) > 0 and all(isinstance(r, (int, float)) and r > 0 for r in rates)
    if rates != "auto" and not (fair and all(math.isfinite(rate) for rate in rates)):
        raise ValueError(f"rates: expected 'auto' or positive numbers, got {rates!r}")
    for name, value in (("steps", steps), ("seeds", seeds)):
        if value < 1:
            raise ValueError(f"{name}: expected at least 1, got {value}")
    if budget_s is not None and not budget_s > 0:
        raise ValueError(f"budget_s: expected a positive number of seconds, got {budget_s}")
