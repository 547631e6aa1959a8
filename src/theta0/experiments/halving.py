"""Candidates that differ in one number, run side by side: the best and its neighbours go on, the others wait."""

import math
from dataclasses import dataclass, replace

from theta0.experiments.runs import Experiment, PausedRun, continued, started

RUNGS = (10, 20, 40, 80, 160)
ENOUGH = 40  # steps after which the search may end
FALL = 0.15  # share of the loss to lose until then; else it goes on
DEAD = 0.002  # of the loss: a leader that lost no more since the rung before stands still
STILL = 0.05  # of the loss to lose since the rung before, where it began above what a constant predictor reaches
FAR = 2.0  # times the best constant predictor's loss: a start above it shows at first how fast outputs travel
LEVEL = 1.02  # times the first loss: a run on a plateau that is not above goes on beside the leader
EQUAL = 0.01  # of the loss
CLOSE = 0.2  # of the leader's fall: a neighbour so little behind goes on too
LOWEST = -12  # no candidate below
WINDOW = 8  # steps over which losses are averaged


@dataclass(frozen=True, eq=False)
class Search:
    """Runs at rates anchor · factor^k.

    Attributes:
        experiment: what they share.
        anchor: the rate of k = 0.
        factor: between neighbours.
        ceiling: no rate above it is tried.
        first: the mean loss of the start.
        reference: the lesser of that and the best constant predictor's loss, where it is known.
        runs: by k.
        stopped: whether the verb's time ended in one of them.
    """

    experiment: Experiment
    anchor: float
    factor: float
    ceiling: float
    first: float
    reference: float
    runs: dict[int, PausedRun]
    stopped: bool = False

    @property
    def steps(self) -> int:
        """Gradients taken so far."""
        return sum(len(run.losses) for run in self.runs.values())

    def scores(self, rung: int) -> dict[int, float]:
        """The mean loss of every run that came so far, infinite for those that diverged."""
        window = min(WINDOW, rung // 2)
        reached = {k: run for k, run in self.runs.items() if run.diverged or len(run.losses) >= rung}
        return {k: math.inf if run.diverged else run.score(rung, window) for k, run in reached.items()}

    def fallen(self, k: int, rung: int) -> bool:
        """Whether a run has lost enough: more than a plateau, or a fast way to one, would give."""
        score, before = self.runs[k].score(rung, WINDOW), self.runs[k].score(rung // 2, WINDOW)
        still = score < before - STILL * abs(before) and score < self.first - FALL * abs(self.first)
        return still or score < self.reference - FALL * abs(self.reference)

    def settled(self, k: int, rung: int) -> bool:
        """Whether the search may end: the loss has fallen, and not only since outputs came to the targets' place."""
        travels = self.first > FAR * abs(self.reference)
        return rung >= ENOUGH and self.fallen(k, rung) and (rung >= RUNGS[-1] or not travels)

    def lately(self, k: int, rung: int) -> float:
        """What a run lost since half of the steps of a rung; NaN where it did not come so far."""
        if k not in self.runs or len(self.runs[k].losses) < rung:
            return math.nan
        return self.runs[k].score(rung // 2, WINDOW) - self.runs[k].score(rung, WINDOW)

    def leader(self, rung: int) -> int | None:
        """The k of the least mean loss, on a long plateau the equal that falls fastest; None where all diverged."""
        found = {k: score for k, score in self.scores(rung).items() if math.isfinite(score)}
        if not found:
            return None
        best = min(found, key=lambda k: found[k])
        if rung <= ENOUGH or self.fallen(best, rung):
            return best
        return max(self.equals(rung), key=lambda k: self.lately(k, rung))

    def equals(self, rung: int) -> list[int]:
        """Those of the least mean loss, as one sees them on a plateau."""
        found = self.scores(rung)
        best = min(found.values())
        return [k for k, score in found.items() if score <= best + EQUAL * abs(best)]


def searched(search: Search, most: float) -> tuple[Search, int]:
    """Run candidates to the rungs, until the leader has fallen or the gradients are spent.

    The leader is the run of least loss on a rung. It goes on to the next, with the neighbours that are close behind. On
    a plateau the largest rate that has not broken yet looks best, and where outputs start far from the targets the one
    that carries them there first: the next lower goes on too unless it is known to fall more slowly by then. A leader
    that is the topmost candidate gets one above it, one that is the lowest on the first rung or on a plateau one below
    it. Where it rises, stands still or diverges, the next lower one goes on from where it waits; and where the plateau
    lasts, so does the lowest one above it that has not risen: a start may throw back for some steps the rate that
    leaves the plateau first. Where the time ends on a rung, the one before is the last, except on the first.

    Args:
        search: with its first candidates.
        most: gradients.

    Returns:
        The runs, and the last rung.
    """
    last = 0
    for rung in RUNGS:
        if last and search.steps + (rung - last) > most:
            break
        search = _at_rung(search, rung, last, most)
        last = last if last and search.stopped else rung
        leader = search.leader(last)
        if search.stopped or leader is None or search.settled(leader, rung):
            break
    return search, last


def brought(search: Search, ks: set[int], rung: int) -> Search:
    """Start or continue some candidates up to a rung.

    Returns:
        The search with them, as far as there was time.
    """
    runs = dict(search.runs)
    for k in sorted(ks):
        run = runs[k] if k in runs else started(search.experiment, search.anchor * search.factor**k)
        runs[k] = continued(search.experiment, run, rung)
    short = any(len(runs[k].losses) < rung and not runs[k].diverged for k in ks)
    return replace(search, runs=runs, stopped=search.stopped or short)


def _at_rung(search: Search, rung: int, before: int, most: float) -> Search:
    waiting = _affordable(search, _going_on(search, rung, before), rung, most) if before else {-1, 0, 1}
    while waiting:
        search = brought(search, waiting, rung)
        waiting = set() if search.stopped else _affordable(search, _wanted(search, rung, before), rung, most)
    return search


def _affordable(search: Search, ks: list[int], rung: int, most: float) -> set[int]:
    """As many of the candidates, the first ones first, as the gradients that are left bring to a rung."""
    left, taken = most - search.steps, set()
    for k in ks:
        left -= rung - (len(search.runs[k].losses) if k in search.runs else 0)
        if left < 0:
            break
        taken.add(k)
    return taken


def _going_on(search: Search, rung: int, before: int) -> list[int]:
    """The leader of the rung before and its neighbours, as far as they are close to it or all are on a plateau."""
    leader, scores = search.leader(before), search.scores(before)
    if leader is None:
        return []
    start = search.reference if scores[leader] < search.reference else search.first
    close = scores[leader] + CLOSE * max(start - scores[leader], 0.0)
    below, above = (scores.get(k, math.inf) <= close for k in (leader - 1, leader + 1))
    if before > RUNGS[0] and not (search.fallen(leader, before) and search.settled(leader, max(before, ENOUGH))):
        below = below or not search.lately(leader - 1, before) <= search.lately(leader, before)
        untried = rung <= ENOUGH or (rung <= 2 * ENOUGH and leader + 1 not in scores)
        above = above or (untried and _last(search, leader + 1) <= LEVEL * search.first)
    wanted = [leader, *([leader - 1] if below else []), *([leader + 1] if above else [])]
    return [k for k in wanted if k not in search.runs or not search.runs[k].diverged]


def _wanted(search: Search, rung: int, before: int) -> list[int]:
    """Who else must come to this rung before its leader can be believed."""
    scores, leader = search.scores(rung), search.leader(rung)
    lowest, highest = min(search.runs), max(search.runs)
    if leader is None:
        return _waiting_below(search, highest + 1, rung) or ([lowest - 2] if lowest > LOWEST else [])
    if leader == highest and search.anchor * search.factor ** (leader + 1) <= search.ceiling:
        return [leader + 1]
    if not before:
        return [leader - 1] if leader == lowest > LOWEST else []
    above = max(search.equals(rung)) + 1
    if rung > ENOUGH and not search.fallen(leader, rung) and _waits(search, above, rung):
        return [above]
    rises = scores[leader] > search.scores(before).get(leader, math.inf) and leader == min(scores)
    waiting = _waiting_below(search, leader, rung)
    still = rung >= ENOUGH and all(_still(search, k, rung) for k in range(max(waiting, default=leader) + 1, leader + 1))
    return waiting if rises or still else []


def _still(search: Search, k: int, rung: int) -> bool:
    """Whether a run came to a rung without losing anything since the one before; a diverged one did not."""
    return k not in search.runs or not search.lately(k, rung) > DEAD * abs(search.runs[k].score(rung, WINDOW))


def _waits(search: Search, k: int, rung: int) -> bool:
    """Whether a run stopped before a rung without having risen."""
    return k in search.runs and len(search.runs[k].losses) < rung and _last(search, k) <= LEVEL * search.first


def _last(search: Search, k: int) -> float:
    """A run's mean loss where it stands, infinite where there is none."""
    run = search.runs.get(k)
    return math.inf if run is None or run.diverged else run.score(len(run.losses), WINDOW)


def _waiting_below(search: Search, k: int, rung: int) -> list[int]:
    """The highest run below k that waits and has not diverged."""
    below = [j for j, run in search.runs.items() if j < k and not run.diverged and len(run.losses) < rung]
    return [max(below)] if below else []
