"""Findings about a residual stream that grows from branch to branch: its large outputs and losses are only the end."""

import math
from collections.abc import Sequence
from dataclasses import replace

from theta0._records import Table
from theta0.diagnosis.forward import GROWTH_WARNING
from theta0.diagnosis.results import Finding
from theta0.measurements.residual_stream import ResidualStream

STREAM_GROWTH = 10.0  # and twice the √L to which L branches add up that are as large as the stream was at first
_SHARE = 0.5  # of the growth, in decades
_REMEDY = "theta0 treat TARGET --with branch-scale"
_SOURCE = "Hanin & Rolnick (2018), section 3; threshold docs/findings.md"


def growing_stream(findings: Sequence[Finding], stream: ResidualStream, table: Table) -> list[Finding]:
    r"""Explain exploding activations, saturation and a large first loss by the stream's growth, where that makes them.

    Where each of L branches adds as much variance as the stream has, the stream grows by $2^{L/2}$: what then is too
    large is not the last layer, nor any single one, but the branches, and they need a factor of $1/\sqrt L$.

    Args:
        findings: those of the forward pass.
        stream: the residual stream of the first batch.
        table: what was measured.

    Returns:
        The findings, those of a growing stream with its numbers and its remedy.
    """
    exploding = next((f for f in findings if f.code == "exploding-activations"), None)
    symptoms = [f for f in findings if f.code in ("initial-loss", "saturated-units")]
    if not (exploding or symptoms) or (exploding and table[exploding.layer].get("step_growth", 0.0) > GROWTH_WARNING):
        return list(findings)
    growth = _growth(stream)
    enough = STREAM_GROWTH if exploding is None else exploding.value**_SHARE
    if not growth >= max(enough, 2 * math.sqrt(len(stream.sums))):
        return list(findings)
    layers = list(table)
    behind = layers[layers.index(stream.sums[0].layer) :] if stream.sums[0].layer in table else []
    symptoms = [f for f in symptoms if f.layer in ("", *behind)]
    found = [replace(f, remedy=_REMEDY) if f in symptoms else f for f in findings]
    if exploding is not None:
        found[findings.index(exploding)] = replace(
            exploding, message=_message(stream, growth), remedy=_REMEDY, source=_SOURCE
        )
    elif symptoms:
        found.insert(findings.index(symptoms[0]), _of_stream(stream, growth, symptoms))
    return found


def _growth(stream: ResidualStream) -> float:
    """From the first sum to the largest one; NaN where there are not two, or the first is zero."""
    sizes = [added.rms for added in stream.sums if math.isfinite(added.rms)]
    return max(sizes) / sizes[0] if len(sizes) > 1 and sizes[0] > 0 else math.nan


def _message(stream: ResidualStream, growth: float) -> str:
    sizes = [added.rms for added in stream.sums]
    steps = max(1, sizes.index(max(size for size in sizes if math.isfinite(size))))
    return (
        f"The residual stream grows by a factor of {growth ** (1 / steps):.2f} a branch, from {sizes[0]:.2g} after the "
        f"first of {len(sizes)} to {sizes[0] * growth:.2g}: what a branch adds grows with what it is given. "
        f"Multiply the end of every branch by 1/√{len(stream.endings)}, or start it at zero."
    )


def _of_stream(stream: ResidualStream, growth: float, symptoms: Sequence[Finding]) -> Finding:
    """The cause of what is too large at the end, as severe as that is."""
    grown = [added.layer for added in stream.sums if added.rms > STREAM_GROWTH * stream.sums[0].rms]
    return Finding(
        code="exploding-activations",
        severity="error" if any(f.severity == "error" for f in symptoms) else "warning",
        layer=grown[0],
        value=growth,
        threshold=STREAM_GROWTH,
        layers=tuple(dict.fromkeys(grown)),
        message=_message(stream, growth),
        remedy=_REMEDY,
        source=_SOURCE,
    )
