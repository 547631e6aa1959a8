"""Values of outputs or targets that the loss does not take, or a loss that has no minimum there."""

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.outcome import described
from theta0.diagnosis.results import Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.experiments.endless_fall import FAR, FASTER, LENGTHS, EndlessFall
from theta0.measurements.loss_contracts import Breach, Compare

FEW_CLASSES = 100
_DEFINITION = "what the loss is defined for"


def judge(evidence: Evidence) -> Finding | None:
    """The worst breach of what a loss takes; else a loss that falls without end; else a squared error on classes."""
    breaches = sorted(evidence.inspection.breaches, key=lambda breach: not breach.severe)
    if breaches:
        return _breach(breaches[0])
    fall = evidence.endless_fall or evidence.endless_fall_later
    if fall is not None:
        return _endless(fall)
    return next((found for c in evidence.inspection.comparisons if (found := _classes(evidence, c))), None)


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """The line of a cut, where the loss has none of its own; an error where short runs do not learn so."""
    lines = [other.source_line for other in others if other.code == "gradient-cut"]
    found = replace(finding, source_line=finding.source_line or next(iter(lines), evidence.observed.loss_line))
    probe = evidence.probe if finding.severity == "warning" and finding.source == _DEFINITION else None
    if probe is None or not evidence.nothing_trains:
        return found
    message = f"{found.message} No short run learns with it: {described(probe)}."
    return replace(found, severity="error", message=message, evidence=probe.runs)


def _breach(breach: Breach) -> Finding:
    return Finding(
        code="loss-mismatch",
        severity="error" if breach.severe else "warning",
        layer="",
        value=breach.value,
        quantity="value",
        threshold=breach.limit,
        message=f"{breach.what[0].upper()}{breach.what[1:]}. {breach.fix}",
        remedy="",
        source=_DEFINITION,
        source_line=breach.operation.line,
    )


def _endless(fall: EndlessFall) -> Finding:
    """A loss without a minimum, by the direction in which it falls faster and faster."""
    term = fall.term
    falls = "It" if term is None else f"The term `{term.name}` ({term.line or 'no line known'})"
    ways = " and ".join(
        f"{loss:.3g} at {length:g}" for length, loss in zip(fall.lengths[-2:], fall.losses[-2:], strict=True)
    )
    return Finding(
        code="loss-mismatch",
        severity="error",
        layer="",
        value=fall.losses[-1],
        quantity="loss",
        threshold=-FAR * max(1.0, abs(fall.first)),
        message=(
            f"The loss has no minimum: with {fall.parameter} alone moved, it falls from {fall.first:.3g} to {ways} "
            "(root "
            f"mean square of an entry's change), faster and faster. {falls} falls without end. Look at its sign (a "
            "divergence is added, a log-likelihood is maximized), and at what should bound it: a margin, a "
            "normalization (log_softmax), a square."
        ),
        remedy="",
        source="losses along single parameters; those with a minimum rise or stand still there",
        source_line="" if term is None else term.line,
    )


def _classes(evidence: Evidence, found: Compare) -> Finding | None:
    """A squared or absolute error whose targets are classes."""
    targets, inputs = evidence.batches[0].targets, evidence.batches[0].inputs
    reconstructs = isinstance(inputs, Tensor) and isinstance(targets, Tensor) and _same(inputs, targets)
    numbers = 2 < found.classes <= FEW_CLASSES
    severity: Severity = "warning"
    if found.one_hot and not reconstructs and found.columns > 1:
        what = f"one-hot targets of {found.columns} classes"
        advice = (
            "Use cross-entropy on unbounded outputs: its gradient does not die where the answer is confident and wrong."
        )
    elif numbers and found.columns == 1 and found.samples > found.classes and not reconstructs:
        what = f"the numbers of {found.classes} classes"
        advice = "Use cross-entropy on one output per class: class 3 is not three times class 1."
        if not isinstance(targets, Tensor) or targets.is_floating_point():  # a training step has them converted
            severity, what = "note", f"whole numbers from 0 to {found.classes - 1}, each of which occurs"
            advice = f"If they are classes: {advice[0].lower()}{advice[1:]} Counts and ratings are right as they are."
    else:
        return None
    return Finding(
        code="loss-mismatch",
        severity=severity,
        layer="",
        value=float(found.columns if found.one_hot else found.classes),
        quantity="classes",
        threshold=0.0,
        message=f"The loss takes the difference between the outputs and {what}. {advice}",
        remedy="",
        source="judgement",
        source_line=found.operation.line,
    )


def _same(inputs: Tensor, targets: Tensor) -> bool:
    return inputs.numel() == targets.numel() and torch.equal(inputs.flatten().double(), targets.flatten().double())


RULE = Rule(
    code="loss-mismatch",
    judge=judge,
    place=Place.LOSS,
    revise=revise,
    brings=frozenset({"initial-loss", "learning-rate-too-high", "squashed-output", "exploding-gradients"}),
    fault="the output and the loss",
    doc=RuleDoc(
        meaning="The targets or outputs are outside the range that the loss is made for, or its sign is wrong. The "
        "loss can still be computed, and may fall without end, but its minimum, if it has one, is not what you want.",
        why="""
            | mistake | fix |
            | --- | --- |
            | masks of 0 and 255 in a binary cross-entropy | `y / 255` |
            | labels of -1 and 1 in a binary cross-entropy | `(y + 1) / 2` |
            | labels of 0 and 1 in a hinge or margin loss | `2 * y - 1` |
            | raw scores in `nll_loss` or `kl_div` | `log_softmax` before it, or `cross_entropy` |
            | standardized counts in a Poisson loss | the counts themselves |
            | class numbers in a squared error | `cross_entropy` on one output per class |
            | weights of classes, or `pos_weight`, that grow with what is frequent | `weight=counts.sum() / counts` |
            | a loss with the wrong sign | leave out the minus |
            | logits reshaped where an axis should be moved | `logits.movedim(1, -1).reshape(-1, classes)` |
        """,
        numbers=(
            (
                "for `cross_entropy` and `nll_loss`: whether the logits along the class axis are, at every place, "
                "outputs of the same units. They are not where (N, C, L) is reshaped to (N * L, C) without moving an"
                " axis",
                "error if they are not",
                "the same functions, applied to the numbers of the units; exact",
            ),
            (
                "targets or outputs that the loss is not defined for. Binary cross-entropies: targets outside [0, "
                "1], or of the two values 0 and one below 0.1. "
                "`cross_entropy` and `kl_div`: target probabilities that are negative or do not sum to 1. Hinge and "
                "margin losses: targets other than -1 and 1. Poisson: targets below 0. "
                "`nll_loss`, `kl_div` and `ctc_loss`: log-probabilities whose exponentials do not sum to 1. "
                "`ctc_loss`: targets longer than the outputs. Gaussian: variances at their floor. Any loss: negated,"
                " or below 0 and without a lower bound",
                "error for any; warning where the loss still has a minimum and a short run trains",
                "definition of each loss",
            ),
            (
                "whether the loss falls without end when one parameter tensor moves along its negative gradient, by "
                f"{LENGTHS[0]:g} to {LENGTHS[-1]:g} an entry. It is tried again after a short run that brings the "
                "loss below zero. "
                "It is not tried for sums of standard losses, for losses that another optimizer trains against, or "
                "where the value is not what is minimized (policy gradients, contrastive divergence)",
                f"error if the fall is {FASTER:g} times as long for each tenfold length, down to {FAR:g} times the "
                "first loss below zero",
                "a bounded loss cannot; a log-density rises where what it models is missed",
            ),
            (
                "for `cross_entropy` and `nll_loss` with weights of classes that rise with their counts: of two "
                "classes in a batch, one with 4 times as many samples as the other, the weight of the frequent one, "
                "divided by the other's. The same for a `pos_weight` that makes the frequent labels count more",
                "warning at 4; error where no short run trains",
                "judgement: weights that are meant to balance fall with the counts",
            ),
            (
                f"a squared or absolute error on one-hot targets, or on the numbers of 3 to {FEW_CLASSES} classes",
                "warning for any; note where the targets are stored as floats, since counts and ratings look the same",
                "judgement",
            ),
        ),
        fix="batches = [(x, y / 255) for x, y in batches]",
        command="change the targets or the loss where your script makes them.",
        ill="""
            model, loss = nn.Linear(8, 1), "bce"
            batches = [(inputs, 255 * (inputs.sum(1, keepdim=True) > 0).float())]
        """,
        healthy="""
            model, loss = nn.Linear(8, 1), "bce"
            batches = [(inputs, (inputs.sum(1, keepdim=True) > 0).float())]
        """,
        ignore="You can ignore a squared error on whole numbers that are counts or ratings, and a squared error "
        "on classes (the Brier score) that trains well enough.",
    ),
)
