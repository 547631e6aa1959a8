"""The pieces of a race, each by itself: here, or in another process."""

import math
import pickle
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import astuple, dataclass, replace
from functools import lru_cache
from typing import Any

from theta0._ranks import ranks
from theta0._state import preserve_randomness, preserve_state
from theta0._training import RATES, probe_rate
from theta0.comparison.starts import Made, Makers, UnmadeError
from theta0.comparison.store import run_to_dict
from theta0.diagnosis.allowed_rate import allowed_rate
from theta0.jobs import installed, processes
from theta0.treatment.trials import Trial, fresh_order

_ALONE = threading.Lock()  # runs draw from the process's random state, and workers may have several threads


@dataclass(frozen=True)
class Task:
    """A piece of a race: `stage` is entrant (a start is made, and its rate suggested if asked for), heat or final."""

    stage: str
    start: str
    rate: float = 0.0
    steps: int = 0
    seed: int = 0
    suggest: bool = False

    @property
    def parts(self) -> tuple[Any, ...]:
        """What distinguishes it in a store."""
        return (self.stage, self.start, self.suggest, 0) if self.stage == "entrant" else astuple(self)[:5]


def performed(makers: Makers, trial: Trial, task: Task) -> dict[str, Any]:
    """What is kept of a task; a start that cannot be made for a later seed is an `UnmadeError`."""
    return _entered(makers, trial, task) if task.stage == "entrant" else _run(makers, trial, task)


def _entered(makers: Makers, trial: Trial, task: Task) -> dict[str, Any]:
    empty = {"suggested": None, "probed": None, "seconds": 0.0, "gradients": None, "cost": 0.0}
    try:
        made = makers.make(task.start, 0)
    except UnmadeError as error:
        return empty | {"reason": str(error)}
    made.state()
    rate, probed, cost = _suggested(made, trial) if task.suggest else (None, None, 0.0)
    seconds = {"seconds": made.seconds, "gradients": made.gradients, "cost": cost}
    return seconds | {"suggested": rate, "probed": probed, "reason": ""}


def _suggested(made: Made, trial: Trial) -> tuple[float, float, float]:
    """The rate that the curvature allows, the one whose ten steps lower the loss most, and the cost of both."""
    data, kind = trial.train[:4], trial.optimizer
    probed, cost = probe_rate(made.model, data, trial.loss, optimizer=kind.make, restore=made.state)
    with preserve_state(made.model):
        found, _ = allowed_rate(made.model, trial.train, trial.loss, kind.settings or kind.nearest)
    if found is None or found.value is None or not (math.isfinite(found.value) and found.value > 0):
        return probed, probed, cost
    return min(found.value, max(RATES)), probed, cost + found.cost


def _run(makers: Makers, trial: Trial, task: Task) -> dict[str, Any]:
    made = makers.make(task.start, task.seed)
    made.state()
    data, held = (trial.rest, trial.confirm) if task.stage == "final" else (trial.train, trial.probe)
    train = fresh_order(data, task.steps, task.seed + 1)
    began = time.perf_counter()
    try:
        run = replace(trial, steps=task.steps).run(made.model, train, held, task.rate, task.seed)
    finally:
        made.state()
    seconds = time.perf_counter() - began
    return {"stage": task.stage, "start": task.start, "seed": task.seed, "seconds": seconds, "run": run_to_dict(run)}


def packed(makers: Makers, trial: Trial) -> bytes:
    """All that tasks share, with what a worker cannot import, as the classes of a script.

    Raises:
        ValueError: if it cannot be taken to another process.
    """
    cloudpickle = installed("cloudpickle", "papers")
    alone = replace(trial, stepped=Trial.stepped)
    modules = {type(module).__module__ for module in makers.plain(0).modules()}
    modules |= {getattr(part, "__module__", "") or "" for part in (makers.source, makers.loss)}
    makers.restore()
    try:
        with _by_value(cloudpickle, [name for name in modules if name in sys.modules and not _importable(name)]):
            return bytes(cloudpickle.dumps((makers.source, makers.batches, makers.loss, alone)))
    except Exception as error:  # pickling calls the user's own methods
        raise ValueError(
            "jobs: expected a model, batches, a loss and an optimizer that can be pickled for other processes, got "
            f"{type(error).__name__}: {error}; leave jobs out, or define them at the top level of a module."
        ) from error


def performed_elsewhere(shared: bytes, task: Task) -> dict[str, Any] | None:
    """As `performed`, of what was packed, in a worker; None for a start that cannot be made."""
    with _ALONE, preserve_randomness():
        makers, trial = _unpacked(shared)
        try:
            return performed(makers, trial, task)
        except UnmadeError:
            return None


@lru_cache(maxsize=1)
def _unpacked(shared: bytes) -> tuple[Makers, Trial]:
    source, batches, loss, trial = pickle.loads(shared)
    return Makers(source, batches, loss), trial


def checked_jobs(jobs: int | None, backend: str | None) -> None:
    """Refuse several processes where this one already trains with others."""
    if jobs is not None and jobs < 1 and jobs != -1:
        raise ValueError(f"jobs: expected at least 1, or -1 for as many as there are, got {jobs}")
    several = backend is not None or processes(jobs) > 1
    if several and jobs != 1 and ranks() > 1:
        raise ValueError("jobs: expected 1, and no backend, in a process group: its ranks train together")


def _importable(module: str) -> bool:
    """Whether a module is found where modules are looked for; being loaded, as a target file is, is not enough."""
    top = module.partition(".")[0]
    finders = [finder.find_spec for finder in sys.meta_path if hasattr(finder, "find_spec")]
    return module != "__main__" and any(find(top, None) is not None for find in finders)


@contextmanager
def _by_value(cloudpickle: Any, names: list[str]) -> Iterator[None]:
    for name in names:
        cloudpickle.register_pickle_by_value(sys.modules[name])
    try:
        yield
    finally:
        for name in names:
            cloudpickle.unregister_pickle_by_value(sys.modules[name])
