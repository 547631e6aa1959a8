"""A last operation that confines the outputs to where the loss cannot become small."""

import math
from collections.abc import Sequence

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.measurements.attainable_loss import AttainableLoss

GAP = 0.1  # of the best constant predictor's loss
_LOSS_NAMES = {
    "cross_entropy": "cross-entropy, which takes logits,",
    "bce": "binary cross-entropy with logits",
    "nll": "nll_loss, which takes log-probabilities,",
    "difference": "the error against these targets",
}


def judge(evidence: Evidence) -> Finding | None:
    """The least loss within the outputs' interval; of several loss terms the one that is farthest from its minimum."""
    ill = _confined(evidence)
    if not ill:
        return _by_free_outputs(evidence)
    worst = max(ill, key=lambda found: found.gap if math.isfinite(found.gap) else 0.0)
    severe = worst.gap > GAP and not (worst.interval.cosine or worst.interval.length) and worst.kind != "nll"
    low = worst.interval.low
    gap = worst.gap if math.isfinite(worst.gap) else worst.interval.high
    reached = worst.gap <= GAP  # the loss can be reached: what is wrong is where the interval begins
    return Finding(
        code="squashed-output",
        severity="error" if severe else "warning",
        layer=worst.interval.layer,
        value=low if reached else gap,
        quantity="least value" if reached else "",
        threshold=low if reached else GAP,
        message=_message(worst),
        remedy=_remedy(worst),
        source="the least loss within the interval, in closed form; threshold: judgement",
    )


def _confined(evidence: Evidence) -> list[AttainableLoss]:
    found = [r for r in evidence.inspection.reaches if not _at_a_temperature(r)]
    return [r for r in found if r.gap > GAP or _rectified_logits(r) or _probabilities(r)]


def _at_a_temperature(found: AttainableLoss) -> bool:
    """Cosines between samples of a batch at a temperature below 1: what is learnt is an order, whatever the loss."""
    return found.pairs and found.interval.cosine and found.interval.high > 1 + 1e-6


def _by_free_outputs(evidence: Evidence) -> Finding | None:
    """Of any other loss: how low it gets with free outputs, and with outputs in the interval of the last operation."""
    found = evidence.free_outputs
    if found is None or found.interval is None or not found.gap > GAP or found.constant is None:
        return None
    reached = AttainableLoss("", found.interval, found.confined or 0.0, found.least or 0.0, found.constant)
    return Finding(
        code="squashed-output",
        severity="warning" if found.interval.cosine or found.interval.length else "error",
        layer=found.interval.layer,
        value=found.gap,
        threshold=GAP,
        message=_message(reached),
        remedy=_remedy(reached),
        source="the least loss with free outputs and within the interval, by L-BFGS; threshold: judgement",
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """Withdrawn where the only confined term is an `nll_loss` of probabilities and loss-mismatch names it."""
    return None if _only_probabilities(evidence) and any(o.code == "loss-mismatch" for o in others) else finding


def _only_probabilities(evidence: Evidence) -> bool:
    ill = _confined(evidence)
    return bool(ill) and all(_probabilities(found) for found in ill)


def _rectified_logits(found: AttainableLoss) -> bool:
    """The loss could be reached, but a logit that the operation sets to zero has no gradient."""
    return found.kind == "cross_entropy" and found.interval.by == "relu" and found.interval.low == 0


def _probabilities(found: AttainableLoss) -> bool:
    return found.kind == "nll" and found.interval.low >= 0


def _message(found: AttainableLoss) -> str:
    interval = found.interval
    where = f"between {interval.low:.3g} and {interval.high:.3g}"
    where = f"at {interval.low:.3g} or more" if interval.high == math.inf else where
    where = f"at {interval.high:.3g} or less" if interval.low == -math.inf else where
    start = f"The loss's input lies {where}, whatever is learned (last operation: {interval.by}): "
    if _probabilities(found):
        return start + "nll_loss takes log-probabilities. Use log_softmax instead."
    if found.gap <= GAP:
        return start + "a logit that it sets to zero has no gradient. Remove that operation before the cross-entropy."
    start += (
        f"{_LOSS_NAMES.get(found.kind, 'this loss')} cannot fall below {found.best:.3g}, and the best constant output "
        f"has {found.scale:.3g}. "
    )
    if interval.cosine or interval.length:
        return start + "Multiply the inner products by a larger scale (1/0.07 is usual)."
    if not found.kind:
        return start + f"With free outputs it reaches {found.floor:.3g}. Leave out {interval.by}."
    if found.kind == "difference":
        return start + f"Leave out {interval.by}, or scale the targets into its range."
    return start + f"Leave out {interval.by}: the loss applies its own."


def _remedy(found: AttainableLoss) -> str:
    if found.interval.cosine or found.interval.length:
        return "logits = logits / 0.07"
    if found.kind == "difference":
        return f"# remove {found.interval.by} after the last layer, or rescale the targets into its range"
    return f"# remove {found.interval.by} after the last layer"


RULE = Rule(
    code="squashed-output",
    judge=judge,
    place=Place.OUTPUT,
    fault="the output and the loss",
    revise=revise,
    doc=RuleDoc(
        meaning="The loss cannot become small, because the last operation keeps the outputs away from the values "
        "that would minimize it.",
        why="A softmax or a sigmoid is applied before a loss that applies it too, or a tanh or ReLU before "
        "targets outside its range. Inner products of unit vectors lie between -1 and 1 and need a scale.",
        numbers=(
            (
                "how much the last operation (softmax, sigmoid, tanh, ReLU, clamp, inner products of unit vectors, "
                "and others) raises the lowest loss that the outputs can reach, divided by the loss of the best "
                "constant output",
                f"error at {GAP:g}; warning for probabilities given to `nll_loss`, for logits behind a ReLU, and for "
                "unit vectors (between samples of a batch only where nothing multiplies their products)",
                "closed form; judgement",
            ),
        ),
        fix="model = model[:-1]",
        command="remove the operation that the report names from the model.",
        ill="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3), nn.Softmax(1))",
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore it where the loss does not have to become small, for example where the targets are "
        "so noisy that nothing better is possible.",
    ),
)
