"""A probe: does training lead below what outputs that ignore the input reach?"""

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from typing import Literal

from torch import nn

from theta0._batches import Batch, sliced
from theta0._errors import UserCodeError
from theta0._losses import Loss
from theta0._state import preserve_state
from theta0._training import count_gradients
from theta0.experiments.free_outputs import FreeOutputs
from theta0.experiments.learning_rate import _by_first_step
from theta0.experiments.optimizers import OptimizerKind
from theta0.experiments.runs import Experiment, PausedRun, continued, counting, losses_at, prepared, started

Outcome = Literal["trains", "stuck", "slow", "diverges", "undecided"]
LEARNT = 0.05  # of what there is to learn: so far below the best constant outputs a run counts as training
FALLEN = 0.2  # of the first loss, where no constant is known
CLOSING = 0.15  # of the way to that level, in the second half of a run: below, it is not on its way
STILL = 0.02  # of the first loss: less in a whole run, at every rate, is no movement
RISEN = 0.5  # of the first loss
RUNGS = (10, 20, 40, 80)
FACTORS = (1.0, 10.0, 0.1, 100.0, 0.01)  # five rates, the likeliest first
_UPWARDS, _DOWNWARDS = (10.0, 100.0, 0.1), (0.1, 0.01, 10.0)  # where a given rate moves the loss, and where not down
_FARTHEST = 1e4  # times lower: no rate is tried below
_OUT_OF_REACH = 0.98  # of what there is to learn
ONE_BATCH = 16  # samples that any network that trains can memorize
_ONE_BATCH_STEPS = 30  # gradients kept for that
_LONGEST, _CHUNK = 90, 15  # steps of one run: plateaus of networks that train end by then; between looks at the loss
_GONE, _GOES_ON = 0.1, 0.05  # of the way down, in all and in the second half: further is no standing still
_STANDS = 0.02  # of that way, whether down or up: the rate does nothing
_HALVED = 0.5  # of what there is to learn of them
PROVEN = 30  # steps of a rate that is advised in the place of another
SMALL = 1e5  # parameters times samples of a batch: a step costs hardly more than the calls that make it
SEEN_WHOLE = 64  # samples in all batches: fewer are all there is, and to learn them by heart is the task
PATIENT = 1500  # steps in which such a network shows whether it is on a plateau
_PATIENT_RATES = 3
_PATIENT_RUNGS = (200, 500, PATIENT)


@dataclass(frozen=True)
class ExperimentRun:
    """A short training run that is evidence.

    Attributes:
        change: what was different, in words; empty for training as the user does it.
        optimizer: its name.
        rate: the learning rate.
        losses: before every step.
        final: the mean loss of the last steps, over every batch once where there were enough; infinite where it
            diverged.
        outcome: "trains" (below the level that shows learning), "stuck", "slow" (it moves, but would not come below a
            constant in several times as many steps), "diverges" or "undecided".
    """

    change: str
    optimizer: str
    rate: float
    losses: tuple[float, ...]
    final: float
    outcome: Outcome


@dataclass(frozen=True)
class Probe:
    """What short runs on the given batches show.

    Attributes:
        outcome: of the run at the given rate; of the best where none was given.
        given: the user's learning rate, if any.
        runs: one a rate, the given or likeliest one first.
        best: the rate of the best run; None where all diverge.
        first: the mean loss of the start.
        constant: what outputs that ignore the input reach; None where it is not known.
        level: the loss below which a run counts as training.
        floor: the least loss that the outputs allow.
        cost: in gradients, without those of `longer`.
        fits_one_batch: whether a few samples can be memorized; None where it was not tried.
        given_fits: the same at the given rate alone, asked where it does not train, nor any lower one; None where it
            was not tried, or is on its way.
        reason: why it is undecided, where it is.
        fits_at: the rate at which a few samples are memorized; None where none was seen.
        longer: steps made beyond these, because the network is small and nothing had trained.
    """

    outcome: Outcome
    given: float | None
    runs: tuple[ExperimentRun, ...]
    best: float | None
    first: float
    constant: float | None
    level: float
    floor: float
    cost: float
    fits_one_batch: bool | None = None
    given_fits: bool | None = None
    reason: str = ""
    fits_at: float | None = None
    longer: int = 0

    @property
    def fails(self) -> bool:
        """Whether no rate trains, none is on its way, and a few samples alone are not learnt either."""
        hopeless = all(run.outcome in ("stuck", "slow", "diverges") for run in self.runs)
        return bool(self.runs) and hopeless and self.fits_one_batch is False

    def trains_much(self, share: float, rate: float | None = None) -> bool:
        """Whether a run gains more than a share of what there is to learn beyond a constant; that at a rate, if any."""
        if self.constant is None:
            return False
        own = self.at(rate)
        runs = self.runs if own is None else (own,)
        return any(self.constant - run.final > share * (self.constant - self.floor) for run in runs)

    def way(self, run: ExperimentRun) -> float:
        """Which share of the way from the first loss to the level that shows learning a run has gone."""
        return (self.first - run.final) / (self.first - self.level) if self.first > self.level else 0.0

    def at(self, rate: float | None) -> ExperimentRun | None:
        """The run at a rate."""
        return next((run for run in self.runs if rate is not None and math.isclose(run.rate, rate)), None)


@dataclass(frozen=True, eq=False)
class _Runs:
    """Runs so far, and what they are held against."""

    experiment: Experiment
    kind: OptimizerKind
    runs: dict[float, PausedRun]
    first: float
    floor: float
    constant: float | None
    most: float
    spent: float

    @property
    def level(self) -> float:
        reference = self.first if self.constant is None else min(self.first, self.constant)
        share = FALLEN if self.constant is None else LEARNT
        return reference - share * abs(reference - self.floor)

    def score(self, rate: float, step: int | None = None) -> float:
        run = self.runs[rate]
        step = len(run.losses) if step is None else step
        cycle = len(self.experiment.batches)
        return run.score(step, cycle if cycle <= max(4, step // 2) else max(1, step // 3))

    def trains(self, rate: float) -> bool:
        return not self.runs[rate].diverged and self.score(rate) < self.level

    def closing(self, rate: float) -> float:
        """Which share of the way to the level the second half of a run has gone."""
        steps = len(self.runs[rate].losses)
        before, after = self.score(rate, (steps + 1) // 2), self.score(rate)
        return (before - after) / (before - self.level) if math.isfinite(before) and before > self.level else 0.0


def probe(
    model: nn.Module,
    batches: Sequence[Batch],
    loss: Loss,
    kind: OptimizerKind,
    rate: float | None,
    *,
    free: FreeOutputs | None,
    other_rates: Iterable[float] = (),
    steps: int = 100,
    patient: bool = False,
    stepped: Callable[[int], None] = lambda steps: None,
) -> Probe:
    """Train briefly from the model's start, at the user's rate or at five, and say whether that is training.

    The run at the given rate goes on to 40 steps while it is on its way; where it has not learned anything, others are
    tried (*trial of rates*): at ten and a hundred times the rate, then at a tenth, if the loss fell or hardly moved; at
    a tenth and a hundredth, then at ten times, if it rose. Without a given rate the first moves the weights by 3 % a
    step. Where no rate trains, a few samples are tried alone, which any network that can be trained memorizes. If
    asked to be patient, a small network (at most 1e5 parameters × samples of a batch) on fewer than 64 samples is not
    given up before it had 1,500 steps at each of three rates: plateaus, such as that of XOR, are that long. The model
    is left as it was.

    Args:
        model: the network, in the mode in which it is trained.
        batches: to train on, in turn.
        loss: a name, a callable, or None where the model returns its loss.
        kind: the user's optimizer.
        rate: its rate; None where none is given.
        free: what the loss can reach; None where that is not known.
        other_rates: tried before the multiples of the given one, such as what the curvature allows.
        steps: gradients in all.
        patient: whether a small network that does not train gets more.
        stepped: called after each step with how many were made.

    Returns:
        The runs and the verdict.
    """
    with preserve_state(model):
        experiment = counting(prepared(model, batches, loss, kind.make), stepped)
        try:
            return _probed(experiment, kind, rate, free, list(other_rates), steps, patient)
        except (UserCodeError, RuntimeError) as error:
            why = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
            nan = math.nan
            return Probe("undecided", rate, (), None, nan, None, nan, nan, 0.0, reason=f"training raised: {why}")


def _probed(
    experiment: Experiment,
    kind: OptimizerKind,
    rate: float | None,
    free: FreeOutputs | None,
    other_rates: list[float],
    steps: int,
    patient: bool,
) -> Probe:
    starting = losses_at(experiment, range(len(experiment.batches)))
    first, spent = math.fsum(starting) / len(starting), count_gradients(forward=len(starting))
    if not math.isfinite(first):
        return Probe(
            "diverges", rate, (), None, first, None, first, first, spent, reason="the first loss is not finite"
        )
    anchor = rate
    if anchor is None:
        anchor, spent = _by_first_step(experiment, kind)[0], spent + 1
    if steps - spent < 1:
        reason = f"{steps} gradients do not suffice for a run"
        return Probe("undecided", rate, (), None, first, None, math.nan, math.nan, spent, reason=reason)
    state = _Runs(
        experiment, kind, {}, first, _floor(free, first), None if free is None else free.constant, float(steps), spent
    )
    near = [r for r in other_rates if rate is None or rate / _FARTHEST <= r <= rate * FACTORS[3]]
    state = _brought(state, anchor, RUNGS[0])
    factors: tuple[float, ...] = FACTORS[1:]
    if rate is not None and not state.trains(anchor):  # it may be off by any power of ten
        state, factors = _directed(state, anchor)
        near, state = [*near, _by_first_step(experiment, kind)[0]], replace(state, spent=state.spent + 1)
    rates = _deduplicated([anchor, *near, *(anchor * factor for factor in factors)])[: len(FACTORS)]
    state = _tried(state, rates)
    fits, given_fits, fits_at, cost = None, None, None, 0.0
    before = state.spent
    if patient and not any(state.trains(r) for r in state.runs) and _is_small(experiment):
        state = _waited(state, rate)
    longer, state = round(state.spent - before), replace(state, spent=before)
    if not any(state.trains(r) for r in state.runs):
        tried = list(dict.fromkeys([anchor, *_around(state)]))
        few, cost = _fits_few(state, tried)
        fits_at = next((r for r, learnt in zip(tried, few, strict=False) if learnt), None)
        fits = any(few) or (False if few and None not in few else None)
        given_fits = few[0] if few and rate is not None else None
    elif rate is not None and not any(state.trains(r) for r in state.runs if r <= anchor):
        state = _brought(state, min((r for r in state.runs if state.trains(r)), key=state.score), PROVEN)
        few, cost = _fits_few(state, [anchor])
        given_fits = few[0] if few else None
    found = _verdict(replace(state, spent=state.spent + cost), rate, fits, given_fits)
    return replace(found, fits_at=fits_at, longer=longer)


def _directed(state: _Runs, rate: float) -> tuple[_Runs, tuple[float, ...]]:
    """Go on with a given rate while it is on its way; and which multiples of it to try next."""
    state = _brought(state, rate, RUNGS[1])
    fell = not state.runs[rate].diverged and state.score(rate) < state.first
    if fell and not state.trains(rate) and state.closing(rate) > CLOSING:
        state = _brought(state, rate, RUNGS[2])
    stands = abs(state.score(rate) - state.first) < _STANDS * abs(state.first - state.level)
    return state, _UPWARDS if fell or stands else _DOWNWARDS


def _floor(free: FreeOutputs | None, first: float) -> float:
    if free is not None:
        for found in (free.confined, free.least):
            # Outputs confined to where nothing is gained over a constant would make any noise count as training.
            nothing = free.constant is not None and found == free.confined and free.gap > _OUT_OF_REACH
            if found is not None and math.isfinite(found) and not nothing:
                return found
    return min(0.0, first - abs(first))


def _deduplicated(rates: Sequence[float]) -> list[float]:
    found: list[float] = []
    for rate in rates:
        if math.isfinite(rate) and rate > 0 and not any(0.3 < rate / other < 3 for other in found):
            found.append(rate)
    return found


def _brought(state: _Runs, rate: float, until: int) -> _Runs:
    """Start or continue a run as far as the gradients that are left allow."""
    run = state.runs[rate] if rate in state.runs else started(state.experiment, rate)
    until = int(min(until, len(run.losses) + max(0.0, state.most - state.spent)))
    after = continued(state.experiment, run, until)
    spent = state.spent + len(after.losses) - len(run.losses)
    return replace(state, runs={**state.runs, rate: after}, spent=spent)


def _tried(state: _Runs, rates: Sequence[float]) -> _Runs:
    """Where the first rate has not learned, the others; then the best as far as it falls."""
    for rate in rates[1:]:
        if any(state.trains(r) for r in state.runs) or state.most - state.spent < RUNGS[0] + _reserve(state):
            break
        state = _brought(state, rate, RUNGS[0])
    for until in RUNGS[1:]:
        leader = _leader(state)
        if leader is None or any(state.trains(r) for r in state.runs):
            break
        if len(state.runs[leader].losses) >= RUNGS[1] and state.closing(leader) < CLOSING / 3:
            break
        if state.most - state.spent < until - len(state.runs[leader].losses) + _reserve(state):
            break
        state = _brought(state, leader, until)
    return state


def _is_small(experiment: Experiment) -> bool:
    sizes, weights = [batch.size for batch in experiment.batches], sum(p.numel() for p in experiment.model.parameters())
    return weights * max(sizes) <= SMALL and sum(sizes) < SEEN_WHOLE


def _waited(state: _Runs, given: float | None) -> _Runs:
    """Go on with the given rate, then with the best others, until one trains."""
    best = sorted((rate for rate, run in state.runs.items() if not run.diverged), key=state.score)
    chosen = [rate for rate in ([given] if given in best else []) + [rate for rate in best if rate != given] if rate]
    waiting = replace(state, most=math.inf)
    for rate in chosen[:_PATIENT_RATES]:
        for until in _PATIENT_RUNGS:
            waiting = _brought(waiting, rate, until)
            if waiting.trains(rate):
                return replace(waiting, most=state.most)
            if waiting.runs[rate].diverged:
                break
    return replace(waiting, most=state.most)


def _reserve(state: _Runs) -> int:
    """Gradients kept for the few samples alone."""
    return min(_ONE_BATCH_STEPS, int(state.most) // 3)


def _leader(state: _Runs) -> float | None:
    finite = {rate: state.score(rate) for rate, run in state.runs.items() if not run.diverged}
    finite = {rate: score for rate, score in finite.items() if math.isfinite(score)}
    return min(finite, key=lambda rate: finite[rate]) if finite else None


def _around(state: _Runs) -> tuple[float, float, float]:
    """The best rate, ten times it and a tenth of it."""
    leader = _leader(state)
    leader = min(state.runs) if leader is None else leader
    return leader, leader * 10, leader / 10


def _fits_few(state: _Runs, rates: Sequence[float]) -> tuple[list[bool | None], float]:
    """Whether a few samples are memorized at each of some rates, until they are at one.

    A step on a few samples costs as much less as they are fewer, so that a plateau is seen to its end.

    Returns:
        Of each rate that there was time for, True, False, or None for a run that is on its way; and the cost.
    """
    experiment, first, unit = _on_few(state)
    reference = first if state.constant is None else min(first, state.constant)
    level, cost = state.floor + _HALVED * (min(reference, first) - state.floor), unit / 3
    found: list[bool | None] = []
    for rate in dict.fromkeys(rates):
        left = int((state.most - state.spent - cost) / unit)
        if left < _ONE_BATCH_STEPS // 2:
            break
        run = started(experiment, rate)
        while not run.diverged and len(run.losses) < min(left, _LONGEST):
            run = continued(experiment, run, min(left, _LONGEST, len(run.losses) + _CHUNK))
            if not run.diverged and run.losses[-1] < level:
                return [*found, True], cost + unit * len(run.losses)
        cost += unit * len(run.losses)
        found.append(None if _moves(run, state.floor) else False)
    return found, cost


def _on_few(state: _Runs) -> tuple[Experiment, float, float]:
    """Training on a few samples, its first loss, and what a step of it costs."""
    batches, batch = state.experiment.batches, state.experiment.batches[0]
    few = sliced(batch, slice(0, ONE_BATCH))
    state.experiment.restore()
    experiment = replace(state.experiment, batches=[few])
    try:
        return experiment, losses_at(experiment, [0])[0], few.size * len(batches) / sum(b.size for b in batches)
    except (UserCodeError, RuntimeError):  # a graph, or a mask of the whole batch's size
        experiment = replace(state.experiment, batches=[batch])
        return experiment, losses_at(experiment, [0])[0], 1.0


def _moves(run: PausedRun, floor: float) -> bool:
    """Whether a run has gone a part of the way down, and still goes on."""
    if run.diverged or len(run.losses) < _CHUNK:
        return False
    half, end, first = run.losses[len(run.losses) // 2], run.losses[-1], run.losses[0]
    return end < first - _GONE * (first - floor) and end < half - _GOES_ON * (first - floor)


def _outcome(state: _Runs, rate: float) -> Outcome:
    run, score = state.runs[rate], state.score(rate)
    if run.diverged or not math.isfinite(score):
        return "diverges"
    if score < state.level:
        return "trains"
    if score > state.first + RISEN * abs(state.first - state.floor):
        return "diverges"
    if state.closing(rate) > CLOSING:
        return "undecided"
    if state.constant is None:
        return "stuck" if abs(score - state.first) < STILL * abs(state.first - state.floor) else "undecided"
    if state.first < state.constant - LEARNT / 2 * abs(state.constant - state.floor):
        return "undecided"  # it has learnt already, elsewhere
    above = score - state.constant > RISEN * (state.first - state.constant)
    return "slow" if above and state.first > state.constant + LEARNT * abs(state.constant - state.floor) else "stuck"


def _verdict(state: _Runs, given: float | None, fits: bool | None, given_fits: bool | None) -> Probe:
    outcomes, best = {rate: _outcome(state, rate) for rate in state.runs}, _leader(state)
    if best is not None and outcomes[best] in ("stuck", "slow"):  # what is behind the best is not on its way either
        outcomes = {rate: "slow" if found == "undecided" else found for rate, found in outcomes.items()}
    judged = given if given is not None else best
    outcome: Outcome = "diverges" if judged is None else outcomes[judged]
    shown = tuple(
        ExperimentRun("", state.kind.name, rate, run.losses, state.score(rate), outcomes[rate])
        for rate, run in state.runs.items()
    )
    constant, level, floor = state.constant, state.level, state.floor
    return Probe(outcome, given, shown, best, state.first, constant, level, floor, state.spent, fits, given_fits)
