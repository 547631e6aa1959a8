"""Race starting points against each other, each at its own best rate."""

import math
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Literal

import torch
from torch import nn

from theta0._batches import held_out
from theta0._losses import Loss, checked
from theta0._models import Step
from theta0._progress import Progress, shown, silent
from theta0._ranks import from_first, is_first, on_every_rank
from theta0._state import preserve_randomness
from theta0._training import Run
from theta0.comparison.performing import Task, checked_jobs, packed, performed, performed_elsewhere
from theta0.comparison.reading import read
from theta0.comparison.results import Candidate, Comparison, Standing, TuningRun, all_diverged
from theta0.comparison.starts import STARTS, Factory, Makers, UnmadeError
from theta0.comparison.store import Store, digest, loss_name, run_from_dict
from theta0.experiments.estimates import announce_time
from theta0.experiments.optimizers import Optimizer, OptimizerKind, Scheduler, optimizer_kind, rate_of
from theta0.jobs import cluster, completed, processes
from theta0.treatment.trials import Trial, trial_of

AROUND = (0.1, 0.3, 1.0, 3.0, 10.0)  # times a start's own suggestion
_FURTHER = 3  # rates past the lowest or the highest, while that is the best
_LOWER = 6  # tenths of a start's lowest rate, while every rate diverges
RUNGS = (0.25, 0.5, 1.0)  # of the steps: after each the better half of a start's rates goes on


@on_every_rank
def compare(
    model: nn.Module | Factory,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    step: Step | None = None,
    starts: Sequence[str] = ("default", "unit-variance", "lcw", "nio", "gradinit"),
    rates: Literal["auto"] | Sequence[float] = "auto",
    steps: int = 100,
    seeds: int = 3,
    optimizer: Optimizer | None = None,
    learning_rate: float | None = None,
    scheduler: Scheduler | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    budget_s: float | None = None,
    store: str | Path | None = None,
    max_batches: int | None = 32,
    jobs: int | None = None,
    backend: str | None = None,
    progress: bool | Progress | None = None,
) -> Comparison:
    """Race starting points: each at a few rates around its own suggestion, the best rate of each over several seeds.

    Rates are chosen by successive halving (Jamieson & Talwalkar, 2016): runs of a quarter, half and all of the steps
    with the first seed, after each of which the better half of every start's rates goes on; where the best of automatic
    rates is the lowest or the highest, further ones are tried on that side. No start is dropped. Then every start runs
    at its best rate for every seed, and the leaderboard is of the last quarter of the batches, which took no part
    before. Where every automatic rate diverges, lower ones are tried, down to a millionth of the lowest. A seed gives
    data order and noise, and other weights where `model` is a function. The model, where it is one, is left
    bit-identical. Runs are made one after another, not vmapped, or by several processes (`jobs`), with the same result.

    Args:
        model: a module, or a function that makes one, called under each seed.
        batches: `(inputs, targets)` batches; a DataLoader shuffles from a fixed seed, its own generator too.
        loss: a name, a callable, or None where the model returns its own.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        starts: names out of `STARTS`. One that cannot be made is listed with the reason, and the others are raced.
        rates: the rates to try for every start; "auto" for 0.1 to 10 times what the curvature at that start allows, and
            the one that a short probe finds.
        steps: of a full run.
        seeds: how many.
        optimizer: by name, class, factory or instance, which is mirrored; default SGD.
        learning_rate: the user's, tried beside the automatic ones; None takes that of an instance or a factory.
        scheduler: the schedule of the learning rate, a function from the optimizer to it; its highest rate counts.
        clip_norm: to which you clip the gradient's norm before each step; None for no clipping.
        accumulate: over how many batches each of your steps accumulates gradients.
        budget_s: seconds; where they run short, tuning runs are left out first, then seeds; every start is made
            once. None for no limit.
        store: a JSON-lines file in which runs are kept and found again, so that a race can go on.
        max_batches: how many batches are read; None reads all.
        jobs: how many runs at once, in processes of their own; None is what `joblib.parallel_config` says, else one.
        backend: joblib's, as "loky", "dask" or "ray"; `dask://HOST:PORT` or `ray://HOST:PORT` for a cluster that runs;
            None is what `joblib.parallel_config` says, else "loky".
        progress: True for a bar, or a function of what is being done and the share that is done.

    Returns:
        The leaderboard, curves and costs.

    Raises:
        ValueError: on a wrong argument or unusable data, or if no start can be made.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> starts = ["default", "unit-variance"]
        >>> found = compare(model, batches, "cross_entropy", starts=starts, rates=[0.1], steps=5, seeds=1)
        >>> sorted(standing.start for standing in found.standings)
        ['default', 'unit-variance']
    """
    _check_arguments(starts, rates, steps, seeds, budget_s)
    checked_jobs(jobs, backend)
    began = time.perf_counter()
    first = Makers(model, (), checked(loss, step)).plain(0)
    found = read(batches, first, max_batches=max_batches, step=step)
    first = model if isinstance(model, nn.Module) else first
    kind = optimizer_kind(optimizer, first, clip_norm=clip_norm, accumulate=accumulate)
    learning_rate = rate_of(kind, learning_rate, scheduler)
    if kind.closure:
        kind, learning_rate = optimizer_kind("sgd", first, clip_norm=clip_norm), None
    trial = trial_of(found, loss, optimizer=kind, rate=None, steps=steps)
    makers = Makers(model, trial.rest, loss)
    label = digest(found, loss_name(loss), kind.name, _settings(kind), [clip_norm, accumulate])
    race = _Race(makers, trial, Store(store if is_first() else None), label)
    race.automatic, race.jobs = isinstance(rates, str), jobs
    race.deadline = math.inf if budget_s is None else began + budget_s
    own = [learning_rate] if learning_rate is not None else []
    with preserve_randomness(), ExitStack() as afterwards, shown(progress, "racing the starts") as tell:
        afterwards.callback(makers.restore)
        race.backend = afterwards.enter_context(cluster(backend, jobs))
        race.progress = tell
        race.foresee(len(dict.fromkeys(starts)), seeds)
        race.ahead(Task("entrant", start, suggest=race.automatic) for start in dict.fromkeys(starts))
        candidates = [race.candidate(start, rates, own) for start in dict.fromkeys(starts)]
        if all(candidate.reason for candidate in candidates):
            raise ValueError("starts: " + "; ".join(f"{e.start}: {e.reason}" for e in candidates))
        race.making = sum(candidate.seconds for candidate in candidates)
        best = race.tune([candidate for candidate in candidates if not candidate.reason])
        standings, complete = race.final(best, seeds)
        reasons = all_diverged(race.tuning_runs, standings) | race.unmade
        candidates = [replace(c, reason=reasons.get(c.start, c.reason)) for c in candidates]
        drawn = not isinstance(model, nn.Module) and digest(makers.plain(0)) != digest(makers.plain(1))
    ranked = tuple(sorted(standings, key=lambda standing: (-len(standing.runs), _rank(standing.mean))))
    seconds, runs = time.perf_counter() - began, tuple(race.tuning_runs)
    return Comparison(ranked, tuple(candidates), runs, kind.name, steps, drawn, complete, race.cost, seconds)


def winning_start_(
    model: nn.Module | Factory,
    batches: Iterable[Any],
    loss: Loss,
    found: Comparison,
    *,
    step: Step | None = None,
    max_batches: int | None = 32,
) -> nn.Module:
    """Make the winner's start again, of its best seed, for `save_start`.

    Args:
        model: as for `compare`; a module is changed in place.
        batches: likewise.
        loss: likewise.
        found: the race.
        step: as for `compare`.
        max_batches: as for `compare`.

    Returns:
        The model at the winning start.

    Raises:
        ValueError: if there is no winner.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import compare
        >>> starts = ["default", "unit-variance"]
        >>> found = compare(model, batches, "cross_entropy", starts=starts, rates=[0.1], steps=5, seeds=1)
        >>> winning_start_(model, batches, "cross_entropy", found) is model
        True
    """
    winner = found.winner
    if winner is None:
        raise ValueError("comparison: expected a winner, got none: the time ran out before any run was done")
    seed = min(zip(winner.runs, winner.seeds, strict=True), key=lambda pair: _rank(pair[0].held_out))[1]
    data = read(batches, Makers(model, (), loss).plain(0), max_batches=max_batches, step=step)
    made = Makers(model, held_out(data)[0], loss).make(winner.start, seed)
    return made.model


def _settings(kind: OptimizerKind) -> str:
    """What distinguishes an optimizer from others of its name."""
    made = kind.make([nn.Parameter(torch.zeros(1))], 1.0)
    return repr(sorted((name, repr(value)) for name, value in made.defaults.items() if name != "lr"))


def _check_arguments(starts: Sequence[str], rates: Any, steps: int, seeds: int, budget_s: float | None) -> None:
    """Refuse an unknown start, a rate that is not positive, no step, no seed or no time."""
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


class _Race:  # a class because tuning runs and finals share store, clock and costs
    def __init__(self, makers: Makers, trial: Trial, store: Store, label: str) -> None:
        self.makers, self.store, self.label = makers, store, label
        self.trial = replace(trial, stepped=self._stepped)
        self.progress: Progress = silent
        self.steps, self.foreseen, self.doing = 0, 1.0, ""
        self.tuning_runs: list[TuningRun] = []
        self.cost = 0.0
        self.deadline = math.inf
        self.pace = 0.0  # seconds a step, the slowest seen
        self.making = 0.0  # seconds for making every start once
        self.unmade: dict[str, str] = {}  # starts that could be made, but not for a later seed
        self.weights: dict[int, str] = {}
        self.automatic = False
        self.jobs: int | None = None
        self.backend: str | None = None
        self.lowered = Counter[str]()  # tenths taken, by start

    def tell(self, text: str) -> None:
        self.doing = text
        self.progress(text, self.steps / self.foreseen)

    def foresee(self, starts: int, seeds: int) -> None:
        """How many steps a race of some starts takes: of the four or five rates of each, half are left at each rung."""
        tuning = sum(RUNGS[i] * math.ceil(len(AROUND) / 2**i) for i in range(len(RUNGS)))
        self.foreseen = starts * self.trial.steps * (tuning + seeds)

    def _stepped(self, steps: int) -> None:
        self.steps += steps
        self.tell(self.doing)

    def _key_of(self, task: Task) -> str:
        if task.seed not in self.weights:
            self.weights[task.seed] = digest(self.makers.plain(task.seed))
        return digest(self.label, self.weights[task.seed], *task.parts)

    def candidate(self, start: str, rates: Literal["auto"] | Sequence[float], own: list[float]) -> Candidate:
        """Make a start, and choose the rates around which to try it."""
        asked = None if isinstance(rates, str) else tuple(float(rate) for rate in rates)
        task = Task("entrant", start, suggest=asked is None)
        key = self._key_of(task)
        known = from_first(self.store.get(key))
        if known is None:
            self.tell(f"making {start}")
            known = performed(self.makers, self.trial, task)
            self.store.put(key, known)
        self.cost += known.get("cost", 0.0)
        suggested, rates_tried = known["suggested"], asked or ()
        if suggested is not None:
            around = [suggested * factor for factor in AROUND]
            further = [rate for rate in [known["probed"], *own] if all(not 0.7 < rate / r < 1.4 for r in around)]
            rates_tried = tuple(sorted([*around, *further]))
        return Candidate(start, suggested, rates_tried, known["seconds"], known["gradients"], known["reason"])

    def tune(self, candidates: Sequence[Candidate]) -> dict[str, float]:
        """Each start's best rate."""
        left = {candidate.start: list(candidate.rates) for candidate in candidates}
        for share in RUNGS:
            steps = max(1, round(share * self.trial.steps))
            runs = sum(len(rates) for rates in left.values() if len(rates) > 1)
            if runs == 0 or (share > RUNGS[0] and self._short_of(runs * steps + len(left) * self.trial.steps)):
                break
            self.ahead(Task("heat", e, rate, steps) for e, rates in left.items() if len(rates) > 1 for rate in rates)
            for start, rates in left.items():
                if len(rates) > 1:
                    left[start] = self._better_half(start, rates, steps)
            if share == RUNGS[0]:  # the first runs show how long a step takes
                announce_time(self.progress, self.foreseen - self.steps, self.pace, self.deadline - time.perf_counter())
        return {start: rates[0] for start, rates in left.items()}

    def _better_half(self, start: str, rates: list[float], steps: int) -> list[float]:
        reached = {rate: self._tuning_run(start, rate, steps) for rate in rates}
        if self.automatic:
            self._lower(start, reached, steps)
        for _ in range(_FURTHER if self.automatic and steps < self.trial.steps * RUNGS[1] else 0):
            best = min(reached, key=lambda rate: reached[rate])
            edges = {min(reached): 1 / 3, max(reached): 3.0}
            if best not in edges or not math.isfinite(reached[best]):
                break
            reached[best * edges[best]] = self._tuning_run(start, best * edges[best], steps)
        return sorted(reached, key=lambda rate: reached[rate])[: (len(rates) + 1) // 2]

    def _lower(self, start: str, reached: dict[float, float], steps: int) -> None:
        """Where every rate diverged, go down by tenths until one does not, and try one between the last two."""
        lowered = False
        while not any(map(math.isfinite, reached.values())) and self.lowered[start] < _LOWER:
            lowered, rate = True, min(reached) / 10
            self.lowered[start] += 1
            reached[rate] = self._tuning_run(start, rate, steps)
        if lowered and math.isfinite(reached[min(reached)]):
            rate = 3 * min(reached)
            reached[rate] = self._tuning_run(start, rate, steps)

    def _tuning_run(self, start: str, rate: float, steps: int) -> float:
        self.tell(f"{start} at rate {rate:.3g}: {steps} steps")
        run, _ = self.run("heat", start, rate, steps, 0)
        self.tuning_runs.append(TuningRun(start, rate, steps, run))
        return _rank(run.held_out)

    def final(self, best: dict[str, float], seeds: int) -> tuple[list[Standing], bool]:
        """Every start at its best rate for every seed, seed by seed, so that what is done is comparable."""
        runs: dict[str, list[tuple[int, Run, float]]] = {start: [] for start in best}
        complete = True
        for seed in range(seeds):
            if seed > 0 and self._short_of(len(best) * self.trial.steps, self.making):
                complete = False
                break
            ahead = range(seed, seeds if self.deadline == math.inf else seed + 1)
            self.ahead(Task("final", e, rate, self.trial.steps, s) for s in ahead for e, rate in best.items())
            for start, rate in best.items():
                self.tell(f"{start} at rate {rate:.3g}: seed {seed + 1} of {seeds}")
                try:
                    runs[start].append((seed, *self.run("final", start, rate, self.trial.steps, seed)))
                except UnmadeError as error:
                    self.unmade.setdefault(start, f"with seed {seed + 1} of {seeds}: {error}")
        done = []
        for start, found in runs.items():
            if found:
                numbers, finals, seconds = zip(*found, strict=True)
                done.append(Standing(start, best[start], finals, numbers, sum(seconds)))
        return done, complete

    def run(self, stage: str, start: str, rate: float, steps: int, seed: int) -> tuple[Run, float]:
        """One run, made or found in the store, and its seconds."""
        task = Task(stage, start, rate, steps, seed)
        key = self._key_of(task)
        known = self.store.get(key)
        if known is None:
            known = performed(self.makers, self.trial, task)
            self._paced(known, 1)
            self.store.put(key, known)
        run = run_from_dict(known["run"])
        self.cost += run.cost
        return run, float(known["seconds"])

    def ahead(self, tasks: Iterable[Task]) -> None:
        """Make what is missing of several runs side by side; each is in the store as soon as it is done."""
        width = processes(self.jobs, self.backend)
        missing = {key: task for key, task in ((self._key_of(task), task) for task in tasks) if not self.store.get(key)}
        if width == 1 or len(missing) < 2:
            return
        self.makers.restore()
        work = partial(performed_elsewhere, packed(self.makers, self.trial))
        for key, entry in completed(work, missing, jobs=self.jobs, backend=self.backend):
            if entry is not None:  # else a start that cannot be made, which says so where its turn comes
                self.store.put(key, entry)
                self._stepped(self._paced(entry, width))

    def _paced(self, entry: Mapping[str, Any], width: int) -> int:
        made = len(entry["run"]["losses"]) if "run" in entry else 0
        self.pace = max(self.pace, entry["seconds"] / made / width) if made else self.pace
        return made

    def _short_of(self, steps: int, more: float = 0.0) -> bool:
        return from_first(time.perf_counter() + steps * self.pace + more > self.deadline)


def _rank(value: float) -> float:
    return math.inf if math.isnan(value) else value
