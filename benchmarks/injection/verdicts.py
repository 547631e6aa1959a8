"""theta0's verdict on each injection, at seed 0, and on healthy starts."""

import signal
import time
import warnings
from collections.abc import Callable, Iterator
from typing import Any

import torch

import theta0

from .networks import healthy
from .plan import injected
from .problem import Problem
from .truth import CONTROLS

FRESH_CONTROLS = (11, 12)  # starts that no half has


class OutOfTime(BaseException):
    """A diagnosis used up its process time; no handler for errors of the user's code may catch it."""


def within(seconds: float, function: Callable[[], Any]) -> Any:
    """Call a function; raise `OutOfTime` after so many seconds of process time."""

    def stop(*_: object) -> None:
        raise OutOfTime

    before = signal.signal(signal.SIGPROF, stop)
    signal.setitimer(signal.ITIMER_PROF, seconds)
    try:
        return function()
    finally:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.signal(signal.SIGPROF, before)


def judged(problem: Problem, seconds: float) -> dict:
    """Findings, cost in gradients and process seconds; `failed` where the diagnosis raises or takes too long."""

    def look() -> theta0.Diagnosis:
        return theta0.diagnose(
            problem.model, problem.train, problem.loss, optimizer=problem.optimizer, learning_rate=problem.rate
        )

    torch.manual_seed(0)
    start = time.process_time()
    try:
        found = within(seconds, look)
    except OutOfTime:
        return {"failed": f"more than {seconds} process seconds"}
    except Exception as error:  # whatever is raised, the benchmark goes on and counts it
        return {"failed": f"{type(error).__name__}: {error}"[:300]}
    said = [{"code": f.code, "severity": f.severity, "layer": f.layer, "message": f.message[:200]} for f in found.findings]  # fmt: skip  # noqa: E501
    return {"findings": said, "cost": round(found.cost, 2), "seconds": round(time.process_time() - start, 3)}


def lines(half: str, network: str, entries: dict[str, dict], known: dict[str, dict], seconds: float) -> Iterator[dict]:
    """Verdicts that are not known yet: healthy starts, and injections that are ill or harmless."""
    warnings.simplefilter("ignore")
    for seed in range(CONTROLS) if half != "fresh" else FRESH_CONTROLS:
        name = f"{half}/{network}/healthy/{seed}"
        if name not in known:
            yield {"name": name, **judged(healthy(network, seed), seconds)}
    for name, entry in entries.items():
        if name not in known and entry["class"] in ("ill", "harmless"):
            found = injected(name, 0)
            if found is not None:
                yield {"name": name, **judged(found.problem, seconds)}
