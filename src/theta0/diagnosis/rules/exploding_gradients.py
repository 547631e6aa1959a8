"""Gradients that grow on their way from the loss to the first layers."""

import math
from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.chain import Link
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes, graded

ERROR, WARNING = 1e5, 1e3  # over the last layer's
_SELF_LIMITING = (
    "Normalization follows each of these layers: a step that is too long makes their weights longer and the steps "
    "after it shorter, so that training often settles after some steps. Warm the rate up, or use Adam."
)


def judge(evidence: Evidence) -> Finding | None:
    """The norm of the gradient at a layer over that at the last one, or at the outputs where that is larger.

    The last layer may end a residual branch that starts at nearly zero: of such a one all that lies in no branch has
    more. Behind weights whose output is normalized next, the norm of the gradient grows as preactivations get small,
    which changes nothing: of these the gradient of the weights over their norm has to have grown as well.
    """
    known = [link for link in evidence.calls if link.backward and math.isfinite(link.backward)]
    if len(known) < 2:
        return None
    last = max(known[-1].backward or 0.0, evidence.network.get("output_gradient_norm", 0.0)) or 1.0
    free = evidence.inspection.normalized
    growth = [(_growth(link, known[-1], last, link.layer in free), link) for link in reversed(known)]
    grown = [link for factor, link in growth if factor > WARNING]
    if not grown:
        return None
    ratio = max(factor for factor, _ in growth)
    severity, threshold = graded(ratio > ERROR, ERROR, WARNING)
    limited = severity == "warning" and all(link.layer in free for link in grown)
    return Finding(
        code="exploding-gradients",
        severity="note" if limited else severity,
        layer=grown[0].layer,
        value=ratio,
        quantity="growth",
        threshold=threshold,
        message=(
            f"Going backward, the gradient grows to {ratio:.1e} times its norm at the last layer, past "
            f"{WARNING:g} at {grown[0].layer!r}: a rate that suits the last layers is too high for the first. "
            + (_SELF_LIMITING if limited else "Rescale the weights so that every layer's output has unit variance.")
        ),
        remedy="" if limited else "theta0 treat TARGET --with unit-variance --out start.safetensors",
        source=MEASURED,
        layers=tuple(link.layer for link in grown),
    )


def _growth(link: Link, end: Link, last: float, normalized: bool) -> float:
    growth = (link.backward or 0.0) / last
    own, others = (of.numbers.get("relative_gradient", 0.0) for of in (link, end))
    return min(growth, own / others) if normalized and own and others else growth


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """A cause weighs as much as what follows from it: a rate that suits the last layers makes the first ones jump."""
    severe = "learning-rate-too-high" in error_codes(others)
    return replace(finding, severity="error") if severe else finding


RULE = Rule(
    code="exploding-gradients",
    judge=judge,
    quantities=("gradient_variance",),
    # After vanishing gradients, which are judged before it.
    place=Place.BACKWARD,
    brings=frozenset({"learning-rate-too-high"}),
    revise=revise,
    remedies=("branch-scale", "recurrent", "unit-variance"),
    refutable=True,
    doc=RuleDoc(
        meaning="The first layers receive gradients that are orders of magnitude larger than those of the last "
        "layer. A learning rate that suits the last layers is far too high for the first ones.",
        why="In the backward pass, each layer multiplies the gradient by its weights. The gradient grows where "
        "they are too large for the layer's fan-out (its number of outputs), or where the spectral radius "
        "of a recurrent layer is above one.",
        numbers=(
            (
                "the norm of the gradient at a layer's preactivations, divided by that at the last layer or at the "
                "outputs, whichever is larger",
                f"error above {ERROR:,.0f}, or where it makes a learning rate too high; warning above {WARNING:,.0f}",
                "measured",
            ),
            (
                "the same, where a normalization follows each of these layers before any other weight, and the norm "
                "of the weights' gradient has grown as much relative to the weights",
                f"note above {WARNING:,.0f}",
                "Arora, Li & Lyu (2019): such weights limit their own steps",
            ),
        ),
        fix="""
            from theta0.initializers import unit_variance_

            unit_variance_(model, batches)
        """,
        command="`theta0 treat TARGET --with unit-variance --out start.safetensors`",
        ill="""
            model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 3))
            for layer in model[:-1]:
                nn.init.orthogonal_(layer.weight, gain=20)
        """,
        healthy="""
            model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(6)), nn.Linear(8, 3))
            for layer in model[:-1]:
                nn.init.orthogonal_(layer.weight)
        """,
        ignore="You can ignore a warning where you clip gradients, or train with an optimizer that divides "
        "gradients by their size, such as Adam.",
        measured="""
            | gradient norm, largest over last layer | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 100 | 144 | 62 | 70 |
            | 100 to 1e5 | 6 | 0 | 6 |
            | 1e5 and more | 4 | 0 | 4 |
        """,
    ),
)
