"""Measure a starting point and judge it by rules."""

from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

from torch import nn

from theta0._batches import Batch, load_batches
from theta0._losses import Loss, checked
from theta0._models import unwrapped
from theta0._optimizers import OptimizerLike, recognized_optimizer
from theta0._steps import Step
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.ordering import ordered, revised
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.rule import Rule
from theta0.diagnosis.rules import RULES


def diagnose(
    model: nn.Module,
    batches: Iterable[Any],
    loss: Loss = None,
    *,
    step: Step | None = None,
    optimizer: OptimizerLike | None = None,
    learning_rate: float | None = None,
    max_batches: int | None = 4,
    rules: Sequence[Rule] | None = None,
) -> Diagnosis:
    """Look at a network's starting point and say what is wrong with it.

    The model is left bit-identical. Cost: one gradient per batch; three gradients on one batch where a parameter's
    gradient is exactly zero (only one that stays zero after two probe steps is a fault); about ten more, twelve at
    most, where a learning rate is given, to hold it against the curvature.

    Args:
        model: any module, in the mode in which it will be trained.
        batches: `(inputs, targets)` batches; mappings are taken by the names of `forward`'s parameters.
        loss: "cross_entropy", "mse", "l1", "bce", a callable, or None where the model returns its own `.loss`.
        step: instead of a loss, a function (model, batch) → loss that takes batches of any form, such as
            `lambda model, batch: model.training_step(batch, 0)`.
        optimizer: the one that will train it, by name, class, factory or instance; default SGD. An instance, or what a
            factory makes, brings its rate.
        learning_rate: its rate, which is judged too; without any, probe steps use 0.01.
        max_batches: how many batches are read; None reads all.
        rules: rules of your own, judged after those of `theta0.diagnosis.RULES`.

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
    found = load_batches(batches, inner, max_batches=max_batches, step=step)
    kind = recognized_optimizer(optimizer, inner)
    rate = learning_rate if learning_rate is not None else kind.rate or None
    if kind.known or rate is None:
        return diagnosis_of(inner, found, loss, optimizer=kind.name, rate=rate, rules=rules)
    result = diagnosis_of(inner, found, loss, optimizer=kind.name, rules=rules)
    unknown = f"the learning rate: no bound of {kind.shown}'s stability is known"
    return replace(result, not_measured=(*result.not_measured, unknown))


def diagnosis_of(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    *,
    optimizer: str | None = None,
    rate: float | None = None,
    rules: Sequence[Rule] | None = None,
) -> Diagnosis:
    """As `diagnose`, on batches already loaded.

    Returns:
        The diagnosis.
    """
    by_code = _by_code([*RULES, *(rules or ())])
    evidence = Evidence(model, batches, loss, optimizer=optimizer or "sgd", rate=rate)
    alone = [rule for rule in by_code.values() if rule.alone is not None and rule.alone(evidence)]
    judged = [finding for rule in alone or by_code.values() for finding in _judged(rule, evidence)]
    findings = ordered(revised(judged, by_code, evidence), by_code, evidence)
    allowed = None if alone or rate is None else evidence.allowed_rate
    return Diagnosis(tuple(evidence.records), tuple(findings), evidence.cost, allowed, _not_measured(evidence))


def _not_measured(evidence: Evidence) -> tuple[str, ...]:
    if not evidence.has_loss:
        return ("gradients: there is no loss; pass loss=, step=, or what the model computes its own .loss from",)
    return ()


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
