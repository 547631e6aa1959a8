"""Say why a network does not train, by the smallest change that makes it train."""

import math
import time
from collections.abc import Collection, Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from theta0._batches import Batch, load_batches, with_shapes
from theta0._losses import Loss, checked
from theta0._models import Step, unwrapped
from theta0._progress import Progress, shown
from theta0._ranks import on_every_rank
from theta0._state import preserve_state
from theta0.diagnosis.diagnose import diagnosis_of
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.experiments.estimates import announce_memory, announce_time
from theta0.experiments.free_outputs import FreeOutputs, free_outputs
from theta0.experiments.optimizers import Optimizer, OptimizerKind, Scheduler, optimizer_kind, rate_of, steppable
from theta0.experiments.probe import probe
from theta0.explanation.bench import NOTHING, Bench, Change, Setting, Trial, scale_of
from theta0.explanation.changes import REMEDY, changes
from theta0.explanation.modules import NEAR, guilty, helps, units
from theta0.explanation.results import Explanation, Proof
from theta0.measurements.observed_training import NOTHING_OBSERVED, ObservedTraining
from theta0.treatment.remedies import named_by

SEEDS = 2  # on which a change must help to be proven
STEPS, BRIEF, LONGEST = 20, 10, 100  # of a run that compares, of the first look at a change, of the proof
_SUSPECTS = 3  # modules that findings name, tried alone
_PROBED = 60  # gradients for the choice of a rate, where none is given


@on_every_rank
def explain(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    step: Step | None = None,
    optimizer: Optimizer | None = None,
    learning_rate: float | None = None,
    scheduler: Scheduler | None = None,
    clip_norm: float | None = None,
    accumulate: int = 1,
    observed: ObservedTraining = NOTHING_OBSERVED,
    budget: float = 400,
    seconds: float | None = None,
    keep: Collection[str] = (),
    max_batches: int | None = 4,
    progress: bool | Progress | None = None,
) -> Explanation:
    """Find the one change that makes a network train, and prove it on two seeds; the model is left bit-identical.

    A run as given is compared with runs in which one thing is different: the learning rate times 10, 0.1 and 0.01, a
    warm-up, clipping, no weight decay, training mode, standardized inputs or targets, each remedy that the findings
    name; and modules drawn anew as their types are: alone, those with the least usual values first, and if none helps
    all of them and then ever smaller halves. The best is proven by longer runs on two seeds, of draws and of noise.

    Args:
        model: the network, in the mode in which it is trained.
        batches: `(inputs, targets)` batches.
        loss: a name, a callable, or None where the model returns its own `.loss`.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form.
        optimizer: the one that trains it, by name, class, factory or instance; default SGD, or Adam where no rate is
            given either.
        learning_rate: its rate; None takes that of an instance or a factory, and without any the best of five.
        scheduler: the schedule of the learning rate, a function from the optimizer to it; its highest rate counts.
        clip_norm: to which you clip the gradient's norm before each step; None for no clipping.
        accumulate: over how many batches each of your steps accumulates gradients.
        observed: what a captured script shows of its training beyond these.
        budget: gradients in all.
        seconds: at most, also.
        keep: paths of modules whose values are pretrained and are not drawn anew.
        max_batches: how many batches are read; None reads all.
        progress: True for a bar, or a function of what is being done and the share that is done.

    Returns:
        The explanation, the proven cause first.

    Raises:
        ValueError: on a wrong argument or unusable data.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> layers = [part for _ in range(3) for part in (nn.Linear(8, 8), nn.Tanh())]
        >>> model, x = nn.Sequential(*layers, nn.Linear(8, 2)), torch.randn(64, 8)
        >>> _ = nn.init.zeros_(model[2].weight)
        >>> _ = nn.init.constant_(model[4].weight, 1e3)
        >>> found = explain(model, [(x, x[:, :2])], "mse", optimizer="adam", learning_rate=1e-3, budget=60)
        >>> found.cost <= 60
        True
    """
    checked(loss, step)
    if not budget > 0 or (seconds is not None and not seconds > 0):
        raise ValueError(f"budget and seconds: expected positive numbers, got {budget} and {seconds}")
    inner = unwrapped(model)
    data = load_batches(batches, inner, max_batches=max_batches, step=step)
    inner = with_shapes(inner, data[0])
    deadline = math.inf if seconds is None else time.monotonic() + seconds
    chosen = optimizer or ("sgd" if learning_rate is not None else "adam")
    kind = steppable(optimizer_kind(chosen, inner, clip_norm=clip_norm, accumulate=accumulate))
    rate = rate_of(kind, learning_rate, scheduler)
    named = kind if optimizer else None
    with preserve_state(inner), shown(progress, "explaining") as tell:
        tell("looking at the starting point", 0.0)
        trials, began = int(budget / STEPS), time.monotonic()  # each keeps its start, and where its run is
        announce_memory(tell, inner, snapshots=2 + 2 * trials, kind=kind, waiting=trials)
        diagnosis = diagnosis_of(
            inner,
            data,
            loss,
            optimizer=named,
            rate=rate,
            observed=observed,
        )
        pace = (time.monotonic() - began) / max(1.0, diagnosis.cost)
        announce_time(tell, budget, pace, deadline - time.monotonic())
        bench = _bench(inner, data, loss, kind, rate, diagnosis, budget, deadline)
        bench.tell = lambda text: tell(text, bench.spent / bench.budget)
        return _explained(bench, diagnosis, keep)


def _bench(
    model: nn.Module,
    data: Sequence[Batch],
    loss: Loss,
    kind: OptimizerKind,
    rate: float | None,
    diagnosis: Diagnosis,
    budget: float,
    deadline: float,
) -> Bench:
    spent, first = diagnosis.cost + len(data) / 3, _first(diagnosis)
    free = _free(model, data, loss)
    if rate is None:
        found = probe(model, data, loss, kind, None, free=free, steps=int(min(_PROBED, budget / 4)))
        spent, rate = spent + found.cost, found.best or 1e-3
    setting = Setting(data, kind, rate, scale_of(free, first if math.isfinite(first) else 1.0))
    bench = Bench(model, loss, setting, float(budget), deadline, lambda text: None)
    bench.spent = spent
    return bench


def _free(model: nn.Module, data: Sequence[Batch], loss: Loss) -> FreeOutputs | None:
    try:
        return free_outputs(model, data, loss)
    except (ValueError, RuntimeError):
        return None


def _first(diagnosis: Diagnosis) -> float:
    return next((r.value for r in diagnosis.records if r.quantity == "loss" and not r.layer), math.nan)


def _explained(bench: Bench, diagnosis: Diagnosis, keep: Collection[str]) -> Explanation:
    given = bench.tried(NOTHING, STEPS)
    found, left = units(bench.model, keep)
    if given is None:
        verdict = "Nothing could be tried: the model cannot be trained, or the budget is too small."
        return Explanation(verdict, False, None, (), (), left, diagnosis, bench.spent, False)
    suspects = _suspects(diagnosis, found)
    given, modules = guilty(bench, found, given, suspects, STEPS)
    steps = max([STEPS, *(len(trial.run.losses) for trial in modules[-1:])])
    others = [] if given.trains else _others(bench, given, diagnosis, steps)
    ranked = _ranked(given, modules, others, steps)
    proof = next((p for p in (_proven(bench, given, trial) for trial in ranked[:2]) if p is not None), None)
    trains = proof is None and given.trains
    verdict = _verdict(bench, given, proof, trains, diagnosis)
    runs = tuple(trial.shown for trial in bench.trials)
    excluded = _excluded(bench, proof)
    complete = bench.left >= STEPS or proof is not None or trains
    return Explanation(
        verdict, trains, proof, runs, excluded, left, _with_evidence(diagnosis, proof), bench.spent, complete
    )


def _suspects(diagnosis: Diagnosis, found: Collection[str]) -> list[str]:
    """Modules that errors and warnings name, in the findings' order."""
    layers = [f.layer for f in diagnosis.findings if f.severity != "note" and f.layer]
    paths = [layer if layer in found else layer.rpartition(".")[0] for layer in layers]
    return [path for path in dict.fromkeys(paths) if path in found][:_SUSPECTS]


def _others(bench: Bench, given: Trial, diagnosis: Diagnosis, steps: int) -> list[Trial]:
    """The other changes: all of them briefly, the better ones for as many steps as modules were given."""
    todo: list[Change] = changes(bench.model, bench.given, bench.loss, named_by(diagnosis))
    reserve = max(4 * STEPS, SEEDS * steps + STEPS)
    brief = [bench.tried(change, BRIEF) for change in todo if bench.left > BRIEF + reserve]
    tried = sorted((trial for trial in brief if trial is not None), key=lambda trial: trial.share())
    best = [trial for trial in tried if trial.share() < given.share(BRIEF)][: max(1, len(tried) // 3)]
    return [bench.advanced(trial, steps) for trial in best if bench.left > steps + reserve]


def _ranked(given: Trial, modules: Sequence[Trial], others: Sequence[Trial], steps: int) -> list[Trial]:
    """What may be the cause, the smallest change first.

    A single module comes before remedies, which change all weights, and before what is hardly better.
    """
    found = [trial for trial in (*modules[-1:], *others) if helps(trial, given, steps)]
    rivals = [trial for trial in found if not trial.change.words.startswith(REMEDY)]
    best = min((trial.share(steps) for trial in rivals), default=math.inf)
    gap = given.share(steps) - best if math.isfinite(given.share(steps)) else 1.0
    single = [trial for trial in found if trial.change.module and trial.share(steps) <= best + NEAR * gap]
    return single + [t for t in sorted(found, key=lambda t: t.share(steps)) if t not in single]


def _proven(bench: Bench, given: Trial, trial: Trial) -> Proof | None:
    """Longer runs with and without the change, on two seeds."""
    done = len(given.run.losses), len(trial.run.losses)
    steps = int(min(LONGEST, (bench.left + sum(done)) / (2 * SEEDS)))
    if steps < max(done):
        steps = int(min(*done, bench.left / SEEDS))
    if steps < STEPS:
        return None
    pairs = []
    for seed in range(SEEDS):
        before = bench.advanced(given, steps) if seed == 0 else bench.tried(NOTHING, steps, seed)
        after = bench.advanced(trial, steps) if seed == 0 else bench.tried(trial.change, steps, seed)
        if before is None or after is None or not helps(after, before, steps):
            return None
        pairs.append((before.shown, after.shown))
    plain, changed = zip(*pairs, strict=True)
    return Proof(trial.change.words, trial.change.module, plain, changed)


def _verdict(bench: Bench, given: Trial, proof: Proof | None, trains: bool, diagnosis: Diagnosis) -> str:
    if proof is not None:
        return proof.sentence
    fell = f"after {len(given.run.losses)} steps the loss is {given.final():.3g}"
    constant = f"less than {bench.given.scale[0]:.3g} shows that it learns"
    if trains:
        return f"It trains: {fell}, where {constant}; initializing no module again makes it better."
    serious = [f for f in diagnosis.findings if f.severity != "note"]
    named = f" The diagnosis names {serious[0].code}: {serious[0].message}" if serious else " The cause is not known."
    return f"Not proven: {fell}, where {constant}, and no single change that was tried makes it train.{named}"


def _excluded(bench: Bench, proof: Proof | None) -> tuple[str, ...]:
    """What was tried and is not the cause."""
    proven = "" if proof is None else proof.change
    return tuple(
        f"{trial.change.words}: the loss after {len(trial.run.losses)} steps is {trial.final():.3g}"
        for trial in bench.trials
        if trial.change is not NOTHING and trial.change.words != proven
    )


def _with_evidence(diagnosis: Diagnosis, proof: Proof | None) -> Diagnosis:
    """The findings at the guilty module hold the runs that prove it."""
    if proof is None or not proof.module:
        return diagnosis

    def held(finding: Finding) -> Finding:
        there = finding.layer == proof.module or finding.layer.startswith(f"{proof.module}.")
        return replace(finding, evidence=(*proof.given, *proof.changed)) if there else finding

    return replace(diagnosis, findings=tuple(held(finding) for finding in diagnosis.findings))
