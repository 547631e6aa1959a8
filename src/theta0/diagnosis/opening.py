"""A network that is silent only until its first step: branches behind trained factors that start at nearly zero."""

import math
from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.chain import final_run
from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding

SMALL = 1e-2  # the largest factor that counts as nearly zero
CONSTANT = 0.99  # |mean| over root mean square: a factor that is the same for all units, as such ones start
WHOLE, SPREAD = 0.1, 1e-3  # of a layer's output that differs between samples: enough, and next to nothing
_RATE = 0.01  # of a step of SGD


def opens_itself(evidence: Evidence) -> bool:
    """Whether a branch has the signal, and a trained factor that opens in the first step keeps it from the output.

    Such a factor (Touvron et al., 2021, LayerScale) ends a residual branch and is a vector that starts at one tiny
    number, as 1e-5, on purpose. Its gradient is not small: a step of SGD at 0.01 is longer than the factor itself.
    """
    return bool(_factors(evidence)) and _whole(evidence)


def _factors(evidence: Evidence) -> list[str]:
    found, endings = [], {ending.name for ending in evidence.residual_stream.endings}
    for name, parameter in evidence.parameters.items():
        numbers = evidence.table.get(name, {})
        rms, mean, gradient = (numbers.get(key, 0.0) for key in ("value_rms", "value_mean", "gradient_norm"))
        small = (
            0 < rms <= SMALL and abs(mean) >= CONSTANT * rms and max(parameter.shape, default=1) == parameter.numel()
        )
        if small and name in endings and _RATE * gradient > rms * math.sqrt(parameter.numel()):
            found.append(name)
    return found


def _whole(evidence: Evidence) -> bool:
    """Whether samples differ at the layer before the last run of those at which they are alike."""
    links = [link for link in evidence.links if link.rms > 0]
    run = final_run(links, lambda link: link.relative_spread < SPREAD)
    start = links.index(run[0]) if run else 0
    return start > 0 and links[start - 1].relative_spread >= WHOLE


def note_where_it_opens(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """A revision: what such factors silence at the start is no fault, unless short runs do not train."""
    if (
        finding.severity == "note"
        or (evidence.probe is not None and evidence.probe.fails)
        or not opens_itself(evidence)
    ):
        return finding
    words = " So it is by design at the start: trained factors of nearly zero keep branches shut, and open at once."
    return replace(finding, severity="note", message=finding.message + words)
