"""Preactivations, recurrent states or a residual stream that grow by orders of magnitude."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import replace

from theta0.diagnosis.chain import Link
from theta0.diagnosis.consequences import SCALE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.residual import BRANCH_SCALE, behind_first_branch, growth
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes, graded
from theta0.diagnosis.rules import initial_loss, saturated_units
from theta0.measurements.residual_stream import ResidualStream

ERROR, WARNING = 1e3, 1e2  # over the first layer, or the first time step
STREAM = 10.0  # and twice the √L to which L branches add up that are as large as the stream was at first
_SHARE = 0.5  # of the growth, in decades, that a stream must make to explain it

_BY_STREAM = "Hanin & Rolnick (2018), section 3; threshold measured, see theta0 help"


def judge(evidence: Evidence) -> Finding | None:
    """Growth over time steps; else over layers, which a residual stream may explain, or over the stream alone."""
    grown = _over_steps(evidence.links)
    return grown if grown is not None else _explained(_over_layers(evidence.links), evidence)


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """A cause weighs as much as what follows from it; growth that a normalization undoes is a note."""
    if error_codes(others) & {"learning-rate-too-high", "initial-loss"}:
        return replace(finding, severity="error")
    fails = evidence.probe is not None and evidence.probe.fails
    undone = finding.threshold == WARNING and set(finding.layers) <= evidence.inspection.normalized
    if fails or not undone or finding.severity != "warning":
        return finding
    said = (
        " A normalization takes these outputs in before any other weight does, so that nothing behind it is too large."
    )
    return replace(finding, severity="note", message=finding.message + said)


def place(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> tuple[Place, str]:
    """Where it begins; a stream whose growth shows only in what it makes, before the first such finding."""
    symptoms = _symptoms(others, evidence) if finding.threshold == STREAM else []
    layers = [link.layer for link in evidence.links]
    first = min(symptoms, key=lambda f: layers.index(f.layer) if f.layer in layers else len(layers), default=finding)
    return Place.FORWARD, first.layer


def _over_steps(links: list[Link]) -> Finding | None:
    """A recurrent layer's states grow from step to step."""
    grown = [link for link in links if link.numbers.get("step_growth", 0.0) > WARNING]
    if not grown:
        return None
    worst = max(grown, key=lambda link: link.numbers["step_growth"])
    ratio, steps = worst.numbers["step_growth"], int(worst.numbers["steps"])
    severity, threshold = graded(ratio > ERROR, ERROR, WARNING)
    return Finding(
        code="exploding-activations",
        severity=severity,
        layer=worst.layer,
        value=ratio,
        quantity="growth over steps",
        threshold=threshold,
        message=(
            f"The states of {worst.layer!r} grow {ratio:.1e} times over its {steps} time steps, a factor of "
            f"{ratio ** (1 / max(1, steps - 1)):.2f} a step. "
            "Draw its recurrent weights orthogonal, so that their spectral radius is one."
        ),
        remedy=f"torch.nn.init.orthogonal_(model.get_submodule({worst.layer!r}).weight_hh_l0)",
        source=f"Pascanu et al. (2013), section 2.1; threshold {MEASURED}",
        layers=tuple(link.layer for link in grown),
    )


def _over_layers(links: list[Link]) -> Finding | None:
    """Preactivations grow from layer to layer."""
    loud = [link for link in links if link.rms > 0 and not link.numbers.get("lookup")]
    if len(loud) < 2:
        return None
    start = loud[0].rms
    grown = [link for link in loud if link.rms > WARNING * max(start, 1.0)]
    if not grown:
        return None
    worst = max(grown, key=lambda link: link.rms)
    severity, threshold = graded(worst.rms > ERROR * max(start, 1.0), ERROR, WARNING)
    return Finding(
        code="exploding-activations",
        severity=severity,
        layer=grown[0].layer,
        value=worst.rms / start,
        quantity="growth",
        threshold=threshold,
        message=(
            f"Preactivations grow from {start:.2g} at the first layer to {worst.rms:.2g} at {worst.layer!r}, past "
            f"{WARNING:g} times at {grown[0].layer!r}. "
            "Rescale the weights so that every layer's output has unit variance."
        ),
        remedy="theta0 treat TARGET --with unit-variance --out start.safetensors",
        source=MEASURED,
        layers=tuple(link.layer for link in grown),
    )


def _explained(exploding: Finding | None, evidence: Evidence) -> Finding | None:
    """The growth of the residual stream, where that makes what is too large; else the finding as it is."""
    # Where each of L branches adds as much variance as the stream has, the stream grows by 2^(L/2): what then is too
    # large is not the last layer, nor any single one, but the branches, and they need a factor of 1/√L.
    symptoms = [f for f in (saturated_units.judge(evidence), initial_loss.judge(evidence)) if f is not None]
    if exploding is None and not symptoms:
        return None
    stream = evidence.residual_stream
    ratio, enough = growth(stream), STREAM if exploding is None else exploding.value**_SHARE
    if not ratio >= max(enough, 2 * math.sqrt(len(stream.sums))):
        return exploding
    if exploding is None:
        symptoms = _symptoms(symptoms, evidence)
        return _of_stream(stream, ratio, symptoms) if symptoms else None
    return replace(exploding, message=_message(stream, ratio), remedy=BRANCH_SCALE, source=_BY_STREAM)


def _symptoms(findings: Iterable[Finding], evidence: Evidence) -> list[Finding]:
    codes, behind = ("saturated-units", "initial-loss"), behind_first_branch(evidence)
    return [finding for finding in findings if finding.code in codes and finding.layer in behind]


def _of_stream(stream: ResidualStream, ratio: float, symptoms: Sequence[Finding]) -> Finding:
    """The cause of what is too large at the end, as severe as that is."""
    grown = [added.layer for added in stream.sums if added.rms > STREAM * stream.sums[0].rms]
    return Finding(
        code="exploding-activations",
        severity="error" if error_codes(symptoms) else "warning",
        layer=grown[0],
        value=ratio,
        quantity="growth of the stream",
        threshold=STREAM,
        message=_message(stream, ratio),
        remedy=BRANCH_SCALE,
        source=_BY_STREAM,
        layers=tuple(dict.fromkeys(grown)),
    )


def _message(stream: ResidualStream, ratio: float) -> str:
    sizes = [added.rms for added in stream.sums]
    steps = max(1, sizes.index(max(size for size in sizes if math.isfinite(size))))
    return (
        f"The residual stream grows by a factor of {ratio ** (1 / steps):.2f} a branch, from {sizes[0]:.2g} after the "
        f"first of {len(sizes)} to {sizes[0] * ratio:.2g}: what a branch adds grows with what it is given. "
        f"Multiply the end of every branch by 1/√{len(stream.endings)}, or start it at zero."
    )


RULE = Rule(
    code="exploding-activations",
    judge=judge,
    quantities=("preactivation_variance",),
    place=place,
    brings=SCALE - {"exploding-activations"},
    remedies=("branch-scale", "branch-zero", "recurrent", "gain-guard", "type-defaults", "unit-variance"),
    revise=revise,
    refutable=True,
    doc=RuleDoc(
        meaning="Signals grow from layer to layer, from time step to time step, or from residual branch to "
        "residual branch. The first loss is huge, nonlinearities saturate, and in the end numbers "
        "overflow.",
        why="Each layer multiplies the signal by a factor above one, because its weights are too large for its "
        "fan-in (its number of inputs). In a residual network each branch adds a signal as large as its "
        "input; L branches then multiply its size by 2^(L/2).",
        numbers=(
            (
                "the largest root mean square of a layer's preactivations, divided by that of the first layer or by "
                "1, whichever is larger",
                f"error above {ERROR:,.0f}; warning above {WARNING:g}",
                "measured",
            ),
            (
                "the same, where a normalization follows each of these layers before any other weight",
                f"error above {ERROR:,.0f}; note above {WARNING:g}, unless short runs do not train",
                "what is normalized next has no size; judgement",
            ),
            (
                "of a recurrent layer: the largest root mean square of its states, divided by that at the first time"
                " step",
                f"error above {ERROR:,.0f}; warning above {WARNING:g}",
                "Pascanu et al. (2013), section 2.1; judgement",
            ),
            (
                "of a residual stream of L branches, where the first loss is too large or units behind the first "
                "branch are saturated: the largest root mean square of the stream, divided by the first",
                f"above {STREAM:g} and above 2√L, as severe as what follows from it",
                "branches as large as the stream at first add up to √L: Hanin & Rolnick (2018), section 3; "
                f"{STREAM:g}: judgement",
            ),
        ),
        fix="""
            from theta0.initializers import unit_variance_

            unit_variance_(model, batches)
        """,
        command="`theta0 treat TARGET --with unit-variance --out start.safetensors`; residual networks: "
        "`--with branch-scale`; recurrent ones: `--with recurrent`.",
        ill="""
            model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)), nn.Linear(8, 3))
            for layer in model[:-1]:
                nn.init.orthogonal_(layer.weight, gain=20)
        """,
        healthy="""
            model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(5)), nn.Linear(8, 3))
            for layer in model[:-1]:
                nn.init.orthogonal_(layer.weight)
        """,
        ignore="You can ignore it where a normalization layer behind the listed layers undoes the growth, and "
        "nothing else is reported.",
        measured="""
            | root mean square, largest over first layer | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 100 | 150 | 62 | 76 |
            | 100 and more | 4 | 0 | 4 |

            Where the growth of a residual stream makes at least half of the growth, in decades, the message gives its
            factor per branch and the remedy is branch scaling.
        """,
    ),
)
