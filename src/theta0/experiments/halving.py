"""Candidates that differ in one number, run side by side: the best and its neighbours go on, the others wait."""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from theta0.experiments.runs import Experiment, PausedRun, continued, started

RUNGS = (10, 20, 40, 80, 160)
ENOUGH = 40  # steps after which the search may end
FALL = 0.15  # share of the loss to lose until then; else it goes on
CLOSE = 0.2  # of the leader's fall: a neighbour so little behind goes on too
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
        runs: by k.
    """

    experiment: Experiment
    anchor: float
    factor: float
    ceiling: float
    first: float
    runs: dict[int, PausedRun]

    @property
    def steps(self) -> int:
        """Gradients taken so far."""
        return sum(len(run.losses) for run in self.runs.values())

    def scores(self, rung: int) -> dict[int, float]:
        """The mean loss of every run that came so far, infinite for those that diverged."""
        window = min(WINDOW, rung // 2)
        reached = {k: run for k, run in self.runs.items() if run.diverged or len(run.losses) >= rung}
        return {k: run.score(rung, window) for k, run in reached.items()}

    def leader(self, rung: int) -> int | None:
        """The k of the least mean loss; None where every run diverged."""
        found = {k: score for k, score in self.scores(rung).items() if math.isfinite(score)}
        return min(found, key=lambda k: found[k]) if found else None


def searched(search: Search, most: float, done: Callable[[Search, int], bool]) -> tuple[Search, int]:
    """Run candidates to the rungs, until the leader is done or the gradients are spent.

    On every rung the leader has a neighbour below and above that came as far, or waits behind by more than `CLOSE` of
    what the leader has gained; where the leader is the topmost, the next higher rate joins; where it rises or diverges,
    the next lower one goes on from where it waits.

    Args:
        search: with its first candidates.
        most: gradients.
        done: whether the search may end at a rung.

    Returns:
        The runs, and the last rung.
    """
    last = RUNGS[0]
    for rung in RUNGS:
        if rung > RUNGS[0] and search.steps + (rung - last) > most:
            break
        search = _at_rung(search, rung, last if rung > last else 0, most)
        last = rung
        if search.leader(rung) is None or (rung >= ENOUGH and done(search, rung)):
            break
    return search, last


def _at_rung(search: Search, rung: int, before: int, most: float) -> Search:
    waiting = set(search.runs) if not before else _going_on(search, before)
    while waiting:
        runs = dict(search.runs)
        for k in sorted(waiting):
            run = runs[k] if k in runs else started(search.experiment, search.anchor * search.factor**k)
            runs[k] = continued(search.experiment, run, rung)
        search = replace(search, runs=runs)
        waiting = _wanted(search, rung, before) if search.steps < most else set()
    return search


def _going_on(search: Search, before: int) -> set[int]:
    """The leader of the rung before and neighbours that are close to it."""
    leader, scores = search.leader(before), search.scores(before)
    if leader is None:
        return set()
    slack = CLOSE * max(search.first - scores[leader], 0.02 * abs(search.first))
    near = {k for k in (leader - 1, leader + 1) if scores.get(k, math.inf) <= scores[leader] + slack}
    return {leader} | near


def _wanted(search: Search, rung: int, before: int) -> set[int]:
    """Who else must come to this rung before its leader can be believed."""
    scores, leader = search.scores(rung), search.leader(rung)
    lowest = min(search.runs)
    if leader is None:
        return _alive_below(search, max(search.runs) + 1, rung) or ({lowest - 2} if lowest > -12 else set())
    wanted = set()
    above = leader + 1
    rate = search.anchor * search.factor**above
    if above not in search.runs and rate <= search.ceiling and leader == max(search.runs):
        wanted.add(above)
    rises = scores[leader] > search.scores(before).get(leader, math.inf) if before else scores[leader] > search.first
    if leader == min(scores) and (rises or not before):
        wanted |= _alive_below(search, leader, rung) or ({leader - 1} if not before and leader == lowest else set())
    return wanted


def _alive_below(search: Search, k: int, rung: int) -> set[int]:
    """The highest run below k that waits and has not diverged."""
    below = [j for j, run in search.runs.items() if j < k and not run.diverged and len(run.losses) < rung]
    return {max(below)} if below else set()
