"""A residual stream that grows from branch to branch: what is too large at its end then is only a consequence."""

import math
from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding
from theta0.measurements.residual_stream import ResidualStream

BRANCH_SCALE = "theta0 treat TARGET --with branch-scale --out start.safetensors"


def growth(stream: ResidualStream) -> float:
    """The root mean square of the largest sum over the first's; NaN without two, or where the first is zero."""
    sizes = [added.rms for added in stream.sums if math.isfinite(added.rms)]
    return max(sizes) / sizes[0] if len(sizes) > 1 and sizes[0] > 0 else math.nan


def behind_first_branch(evidence: Evidence) -> list[str]:
    """The layers from the end of the first branch on; the whole network, "", counts as behind it."""
    layers, first = list(evidence.table), evidence.residual_stream.sums[0].layer
    return ["", *(layers[layers.index(first) :] if first in layers else [])]


def with_branch_scale(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """A revision: what a growing stream makes too large is answered by scaling the branches, not the layer."""
    grown = any(f.code == "exploding-activations" and f.remedy == BRANCH_SCALE for f in others)
    return (
        replace(finding, remedy=BRANCH_SCALE) if grown and finding.layer in behind_first_branch(evidence) else finding
    )
