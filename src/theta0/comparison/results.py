"""What a race of starting points shows."""

import math
import statistics
from collections.abc import Sequence
from dataclasses import dataclass

from theta0._records import Result
from theta0._training import Run


@dataclass(frozen=True)
class Candidate:
    """One starting point before it is raced.

    Attributes:
        start: its name.
        suggested: the rate around which it is tried: the curvature's, or a short probe's; None where rates are given.
        rates: those tried.
        seconds: for making the start.
        gradients: for making the start, where the method reports it; else None.
        reason: why it could not be made, for one seed or at all, or that every rate diverged; else the empty string.
    """

    start: str
    suggested: float | None
    rates: tuple[float, ...]
    seconds: float
    gradients: float | None
    reason: str


@dataclass(frozen=True)
class TuningRun:
    """A short run for the choice of a rate.

    Attributes:
        start: the start's name.
        rate: its rate.
        steps: how many were asked for.
        run: what happened; `held_out` ranks the rates.
    """

    start: str
    rate: float
    steps: int
    run: Run


@dataclass(frozen=True)
class Standing:
    """A start at its best rate.

    Attributes:
        start: its name.
        rate: the rate that its tuning runs chose.
        runs: one for each seed, their `held_out` on batches that took no part in any choice.
        seeds: those seeds; fewer where the start could not be made for one.
        seconds: of its runs.
    """

    start: str
    rate: float
    runs: tuple[Run, ...]
    seeds: tuple[int, ...]
    seconds: float

    @property
    def mean(self) -> float:
        """The mean held-out loss; infinite where a run diverged."""
        return statistics.fmean(run.held_out for run in self.runs)

    @property
    def spread(self) -> float:
        """Its standard deviation over seeds; NaN for a single seed or a run that diverged."""
        finite = len(self.runs) > 1 and math.isfinite(self.mean)
        return statistics.stdev(run.held_out for run in self.runs) if finite else math.nan


@dataclass(frozen=True, repr=False)
class Comparison(Result):
    """A leaderboard of starting points, each at its own best rate.

    Attributes:
        standings: the best first.
        candidates: every start asked for, in that order.
        tuning_runs: every run that chose a rate.
        optimizer: its name.
        steps: of the full runs.
        drawn: whether seeds drew other weights, or only other data orders and noise.
        complete: whether every start got every seed for which it could be made; False where the time ran out.
        cost: in gradients, of all runs.
        seconds: of everything, without what a store had already.
    """

    standings: tuple[Standing, ...]
    candidates: tuple[Candidate, ...]
    tuning_runs: tuple[TuningRun, ...]
    optimizer: str
    steps: int
    drawn: bool
    complete: bool
    cost: float
    seconds: float

    @property
    def winner(self) -> Standing | None:
        """The start with the lowest mean held-out loss; None where no run was made."""
        return self.standings[0] if self.standings else None

    def to_dict(self) -> dict[str, float]:
        """Means, spreads and rates by start."""
        quantities = ("mean", "spread", "rate")
        return {f"{s.start}/{quantity}": getattr(s, quantity) for s in self.standings for quantity in quantities}


def all_diverged(tuning_runs: Sequence[TuningRun], standings: Sequence[Standing]) -> dict[str, str]:
    """The starts of which no run came to its end, whatever the rate."""
    reasons = {}
    for standing in standings:
        own = [tried for tried in tuning_runs if tried.start == standing.start]
        if not any(math.isfinite(run.held_out) for run in [*standing.runs, *(tried.run for tried in own)]):
            lowest = min(standing.rate, *(tried.rate for tried in own), math.inf)
            reasons[standing.start] = f"every rate tried diverged, down to {lowest:.3g}"
    return reasons
