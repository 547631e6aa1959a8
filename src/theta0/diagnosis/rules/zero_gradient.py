"""Parameters whose gradient is exactly zero, and still is after probe steps."""

from collections.abc import Sequence

from theta0.diagnosis.consequences import SILENCE
from theta0.diagnosis.evidence import PROBE_STEPS, Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded, listed


def judge(evidence: Evidence) -> Finding | None:
    """One finding for all of them, weights that are zero themselves first."""
    factors = _zero_factors(evidence)
    stuck = factors + [name for name in evidence.stuck if name not in factors]
    if not stuck:
        return None
    severity, threshold = graded(2 * len(stuck) >= len(evidence.trained), 0.0, 0.0)
    return Finding(
        code="zero-gradient",
        severity=severity,
        layer=stuck[0],
        value=0.0,
        threshold=threshold,
        message=(
            f"The gradient of {listed(stuck)} is exactly zero, and still is after {PROBE_STEPS} probe steps on a copy: "
            "nothing there can learn. Look for two zero factors in a product, or a unit that is off on every sample, "
            "and start one of them at random; of a recurrent weight, at a loss that reads only the first step."
        ),
        remedy=f"torch.nn.init.normal_(model.get_parameter({stuck[0]!r}), std=0.02)",
        source="a gradient that is zero by design at step 0 is not zero after a step",
        layers=tuple(stuck),
    )


def place(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> tuple[Place, str]:
    """A gradient that is zero because a factor is comes before what is silent because of it, else after."""
    return (Place.ZERO_WEIGHTS if _zero_factors(evidence) else Place.ZERO_GRADIENTS), ""


def _zero_factors(evidence: Evidence) -> list[str]:
    """Of those, the weights that are zero themselves."""
    return [name for name in evidence.stuck if evidence.table[name]["value_rms"] == 0 and not name.endswith("bias")]


RULE = Rule(
    code="zero-gradient",
    judge=judge,
    place=place,
    brings=SILENCE - {"zero-gradient"},
    remedies=("wake", "unit-variance"),
    doc=RuleDoc(
        meaning="These parameters never change: their gradient is exactly zero now and remains so after steps of "
        "training.",
        why="Both factors of a product start at zero, so each one's gradient, which is a multiple of the other, is "
        "zero; or what the parameter feeds is off on every sample. One zero factor alone, as in a residual branch that "
        "starts at zero, is no fault: it moves in the first step.",
        numbers=(
            (
                f"parameters whose gradient is exactly zero, and still is after {PROBE_STEPS} steps on a copy",
                "0: error where they are half of the trained parameters or more, else warning",
                "a zero by design does not last; it comes first where such a weight itself is zero",
            ),
        ),
        fix="nn.init.normal_(model[0].weight, std=0.02)",
        command="`theta0 treat TARGET --with wake`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 3, bias=False))
            nn.init.zeros_(model[0].weight)
            nn.init.zeros_(model[1].weight)
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 3, bias=False))
            nn.init.zeros_(model[1].weight)
        """,
        ignore="Where the parameter is used only by inputs that these batches lack.",
        measured="The severity was loosened after false alarms on particular networks that train; it is fitted to "
        "those.",
    ),
)
