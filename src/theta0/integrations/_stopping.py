"""What the adapters share: which findings stop a training or fail a test, and what a trainer's optimizer brings."""

import logging
from collections.abc import Callable, Sized
from typing import Any, Literal

from torch.optim import Optimizer

from theta0._errors import NotTrainableError
from theta0.diagnosis import Diagnosis, Finding
from theta0.reports.failure import failure_text

FailOn = Literal["error", "warning", "never"]
_GRAVE: dict[str, tuple[str, ...]] = {"error": ("error",), "warning": ("error", "warning"), "never": ()}


def grave(diagnosis: Diagnosis, fail_on: FailOn) -> tuple[Finding, ...]:
    """The findings at which to stop."""
    if fail_on not in _GRAVE:
        raise ValueError(f"fail_on: expected 'error', 'warning' or 'never', got {fail_on!r}")
    return tuple(f for f in diagnosis.findings if f.severity in _GRAVE[fail_on])


def stop(diagnosis: Diagnosis, fail_on: FailOn, error: Callable[[str], Exception] = NotTrainableError) -> None:
    """Raise where a finding is grave enough; log, to the logger "theta0", what is found otherwise."""
    __tracebackhide__ = True  # pytest shows the caller's line
    found = grave(diagnosis, fail_on)
    if found:
        raised = error(failure_text(diagnosis, found))
        raised.diagnosis = diagnosis  # type: ignore[attr-defined]  # an AssertionError takes it, too
        raise raised
    found = grave(diagnosis, "warning")
    log = logging.getLogger("theta0")
    log.log(
        logging.WARNING if found else logging.INFO, "%s", failure_text(diagnosis, found) if found else repr(diagnosis)
    )


def scheduled_rate(optimizer: Optimizer) -> float:
    """The rate that a schedule leads to where it starts lower, as in a warm-up; else the optimizer's own."""
    group: dict[str, Any] = optimizer.param_groups[0]
    return max(float(group[key]) for key in ("lr", "initial_lr", "max_lr") if key in group)


def unexhausted(loader: Any, most: int | None = 4) -> int | None:
    """How many batches can be read without coming to a loader's end, at which samplers go on to their next epoch."""
    if not isinstance(loader, Sized):
        return most
    return len(loader) if most is None else min(most, len(loader))
