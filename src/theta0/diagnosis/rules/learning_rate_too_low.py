"""A learning rate so far below what the curvature allows that training takes for ever."""

import itertools
import math
from collections.abc import Sequence

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.outcome import better_rate
from theta0.diagnosis.results import MEASURED, Finding, Severity
from theta0.diagnosis.rule import Place, Rule, RuleDoc, only_beside_notes
from theta0.experiments.probe import ONE_BATCH, PROVEN, ExperimentRun, Probe

LOW = 1e-5  # of the largest stable rate
HARDLY, MUCH, AHEAD = 0.1, 0.2, 4.0  # of the way from the first loss to what shows learning; times as far
FEW, SHORT = 10.0, 30.0  # steps at the highest rate that all of a schedule's together are worth: error, warning
NOTHING = 1e-6  # of the highest rate
_FADED = 2e-4  # of the highest rate, just before it is nothing: one that ends at once is above
_FEW_SEEN, _STEADY = 100, 0.05  # rates that nothing continues; the spread of the factors by which they fall
_RESTS = 3  # steps at rate 0 that no warm-up needs
_SCHEDULE = "the rates of the steps, as the schedule sets them; threshold: judgement"
STANDS, _TIMES = 0.02, 9.0  # of the way, up or down: the rate does nothing; times as high, at least
SLOWLY, HALFWAY = 0.25, 0.5  # of the way, where a higher rate goes half of it or trains


def judge(evidence: Evidence) -> Finding | None:
    """A schedule that leaves nothing; a trial of the rate given and of higher ones; without a probe, its bound."""
    scheduled = _scheduled(evidence.observed.rates or ())
    # One side of a game that learns fast says nothing of the game.
    if scheduled is not None or evidence.observed.opposed:
        return scheduled
    if _rising(evidence.observed.rates or ()):
        return None
    probe = evidence.probe
    run = None if probe is None else probe.at(evidence.rate)
    return _suspected(evidence) if probe is None or run is None else _tried(run, probe)


def _rising(rates: Sequence[float]) -> bool:
    """Whether a warm-up that the script makes itself is still on its way at the last step seen."""
    return len(rates) >= _RESTS and all(later > earlier for earlier, later in itertools.pairwise(rates))


def _tried(run: ExperimentRun, probe: Probe) -> Finding | None:
    """The loss hardly falls at the rate, nor on a few samples; at a higher one it does, also in a longer run."""
    higher = [other for other in probe.runs if other.rate > run.rate and other.outcome != "diverges"]
    better = max(higher, key=probe.way, default=None)
    if better is None or run.outcome in ("trains", "diverges") or probe.given_fits is not False:
        return None
    if probe.fits_at is not None and probe.fits_at > _TIMES * run.rate and abs(probe.way(run)) < STANDS:
        return _unmoved(run, probe.fits_at)
    way, farther = probe.way(run), probe.way(better)
    times = max(1.0, len(run.losses) / len(better.losses))  # as many steps
    if way > (SLOWLY if farther > HALFWAY else HARDLY) or farther < MUCH or times * farther < AHEAD * way:
        return None
    return better_rate("warning", run, better, probe)


def _unmoved(run: ExperimentRun, fits_at: float) -> Finding:
    """The loss stands still at the rate, on a few samples alone too, which a higher rate learns by heart."""
    return Finding(
        code="learning-rate-too-low",
        severity="warning",
        layer="",
        value=run.rate / fits_at,
        quantity="rate over one that learns a few samples",
        threshold=1 / _TIMES,
        message=(
            f"The learning rate {run.rate:g} is too low: the loss stays at {run.final:.3g} in {len(run.losses)} steps "
            f"of {run.optimizer}, and {ONE_BATCH} samples alone are not learned at it either; "
            f"at {fits_at:.2g} they are. `theta0 rate` finds one that trains."
        ),
        remedy="theta0 rate TARGET --verify",
        source="a trial of both rates on a few samples",
        evidence=(run,),
    )


def _scheduled(rates: Sequence[float]) -> Finding | None:
    """A schedule whose rates are zero, begin with zeros, or fall so fast that all steps together lead nowhere."""
    if len(rates) < _RESTS:
        return None
    peak = max(rates)
    resting = next((number for number, rate in enumerate(rates) if rate > NOTHING * peak), len(rates))
    if peak <= 0 or resting >= _RESTS:
        what = f"the first {resting:,} steps are" if peak > 0 else f"all {len(rates):,} steps seen are"
        advice = "Let it begin above zero: a warm-up rises from the first step on, and is no whole division."
        return _of_schedule("warning" if peak > 0 else "error", 0.0, f"{what} made at a rate of 0. {advice}")
    worth = _worth(rates, peak)
    if worth >= SHORT:
        return None
    shown = ", ".join(f"{rate:.2g}" for rate in rates[:5])
    message = (
        f"the rate goes {shown} …, step by step: all steps together are worth {worth:.2g} at its highest. A "
        "schedule made for epochs steps once an epoch, after the inner loop; else let it fall by less."
    )
    return _of_schedule("error" if worth <= FEW * (1 + 1e-6) else "warning", worth, message)


def _worth(rates: Sequence[float], peak: float) -> float:
    """The sum of the rates over the highest, where they fade from the first step on; infinite for any other schedule.

    One that ends at zero at once, as a line or half a cosine does, is as long as training is. Of a few rates that fall
    by a factor each the rest is a geometric series.
    """
    if rates[0] < peak * (1 - NOTHING):
        return math.inf
    total, last = math.fsum(rates) / peak, rates[-1] / peak
    if last <= NOTHING:
        before = min(rate for rate in rates if rate > NOTHING * peak)
        return total if before < _FADED * peak else math.inf
    if len(rates) > _FEW_SEEN or min(rates) <= 0:
        return math.inf
    falls = [later / rate for rate, later in itertools.pairwise(rates)]
    steady = max(falls) < 1 and max(falls) - min(falls) < _STEADY
    return total + last * falls[-1] / (1 - falls[-1]) if steady else math.inf


def _of_schedule(severity: Severity, worth: float, what: str) -> Finding:
    return Finding(
        code="learning-rate-too-low",
        severity=severity,
        layer="",
        value=worth,
        threshold=FEW if severity == "error" else SHORT,
        message=f"The schedule takes the learning rate to nothing: {what}",
        remedy="",
        source=_SCHEDULE,
    )


def _suspected(evidence: Evidence) -> Finding | None:
    rate, allowed = evidence.rate, None if evidence.rate is None else evidence.allowed_rate
    if rate is None or allowed is None or not rate / allowed.bound < LOW:
        return None
    ratio = rate / allowed.bound
    return Finding(
        code="learning-rate-too-low",
        severity="warning",
        layer="",
        value=ratio,
        quantity="rate over the bound",
        threshold=LOW,
        message=(
            f"The learning rate {rate:g} is {ratio:.1e} of the largest at which {allowed.optimizer} is stable "
            f"here ({allowed.bound:.3g}): training would take that much longer than it needs. "
            f"Try {allowed.value:.2g}."
        ),
        remedy="theta0 rate TARGET --verify",
        source=MEASURED,
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding | None:
    """Beside other findings it stands only where a higher rate was seen to train."""
    if finding.source == _SCHEDULE:
        return finding
    # A start that lets nothing through has next to no curvature, and any rate looks too low.
    proven = any(run.outcome == "trains" for run in finding.evidence)
    causes = [other for other in others if other.code != "does-not-train"]
    return finding if proven else only_beside_notes(finding, causes, evidence)


RULE = Rule(
    code="learning-rate-too-low",
    judge=judge,
    place=Place.LEARNING_RATE,
    fault="the learning rate",
    revise=revise,
    doc=RuleDoc(
        meaning="The start is fine, but the steps are so small that the loss will hardly change.",
        why="The rate comes from another optimizer or another model, or its exponent is wrong. Or a schedule "
        "that is made for epochs is stepped after every batch, or its warm-up is an integer division that "
        "gives 0. theta0 sees the schedule where you diagnose a script, or "
        "pass `observed=ObservedTraining(rates=…)`.",
        numbers=(
            (
                "of a script's schedule whose rate falls from the first step on: the sum of all rates, divided by "
                "the highest",
                f"error below {FEW:g} steps; warning below {SHORT:g}",
                "judgement",
            ),
            (
                "the first steps of a script's schedule that have a rate of 0",
                f"warning at {_RESTS}; error if these are all the steps that are seen",
                "nothing is learned in them",
            ),
            (
                "how far short runs get at the rate, and at 10 and 100 times it: the share of the way from the first"
                " loss to the loss that counts as learning. It is not judged where "
                f"{ONE_BATCH} samples alone are memorized at the rate, or nearly",
                f"warning if the rate gets less than {HARDLY:.0%} of the way and a higher one at least {MUCH:.0%} and"
                f" {AHEAD:g} times as far; {SLOWLY:.0%} instead of {HARDLY:.0%} where the higher one gets "
                f"{HALFWAY:.0%} of the way. "
                f"The rate that is advised trained for {PROVEN} steps",
                "measured",
            ),
            (
                f"where no short run trains: the rate, divided by one at which {ONE_BATCH} samples alone are memorized",
                f"warning below 1/{_TIMES:g}, if at the rate itself neither they nor all batches are learned "
                f"(less than {STANDS:.0%} of the way)",
                "judgement",
            ),
            (
                "without a probe, and where no error or warning is found: the rate, divided by the largest stable one",
                f"warning below {LOW:.0e}".replace("e-0", "e-"),
                "measured",
            ),
        ),
        fix="""
            import theta0

            # your optimizer: "sgd", "momentum", "adam", "adamw", …
            learning_rate = theta0.suggest_learning_rate(model, batches, loss, "adam").value
        """,
        command="`theta0 rate TARGET` takes the optimizer from your script.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 1e-7
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 0.1
        """,
        ignore="You can ignore it where a pretrained network is meant to change only a little.",
        measured="The least ratio seen on a network that trains was 3e-4.",
    ),
)
