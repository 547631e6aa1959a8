"""Why a treatment was kept or not, in one or two sentences."""

import math
import statistics
from collections.abc import Sequence

from theta0._progress import ENDED
from theta0._training import Run
from theta0.diagnosis.results import Diagnosis
from theta0.treatment.results import Attempt
from theta0.treatment.trials import Proof, reached

CONSTRAINED = (
    "Its weights are parametrized: save the state_dict(), or call theta0.remove_(model) before torch.save(model) and "
    "before a trainer's checkpoints, for plain weights that compute the same."
)


def nothing(before: Diagnosis) -> str:
    """There is nothing that a remedy answers."""
    if not before.findings:
        return "Nothing was tried, and the model is as it was."
    codes = ", ".join(dict.fromkeys(finding.code for finding in before.findings))
    return f"No initialization fixes what was found ({codes}); see each finding's advice. The model is as it was."


def elsewhere(whose: str, what: str, line: str) -> str:
    """The start is not at fault."""
    change = f" Change: {line}" if line else ""
    return f"Not the start's fault but that of {whose}; the model is as it was. {what}{change}"


def unfinished(doing: str, attempts: Sequence[Attempt]) -> str:
    """The time ended before the proof did."""
    tried = [attempt.remedy for attempt in attempts if attempt.run is not None]
    before = f" Tried before: {', '.join(tried)}." if tried else ""
    return f"Not kept: {ENDED} while {doing}; nothing was proven. The model is as it was.{before}"


def unproven(name: str, plain: Run | None, attempt: Attempt | None) -> str:
    """No remedy helped in the runs of the choice."""
    if attempt is None:
        return "Not kept: no remedy for what was found applies to this model. The model is as it was."
    if attempt.run is None:
        return f"{name} {attempt.reason}. The model is as it was."
    treated, untreated = reached(attempt.run), reached(plain)
    if math.isinf(treated) and math.isinf(untreated):
        return _both_diverge(name, attempt.run)
    if math.isinf(treated) and plain is not None:
        return (
            f"Not kept: with {name} training diverges, at rate {attempt.run.rate:g} still; without it the held-out "
            f"loss after {len(plain.losses)} steps is {untreated:.4g}. The model is as it was."
        )
    return f"Not kept: {_compared(name, len(attempt.run.losses), treated, untreated)}. The model is as it was."


def proven(name: str, shown: Proof, rate: float | None) -> str:
    """What the proof says."""
    untreated, treated = ([reached(pair[side]) for pair in shown.pairs] for side in (0, 1))
    run = shown.pairs[0][1]
    if math.isinf(max(treated)) and math.isinf(max(untreated)) and not shown.holds:
        return _both_diverge(name, run)
    compared = _compared(name, len(run.losses), statistics.fmean(treated), statistics.fmean(untreated))
    orders = f"{len(shown.pairs)} data orders, gain {shown.mean:.1%} ± {shown.spread:.1%}"
    slower = f" Train at {run.rate:g}: {rate:g} is too high for it." if rate is not None and run.rate < rate else ""
    if shown.holds:
        return f"Kept: {compared} ({orders}).{slower}"
    return f"Not kept: {compared} ({orders}). The model is as it was."


def _compared(name: str, steps: int, treated: float, untreated: float) -> str:
    return f"the held-out loss after {steps} steps is {treated:.4g} with {name} and {untreated:.4g} without"


def _both_diverge(name: str, run: Run) -> str:
    return (
        f"Not kept: both starts diverge, with {name} and without, at rate {run.rate:g}; "
        "lower it (theta0 rate TARGET finds one), or for regression standardize the targets. The model is as it was."
    )
