"""Parameters whose gradient is exactly zero, and still is after probe steps; a gradient that is rounding."""

from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.consequences import SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, graded, listed
from theta0.measurements.gradient_paths import Cut
from theta0.measurements.zero_gradients import STEPS

ROUNDING = 0.3  # of a gradient: by how much other last digits of the data change it


def judge(evidence: Evidence) -> Finding | None:
    """The whole gradient, where its terms cancel; else what of it is exactly zero."""
    return _cancelled(evidence) or _exactly_zero(evidence)


def _cancelled(evidence: Evidence) -> Finding | None:
    found = evidence.cancelled_gradient
    if found is None or found.change < ROUNDING:
        return None
    alone, place = _along_one(evidence), evidence.single_axis or found.operation
    said = alone or (
        " A mean or a sum that is taken before the product, of numbers that were standardized to sum to zero, does "
        "this: multiply sample by sample, and take the mean after."
    )
    if not alone and place is not None:
        said = f" What cancels is `{place.name}`, which is zero to rounding.{said}"
    return Finding(
        code="zero-gradient",
        severity="error",
        layer="",
        value=found.change,
        threshold=ROUNDING,
        message=(
            "The gradient is rounding error: with the numbers of the batch changed in their last digits alone, "
            f"{min(1.0, found.change):.0%} of it changes. Its terms cancel, so nothing is learned from the data, at "
            f"any learning rate.{said}"
        ),
        remedy="",
        source="a gradient that the data determine changes by as little as these; threshold: judgement",
        source_line="" if place is None else place.line,
    )


def _along_one(evidence: Evidence) -> str:
    found = evidence.single_axis
    if found is None:
        return ""
    return (
        f" `{found.name}` runs along an axis of length one, where each number stands alone: give it the axis of what "
        "is to be taken together."
    )


def _exactly_zero(evidence: Evidence) -> Finding | None:
    """One finding for all of them, weights that are zero themselves first; those behind a cut are another finding."""
    cut = (
        set() if evidence.paths is None else {n for c in evidence.paths.cuts if c.kind != "zero" for n in c.parameters}
    )
    factors = [name for name in _zero_factors(evidence) if name not in cut]
    stuck = factors + [name for name in evidence.stuck if name not in factors and name not in cut]
    if not stuck:
        return None
    severity, threshold = graded(2 * len(stuck) >= len(evidence.trained), 0.0, 0.0)
    found = _ends(evidence, stuck)
    where = (
        "" if found is None else f" A gradient that is not zero arrives at {found.operation}, and none is passed on."
    )
    gate = found is not None and found.operation.name in _GATES
    share = found is not None and found.operation.name in _SHARES
    advice = _ADVICE["factor" if factors else "gate" if gate else "share" if share else ""]
    whole = len(stuck) == len(evidence.trained) and not factors and found is None
    alone, one = (_along_one(evidence), evidence.single_axis) if whole else ("", None)
    place = one if found is None else found.operation
    return Finding(
        code="zero-gradient",
        severity=severity,
        layer=stuck[0],
        value=0.0,
        threshold=threshold,
        message=(
            f"The gradient of {listed(stuck)} is exactly zero, and still is after {STEPS} probe steps on a copy: "
            f"nothing there can learn.{where}{alone or f' {advice}'}"
        ),
        remedy=f"torch.nn.init.normal_(model.get_parameter({stuck[0]!r}), std=0.02)" if factors else "",
        source="a gradient that is zero by design at step 0 is not zero after a step",
        layers=tuple(stuck),
        source_line="" if place is None else place.line,
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """A note, where nothing but these samples keeps a part off: an expert or a branch that none of them takes.

    A factor that is zero and a rectifier that is off stay so, and a softmax passes a gradient on unless it runs over
    one entry; everything else is a fault only of a network that short runs do not train.
    """
    if not finding.layers:
        return finding
    found = _ends(evidence, finding.layers)
    shut = _GATES - {"where"} | _SHARES
    closed = bool(_zero_factors(evidence)) or (found is not None and found.operation.name in shut)
    if finding.severity != "warning" or closed or (evidence.probe is not None and evidence.probe.fails):
        return finding
    words = "nothing there learns from these batches. Where none of their samples is meant to take part there, that is "
    words += "as it should be."
    return replace(finding, severity="note", message=finding.message.replace("nothing there can learn.", words))


_GATES = frozenset(("relu", "relu6", "clamp", "clamp_min", "clip", "hardtanh", "threshold", "hardsigmoid", "where"))
_SHARES = frozenset(("softmax", "log_softmax", "softmin", "normalize"))
_ADVICE = {
    "factor": "Both factors of a product are zero: start one of them at random.",
    "gate": "It is inactive on every sample: look at the scale and the mean of what goes into it.",
    "share": "It runs over one entry, of which the share is always 1, or is saturated: see which axis it takes, and "
    "what is left of it there.",
    "": "Look for a factor that is zero on every sample, an inactive unit, an index that picks one entry only, or, "
    "of a recurrent weight, a loss that reads only the first step.",
}


def _ends(evidence: Evidence, stuck: Sequence[str]) -> Cut | None:
    """Where the gradient of the first of them, or of most, becomes zero."""
    cuts = [] if evidence.paths is None else [c for c in evidence.paths.cuts if c.kind == "zero" and c.term is None]
    return next((cut for cut in cuts if stuck[0] in cut.parameters), cuts[0] if cuts else None)


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
    revise=revise,
    brings=(SILENCE - {"zero-gradient"}) | {"learning-rate-too-low"},
    remedies=("wake", "unit-variance"),
    doc=RuleDoc(
        meaning="The gradient of these parameters is exactly zero, and it is still zero after some steps of "
        "training. They never change. Or the terms of the whole gradient cancel, and what is left is rounding error.",
        why="Both factors of a product are initialized to zero, and the gradient of each is a multiple of the "
        "other; or the units that use the parameter are inactive on every sample. One factor of zero "
        "alone, as in a residual branch that is initialized to zero, is no problem: it changes in the "
        "first step. The terms of a whole gradient cancel where a mean is multiplied by numbers that sum to zero, "
        "as standardized returns do: multiply each sample's own term and take the mean after that, "
        "`(log_prob * returns).mean()` and not `log_prob.mean() * returns`.",
        numbers=(
            (
                f"parameters whose gradient is exactly zero, and still is after {STEPS} steps on a copy",
                "error if they are half of the trained parameters or more; warning if a weight that is itself zero "
                "or an inactive rectifier is the reason, or if short runs do not train; else note",
                "a gradient that is zero by design is not zero after a step",
            ),
            (
                "the share of a small gradient that changes when the batch's numbers change in their last digits",
                f"error at {ROUNDING:g}",
                "a gradient that the data determine changes by about 1e-6 of itself",
            ),
        ),
        fix="nn.init.normal_(model[0].weight, std=0.02)",
        command="`theta0 treat TARGET --with wake --out start.safetensors`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 3, bias=False))
            nn.init.zeros_(model[0].weight)
            nn.init.zeros_(model[1].weight)
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16, bias=False), nn.Linear(16, 3, bias=False))
            nn.init.zeros_(model[1].weight)
        """,
        ignore="You can ignore a note where the parameter is used only by inputs that do not occur in these batches.",
        measured="The severity was made milder after false alarms on some networks that do train, so it may fit those "
        "better than yours.",
    ),
)
