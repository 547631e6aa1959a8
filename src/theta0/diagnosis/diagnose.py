"""Measure a starting point and judge it by rules."""

import math
import time
import warnings
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from theta0._batches import Batch, load_batches
from theta0._losses import Loss, checked
from theta0._models import Step, unwrapped
from theta0._progress import Progress, shown, silent
from theta0._ranks import on_every_rank
from theta0._training import checked_positive
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.ordering import ordered, refuted, revised
from theta0.diagnosis.outcome import unprobed
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.rule import Rule
from theta0.diagnosis.rules import RULES
from theta0.experiments.optimizers import Optimizer, OptimizerKind, Scheduler, optimizer_kind, rate_of
from theta0.measurements.observed_training import NOTHING_OBSERVED, ObservedTraining

PROBE_STEPS = 100  # with what the other measurements take, less than 120 gradients


@on_every_rank
def diagnose(
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
    max_batches: int | None = 4,
    probe_steps: int = PROBE_STEPS,
    seconds: float | None = None,
    rules: Sequence[Rule] | None = None,
    ignore: Sequence[str] = (),
    progress: bool | Progress | None = None,
) -> Diagnosis:
    """Look at a network's starting point and say what is wrong with it.

    The model is left bit-identical. Cost: one gradient per batch; three gradients on one batch where a parameter's
    gradient is exactly zero (only one that stays zero after two probe steps is a fault); about ten more, twelve at
    most, where a learning rate is given, to hold it against the curvature; and the probe: 10 to 20 gradients where the
    network trains, up to `probe_steps` where it does not. Where something on the start stands against a run that
    trains, that run is repeated and continued, to 40 steps at most. With the default all together stay below 120.

    The probe trains from this start, with the optimizer and the rate given (or at five rates), and asks whether the
    loss falls below what outputs that ignore the input reach. A learning rate that trains is not called wrong, a
    network that does not train is never called fine, and what is found of a start's scale is a note where a run at the
    rate given gains a quarter of what there is to learn. Where short runs learn next to nothing, it is asked whether
    the targets depend on the inputs at all.

    Args:
        model: any module, in the mode in which it will be trained.
        batches: `(inputs, targets)` batches; mappings are taken by the names of `forward`'s parameters.
        loss: "cross_entropy", "mse", "l1", "bce", a callable, or None where the model returns its own `.loss`.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form, such as
            `lambda model, batch: model.training_step(batch, 0)`.
        optimizer: the one that will train it, by name, class, factory or instance; default SGD. An instance, or what a
            factory makes, brings its rate.
        learning_rate: its rate, which is judged too; without any, probe steps use 0.01.
        scheduler: the schedule of the learning rate, a function from the optimizer to it; its highest rate counts.
        clip_norm: to which you clip the gradient's norm before each step; None for no clipping.
        accumulate: over how many batches each of your steps accumulates gradients.
        observed: what a captured script shows of its training beyond these.
        max_batches: how many batches are read; None reads all.
        probe_steps: gradients that short training runs may take, at most; 0 leaves them out, which is said in
            `Diagnosis.not_measured`.
        seconds: that the diagnosis may take; short runs that do not fit are left out, which is said likewise. None for
            no limit.
        rules: rules of your own, judged after those of `theta0.diagnosis.RULES`.
        ignore: codes that are not to be reported; that they were left out is said in `Diagnosis.not_measured`.
        progress: True for a bar, or a function of what is being done and the share that is done.

    Returns:
        Records, findings ordered by cause, and the cost in gradients.

    Raises:
        ValueError: if the data, the loss or the model's forward cannot be used, or a rule's code is not its own; the
            message says what to do.

    Example:
        A rule of your own, which asks for classes that are about equally frequent:

        >>> import torch
        >>> from theta0.diagnosis import Finding, Place, Rule, RuleDoc
        >>> def judge(evidence):
        ...     counts = torch.cat([batch.targets for batch in evidence.batches]).bincount()
        ...     rarest, share = int(counts.argmin()), float(counts.min() / counts.sum())
        ...     if share < 0.05:
        ...         message = f"Class {rarest} has {share:.0%} of the targets. Weight the loss by class."
        ...         return Finding("rare-class", "note", "", share, 0.05, message, "", "judgement")
        >>> rule = Rule("rare-class", judge, Place.DATA, RuleDoc("A class is hardly seen."))
        >>> x, y = torch.eye(4).repeat(16, 1), torch.tensor([0] * 63 + [1])
        >>> found = diagnose(torch.nn.Linear(4, 2), [(x, y)], "cross_entropy", rules=[rule])
        >>> [f.message for f in found.findings if f.code == "rare-class"]
        ['Class 1 has 2% of the targets. Weight the loss by class.']
    """
    checked(loss, step)
    inner = unwrapped(model)
    if probe_steps < 0:
        raise ValueError(f"probe_steps: expected 0 or more, got {probe_steps}")
    checked_positive(seconds, "seconds")
    found = load_batches(batches, inner, max_batches=max_batches, step=step)
    kind, rate = None, checked_positive(learning_rate, "learning_rate")
    if optimizer is not None or scheduler is not None or clip_norm is not None or accumulate != 1:
        chosen = optimizer or ("sgd" if rate is not None else "adam")
        kind = optimizer_kind(chosen, inner, clip_norm=clip_norm, accumulate=accumulate)
        rate = rate_of(kind, rate, scheduler)
    with shown(progress, "looking at the starting point") as tell:
        return diagnosis_of(
            inner,
            found,
            loss,
            optimizer=kind,
            rate=rate,
            observed=observed,
            probe_steps=probe_steps,
            seconds=seconds,
            rules=rules,
            ignore=ignore,
            progress=tell,
        )


def diagnosis_of(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str | OptimizerKind | None = None,
    rate: float | None = None,
    observed: ObservedTraining = NOTHING_OBSERVED,
    probe_steps: int = 0,
    seconds: float | None = None,
    rules: Sequence[Rule] | None = None,
    ignore: Sequence[str] = (),
    progress: Progress = silent,
) -> Diagnosis:
    """As `diagnose`, on batches already loaded."""
    by_code = _by_code([*RULES, *(rules or ())])
    unknown = [code for code in ignore if code not in by_code]
    if unknown:
        raise ValueError(f"ignore: expected codes of findings, got {', '.join(unknown)}; `theta0 help` lists them")
    evidence = Evidence(
        model,
        batches,
        loss,
        optimizer=optimizer,
        rate=rate,
        observed=observed,
        probe_steps=probe_steps,
    )
    evidence.progress = progress
    evidence.deadline = time.monotonic() + (math.inf if seconds is None else seconds)
    evidence.announce()
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "Using a target size")  # torch's, once a call: broadcast-loss says it once
        return _without(_diagnosed(evidence, by_code), ignore)


def _without(diagnosis: Diagnosis, codes: Sequence[str]) -> Diagnosis:
    """A diagnosis without the findings of some codes."""
    left = tuple(finding for finding in diagnosis.findings if finding.code not in codes)
    ignored = len(diagnosis.findings) - len(left)
    if not ignored:
        return diagnosis
    found = [code for code in codes if any(finding.code == code for finding in diagnosis.findings)]
    said = f"Left out as asked: {ignored} finding{'s' * (ignored > 1)} of {', '.join(dict.fromkeys(found))}."
    return replace(diagnosis, findings=left, not_measured=(*diagnosis.not_measured, said))


def _diagnosed(evidence: Evidence, by_code: Mapping[str, Rule]) -> Diagnosis:
    alone = [rule for rule in by_code.values() if rule.alone is not None and rule.alone(evidence)]
    judged = [finding for rule in alone or by_code.values() for finding in _judged(rule, evidence)]
    weighed = refuted(revised(judged, by_code, evidence), by_code, evidence)
    findings = ordered(weighed, by_code, evidence)
    allowed = None if alone or evidence.rate is None else evidence.allowed_rate
    probed = None if alone else evidence.probe
    missing = (*evidence.not_measured, *unprobed(evidence, probed, findings))
    types, cost = evidence.observation.layer_types, evidence.cost + (0 if probed is None else probed.longer)
    return Diagnosis(tuple(evidence.records), tuple(findings), cost, allowed, probed, missing, types)


def _by_code(rules: Iterable[Rule]) -> dict[str, Rule]:
    found: dict[str, Rule] = {}
    for rule in rules:
        if rule.code in found:
            raise ValueError(
                f"rules: expected codes that no other rule has, got {rule.code!r} twice; give yours its own"
            )
        found[rule.code] = rule
    return found


def _judged(rule: Rule, evidence: Evidence) -> list[Finding]:
    result = rule.judge(evidence)
    found = [] if result is None else [result] if isinstance(result, Finding) else list(result)
    for finding in found:
        if finding.code != rule.code:
            raise ValueError(f"rules: expected findings of the code {rule.code!r} from its rule, got {finding.code!r}")
    return found
