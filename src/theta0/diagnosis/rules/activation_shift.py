"""Activation shift: what the weights make of a mean that is not zero drowns what differs between samples."""

import math
from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.chain import Link, final_run, without_zero_weights
from theta0.diagnosis.consequences import LARGE, SILENCE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.opening import note_where_it_opens
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes, graded
from theta0.diagnosis.rules.constant_output import SPREAD

ERROR, WARNING = 0.9999, 0.99  # of the preactivations' variance
BY_WEIGHTS = 0.5  # of the variance: from here on the shift is made by the weights, not by the biases
COMMON_WEIGHT, COMMON_OUTPUT = 0.5, 0.8  # |mean| over standard deviation of a weight; mean² over mean square
_FEW, _CERTAIN = 8, 5.0  # entries whose mean tells nothing of how they were drawn; standard errors of one that does
_REMEDY = "theta0 treat TARGET --with lcw --out start.safetensors"
# Of a shift that none of these follow from, training is only slowed down.
_FATAL = frozenset({
    "constant-output", "vanishing-activations", "vanishing-gradients", "exploding-activations", "initial-loss",
    "dead-units",
})  # fmt: skip


def judge(evidence: Evidence) -> Finding | None:
    """Shift between units to the end of the network or, failing that, a number common to all units."""
    links = without_zero_weights(evidence.links, evidence.table)
    return _between_units(links) or _common_number(links, evidence)


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """A warning, where nothing dies of the shift and something else is left of the variance."""
    fatal = error_codes(others) & _FATAL or 1 - finding.value <= SPREAD**2
    return note_where_it_opens(finding if fatal else replace(finding, severity="warning"), others, evidence)


def _between_units(links: list[Link]) -> Finding | None:
    """Shift made by the weights (not by biases) carries nearly all of the preactivations' variance, to the end."""

    def shifted(link: Link) -> bool:
        shares = (link.numbers.get("shift_share", 0.0), link.numbers.get("weight_shift_share", 0.0))
        return shares[0] >= WARNING and shares[1] >= BY_WEIGHTS

    run = final_run(links, shifted)
    if not run:
        return None
    worst, first = max(link.numbers["shift_share"] for link in run), run[0]
    severity, threshold = graded(worst >= ERROR, ERROR, WARNING)
    counted = f"{len(run)} layer" + "s" * (len(run) > 1)
    return Finding(
        code="activation-shift",
        severity=severity,
        layer=first.layer,
        value=worst,
        quantity="shift",
        threshold=threshold,
        message=(
            f"From layer {first.layer!r} on ({counted}), up to {worst:.1%} of the preactivations' variance "
            "lies between the units' means: every sample gets nearly the same vector, because the activations' mean "
            "is not zero. Constrain the weights to zero sums (LCW) and rescale them to unit variance."
        ),
        remedy=_REMEDY,
        source=f"kutsuna2019lcw, Definition 2; threshold {MEASURED}",
        layers=tuple(link.layer for link in run),
    )


def _common_number(links: list[Link], evidence: Evidence) -> Finding | None:
    """Weights of one sign: their mean, which all units share, makes nearly all of what every unit puts out."""
    # Of zero-mean draws the mean is far below the spread, and the units' outputs lie on both sides of zero.

    def leaning(link: Link) -> float:
        name = f"{link.layer.partition('#')[0]}.weight"
        weight = evidence.table.get(name, {})
        entries = evidence.parameters[name].numel() if name in evidence.parameters else 0
        mean, rms = abs(weight.get("value_mean", 0.0)), weight.get("value_rms", 0.0)
        ratio = mean / max((rms**2 - mean**2) ** 0.5, 1e-12) if rms > mean else (math.inf if mean else 0.0)
        return ratio if entries >= _FEW and ratio * entries**0.5 >= _CERTAIN else 0.0

    def shared(link: Link) -> float:
        return link.numbers["preactivation_mean"] ** 2 / link.rms**2 if link.rms > 0 else 0.0

    run = [link for link in links if leaning(link) >= COMMON_WEIGHT and shared(link) >= COMMON_OUTPUT]
    if len(run) < 2:
        return None
    worst, first = max(shared(link) for link in run), next(link for link in links if leaning(link) >= COMMON_WEIGHT)
    return Finding(
        code="activation-shift",
        severity="error",
        layer=first.layer,
        value=worst,
        quantity="common share",
        threshold=COMMON_OUTPUT,
        message=(
            f"The weights from layer {first.layer!r} on have a mean of {leaning(first):.2g} times their spread, which "
            f"all units share: up to {worst:.0%} of the mean square of a layer's output is one common number that "
            "grows with the fan-in. Draw them around zero, or center them (LCW) and rescale them to unit variance."
        ),
        remedy=_REMEDY,
        source=f"kutsuna2019lcw, section 3: the mean of the weights times that of the activations; {MEASURED}",
        layers=tuple(dict.fromkeys([first.layer, *(link.layer for link in run)])),
    )


RULE = Rule(
    code="activation-shift",
    judge=judge,
    quantities=("shift_share",),
    place=Place.FORWARD,
    brings=SILENCE | LARGE,
    remedies=("lcw", "centre", "unit-variance"),
    revise=revise,
    refutable=True,
    doc=RuleDoc(
        meaning="Nearly all of a layer's output is the same for every sample. The part that differs between "
        "samples, and its gradient, get lost from layer to layer.",
        why="The layer's inputs have a mean other than zero, as after a sigmoid or a ReLU. The weights of a "
        "unit do not sum to zero, so this mean adds an offset to the unit's preactivation, and each layer "
        "adds another one. Weights of the same sign do this to all units.",
        numbers=(
            (
                "the share of a layer's preactivation variance that lies between the means of its units, where the "
                "weights cause at least half of it, in all layers from there to the last",
                f"error at {ERROR:g} if the output or the gradient vanishes too, or at 1 - 1e-6 alone; warning at "
                f"{WARNING:g}",
                "kutsuna2019lcw, Definition 2; measured",
            ),
            (
                "the share of a layer's mean square output that is one number, the same for all units, in two layers"
                f" or more whose weights have a mean of at least {COMMON_WEIGHT:g} times their spread and "
                f"{_CERTAIN:g} times its standard error",
                f"error at {COMMON_OUTPUT:g}",
                "kutsuna2019lcw, section 3; judgement",
            ),
        ),
        fix="""
            import theta0

            theta0.parametrize_(model, "lcw")
            theta0.initializers.unit_variance_(model, batches)
        """,
        command="`theta0 treat TARGET --with lcw --out start.safetensors`",
        ill="""
            layers = [part for _ in range(20) for part in (nn.Linear(8, 8), nn.Sigmoid())]
            model = nn.Sequential(*layers, nn.Linear(8, 3))
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 8), nn.Sigmoid(), nn.Linear(8, 3))",
        ignore="You can ignore a warning where the network is shallow and trains: the shift only slows training down.",
        measured="""
            | shift share of the last hidden layer | networks | trained | stuck |
            | --- | --- | --- | --- |
            | below 0.5 | 31 | 17 | 8 |
            | 0.5 to 0.97 | 63 | 41 | 17 |
            | 0.97 to 0.99 | 3 | 2 | 1 |
            | 0.99 to 0.9999 | 14 | 2 | 11 |
            | 0.9999 and more | 43 | 0 | 43 |

            The severity was loosened after false alarms on particular networks that train; it is fitted to those.
        """,
    ),
)
