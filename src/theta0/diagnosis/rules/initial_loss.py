"""A first loss far above that of the best predictor that ignores its input."""

import math
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

from theta0._losses import name_of
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.residual import with_branch_scale
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes, graded

ERROR, WARNING = 10.0, 3.0  # of cross-entropies
LEAP = 5.0  # from one layer to the next
UNDONE = 0.5  # of the way to what shows learning, in a short run: the first steps soon undo it
REGRESSION_ERROR, REGRESSION_WARNING = 1e3, 1e2  # the best constant may be nearly right already


def judge(evidence: Evidence) -> Finding | None:
    """The first loss over that of the best constant output."""
    whole = evidence.network
    loss, constant = whole.get("loss", math.nan), whole.get("loss_constant", math.nan)
    regression = name_of(evidence.loss) in ("mse", "l1")
    error, warning = (REGRESSION_ERROR, REGRESSION_WARNING) if regression else (ERROR, WARNING)
    if regression and warning * constant >= loss > ERROR * constant > 0 and _stays(evidence):
        warning = ERROR
    if not (math.isfinite(loss) and constant > 0 and loss > warning * constant):
        return None
    # Where one class is rare the constant's loss goes to zero, while a fair start gives every class its chance.
    constant = max(constant, whole.get("loss_uniform", 0.0))
    ratio = loss / constant
    if ratio <= warning:
        return None
    severity, threshold = graded(ratio > error, error, warning)
    return Finding(
        code="initial-loss",
        severity=severity,
        layer=_leap(evidence),
        value=ratio,
        threshold=threshold,
        message=(
            f"The first loss is {loss:.3g}, {ratio:.3g} times that of the best output that ignores the input "
            f"({constant:.3g}): training starts by unlearning. Make the outputs smaller, or for regression standardize "
            "the targets or start the last bias at their mean."
        ),
        remedy="theta0 treat TARGET --with unit-variance --out start.safetensors",
        source=MEASURED,
    )


def _stays(evidence: Evidence) -> bool:
    """Whether no short run trains, and the one at the given rate, or the best, is still far from it."""
    probe = evidence.probe
    if probe is None or not evidence.nothing_trains:
        return False
    run = probe.at(evidence.rate) or probe.at(probe.best)
    return run is None or not probe.way(run) > UNDONE


def _leap(evidence: Evidence) -> str:
    """The layer that puts out most over the one before, the data or 1; "" where none makes the leap."""
    loud = [link for link in evidence.links if link.rms > 0]
    data = {found.layer: found.rms for found in evidence.inspection.inputs}
    leaps = [(b.rms / max(data[b.layer], 1.0), b.layer) for b in loud[:1] if b.layer in data]
    leaps += [(b.rms / max(a.rms, 1.0), b.layer) for a, b in pairwise(loud)]
    size, layer = max(leaps, default=(0.0, ""))
    return layer if size > LEAP else ""


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """As severe as a learning rate that it makes too high, and answered as what it follows from."""
    severe = "learning-rate-too-high" in error_codes(others)
    finding = with_branch_scale(finding, others, evidence)
    return replace(finding, severity="error") if severe else finding


RULE = Rule(
    code="initial-loss",
    judge=judge,
    place=Place.FORWARD,
    brings=frozenset({"degenerate-softmax", "learning-rate-too-high", "exploding-gradients"}),
    remedies=("tied-scale", "head-scale", "branch-scale", "gain-guard", "type-defaults"),
    revise=revise,
    refutable=True,
    doc=RuleDoc(
        meaning="Before training, the network is confidently wrong. The first steps are large and only undo this, "
        "and what they do to the weights meanwhile may not be undone.",
        why="The outputs are too large: because of large weights in the last layer, an embedding that is also "
        "used as the output weight, or signals that have grown. In a regression, targets far from zero "
        "have the same effect.",
        numbers=(
            (
                "for cross-entropies: the first loss, divided by the loss of the best predictor that ignores its "
                "input (or of equal probabilities, where that is larger)",
                f"error above {ERROR:g}; warning above {WARNING:g}",
                "judgement: healthy classifiers start below 3",
            ),
            (
                "for squared and absolute errors: the same ratio",
                f"error above {REGRESSION_ERROR:,.0f}; warning above {REGRESSION_WARNING:g}, or above {ERROR:g} where"
                f" no short run trains, nor one at the rate given goes {UNDONE:.0%} of the way there",
                "judgement: regressors whose targets vary little start at 60 and train",
            ),
        ),
        fix="nn.init.zeros_(model[-1].weight)",
        command="`theta0 treat TARGET --with head-scale --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            nn.init.normal_(model[-1].weight, std=100)
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="You can ignore it where a pretrained network is trained on new targets with a warm-up.",
        measured="The thresholds were loosened after false alarms on particular networks that train; they are fitted "
        "to those.",
    ),
)
