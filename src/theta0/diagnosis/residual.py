"""Findings about a residual stream: growth from branch to branch, of which outputs and first losses are only the end."""

import math
from collections.abc import Sequence
from dataclasses import replace

from torch import nn

from theta0._batches import Batch
from theta0._branches import ResidualStream, residual_stream
from theta0._records import Table
from theta0.diagnosis.forward import GROWTH_WARNING
from theta0.diagnosis.results import Finding

STREAM_GROWTH = 10.0  # and twice the √L to which L branches add up that are as large as the stream was at first
_SHARE = 0.5  # of the growth, in decades
_REMEDY = "theta0 treat TARGET --with branch-scale"
_SOURCE = "Hanin & Rolnick (2018), section 3; threshold measured, docs/findings.md"


def growing_stream(
    findings: Sequence[Finding], model: nn.Module, batch: Batch, table: Table
) -> tuple[list[Finding], float]:
    r"""Explain exploding activations and a large first loss by the stream's growth, where that is what makes them.

    Where each of L branches adds as much variance as the stream has, the stream grows by $2^{L/2}$: what then is too
    large is not the last layer, nor any single one, but the branches, and they need a factor of $1/\sqrt L$.

    Args:
        findings: those of the forward pass.
        model: the model, left as it is.
        batch: one batch.
        table: what was measured.

    Returns:
        The findings, those of a growing stream with its numbers and its remedy; and the cost in gradients.
    """
    told = {f.code: f for f in findings if f.code in ("exploding-activations", "initial-loss")}
    exploding, initial = told.get("exploding-activations"), told.get("initial-loss")
    if not told or (exploding and table[exploding.layer].get("step_growth", 0.0) > GROWTH_WARNING):
        return list(findings), 0.0
    stream, cost = residual_stream(model, batch), 1 / 3
    growth = _growth(stream)
    enough = STREAM_GROWTH if exploding is None else exploding.value**_SHARE
    if not growth >= max(enough, 2 * math.sqrt(len(stream.sums))):
        return list(findings), cost
    found = [replace(f, **_wording(stream, growth)) if f is exploding else f for f in findings]
    if initial is not None:
        place = findings.index(initial)
        found[place] = replace(initial, remedy=_REMEDY)
        if exploding is None:
            found.insert(place, _of_stream(stream, growth, initial))
    return found, cost


def _growth(stream: ResidualStream) -> float:
    """From the first sum to the largest one; NaN where there are not two, or the first is zero."""
    sizes = [added.rms for added in stream.sums if math.isfinite(added.rms)]
    return max(sizes) / sizes[0] if len(sizes) > 1 and sizes[0] > 0 else math.nan


def _wording(stream: ResidualStream, growth: float) -> dict[str, str]:
    sizes = [added.rms for added in stream.sums]
    largest = sizes[0] * growth
    steps = max(1, sizes.index(max(size for size in sizes if math.isfinite(size))))
    return {
        "message": (
            f"The residual stream grows by a factor of {growth ** (1 / steps):.2f} a branch, from {sizes[0]:.2g} after "
            f"the first of {len(sizes)} to {largest:.2g}: each branch adds about as much as all before it. "
            f"Multiply the end of every branch by 1/√{len(stream.endings)}, or start it at zero."
        ),
        "remedy": _REMEDY,
        "source": _SOURCE,
    }


def _of_stream(stream: ResidualStream, growth: float, initial: Finding) -> Finding:
    """The cause of a first loss that is too large, as severe as that is."""
    first = stream.sums[0].rms
    grown = [added.layer for added in stream.sums if added.rms > STREAM_GROWTH * first]
    return Finding(
        code="exploding-activations",
        severity=initial.severity,
        layer=grown[0],
        value=growth,
        threshold=STREAM_GROWTH,
        layers=tuple(dict.fromkeys(grown)),
        **_wording(stream, growth),
    )
