"""Batch normalization out of training mode whose running statistics are not those of its input."""

from collections.abc import Sequence

from theta0.diagnosis.consequences import SCALE, SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.measurements.inspection import BatchNormCall

FRESH, STALE = 10.0, 100.0  # of variances, either way: statistics never taken, and those of other data
OFFSET = 25.0  # squared distance of the means over the input's own variance: five of its standard deviations


def judge(evidence: Evidence) -> Finding | None:
    """Running statistics that do not fit; a note where statistics that were never taken happen to."""
    frozen = [norm for norm in evidence.inspection.norms if not norm.training and norm.ratio == norm.ratio]
    fresh = [norm for norm in frozen if norm.fresh]
    severe = [norm for norm in fresh if _off(norm.ratio) > FRESH]
    stale = severe or [norm for norm in frozen if not norm.fresh and _stale(norm)]
    concerned = stale or fresh
    if not concerned:
        return None
    worst = max(concerned, key=_distance)
    shifted = not severe and worst.offset > OFFSET and _off(worst.ratio) <= STALE
    return Finding(
        code="frozen-batch-norm",
        severity="error" if severe else "warning" if stale else "note",
        layer=concerned[0].layer,
        value=worst.offset if shifted else worst.ratio,
        threshold=FRESH if worst.fresh else OFFSET if shifted else STALE,
        message=_message(concerned, worst, shifted),
        remedy="model.train()",
        source=f"Ioffe & Szegedy (2015), algorithm 2; threshold {MEASURED}",
        layers=tuple(norm.layer for norm in concerned),
    )


def _message(concerned: Sequence[BatchNormCall], worst: BatchNormCall, shifted: bool) -> str:
    state = "still 0 and 1, as at the start" if worst.fresh else "of other data"
    off = (
        f"mean lies {worst.offset**0.5:.1e} of its own standard deviations from what is subtracted"
        if shifted
        else f"variance is {worst.ratio:.1e} times what it divides by"
    )
    return (
        f"Batch normalization {concerned[0].layer!r} ({len(concerned)} such layers) is not in training mode and "
        f"its running statistics are {state}: at {worst.layer!r} its input's {off}, so it normalizes nothing. Call "
        "model.train(), or take the statistics first by forward passes in training mode."
    )


def _stale(norm: BatchNormCall) -> bool:
    return _off(norm.ratio) > STALE or norm.size > STALE or norm.offset > OFFSET


def _distance(norm: BatchNormCall) -> float:
    return max(_off(norm.ratio) / STALE, norm.offset / OFFSET)


def _off(ratio: float) -> float:
    return max(ratio, 1 / ratio) if ratio > 0 else float("inf")


def place(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> tuple[Place, str]:
    """Before the scale of the data, where the first normalization of all would take that out."""
    first = finding.severity == "error" and evidence.inspection.norms[0].layer == finding.layer
    return (Place.LOSS if first else Place.NORMALIZATION), ""


RULE = Rule(
    code="frozen-batch-norm",
    judge=judge,
    place=place,
    brings=SCALE | SILENCE | {"input-scale"},
    fault="batch normalization",
    doc=RuleDoc(
        meaning="Batch normalization does not normalize: signals shrink or grow from layer to layer as if it were "
        "not there.",
        why="`model.eval()` was called before training, or batch normalization was frozen in a network that "
        "was never trained, so that its running statistics are still mean 0 and variance 1.",
        numbers=(
            (
                "outside training mode, with running statistics that are still mean 0 and variance 1: the variance "
                "of the input divided by the running variance, or the reverse",
                f"error above {FRESH:g}; note below",
                "judgement",
            ),
            (
                "outside training mode, with running statistics of other data: the same ratio, or the mean square of"
                " the output",
                f"warning above {STALE:g}; error where signals that are too large or too small follow from it",
                "judgement",
            ),
            (
                "outside training mode, with running statistics of other data: the squared distance of the input's "
                "mean from the running mean, divided by the input's variance",
                f"warning above {OFFSET:g}; error where signals that are too large or too small follow from it",
                "judgement",
            ),
        ),
        fix="model.train()",
        command="call `model.train()` before training.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
            model[0].weight.data /= 1000
            model.eval()
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.BatchNorm1d(16), nn.ReLU(), nn.Linear(16, 3))
            model[0].weight.data /= 1000
        """,
        ignore="You can ignore a note where the statistics of a pretrained network are kept on purpose and fit "
        "your data.",
    ),
)
