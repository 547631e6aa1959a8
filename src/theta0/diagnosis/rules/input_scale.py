"""Data far from unit scale that meet weights made for unit scale."""

from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.consequences import SCALE
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, error_codes

LARGE = 30.0  # root mean square of the data
LARGE_OUTPUT = 10.0  # root mean square of what the first layer makes of them


def judge(evidence: Evidence) -> Finding | None:
    """Large data, no normalisation behind them, and a first layer that is as far off."""
    large = [
        found
        for found in evidence.inspection.inputs
        if found.rms > LARGE and not found.normalised and _size(evidence.table.get(found.layer, {})) > LARGE_OUTPUT
    ]
    if not large:
        return None
    first = large[0]
    return Finding(
        code="input-scale",
        severity="warning",
        layer=first.layer,
        value=first.rms,
        threshold=LARGE,
        message=(
            f"The data reach layer {first.layer!r} with root mean square {first.rms:.3g} and mean {first.mean:.3g}, "
            "where weights are drawn for about 1; the layer's output is as far off. "
            "Standardise the inputs to mean 0 and standard deviation 1, then diagnose again."
        ),
        remedy="inputs = (inputs - inputs.mean(0)) / (inputs.std(0) + 1e-8)",
        source=f"LeCun et al. (1998), Efficient BackProp, section 4.3; threshold {MEASURED}",
        layers=tuple(found.layer for found in large),
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """An error where one follows from it."""
    return replace(finding, severity="error") if error_codes(others) & SCALE else finding


def _size(numbers: dict[str, float]) -> float:
    variance, mean = numbers.get("preactivation_variance", 0.0), numbers.get("preactivation_mean", 0.0)
    size = (variance + mean**2) ** 0.5
    return size if size == size else float("inf")  # a layer that has overflowed is large


RULE = Rule(
    code="input-scale",
    judge=judge,
    place=Place.DATA,
    brings=SCALE,
    fault="the data",
    revise=revise,
    doc=RuleDoc(
        meaning="The data are far larger than what initial weights are drawn for. The first layer's outputs are as "
        "large, bounded nonlinearities saturate, and the first loss and the curvature are too large.",
        why="Raw pixels from 0 to 255, prices, timestamps or physical units go into the network as they are.",
        numbers=(
            (
                "root mean square of the data as the first layer meets them, where no normalisation follows and the "
                f"layer's output is above {LARGE_OUTPUT:g}",
                f"{LARGE:g}: warning; error where a finding of wrong scale follows",
                "LeCun et al. (1998), section 4.3; judgement",
            ),
        ),
        fix="batches = [((x - x.mean(0)) / (x.std(0) + 1e-8), y) for x, y in batches]",
        command="No command changes your data: standardise them in the target's `batches()`.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            batches = [(inputs * 1000, targets)]
        """,
        healthy="model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))",
        ignore="Where the first weights were made for data of this scale, for example by dividing them by it.",
    ),
)
