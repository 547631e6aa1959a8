"""A learning rate so far below what the curvature allows that training takes for ever."""

from collections.abc import Sequence

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.outcome import better_rate
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc, only_beside_notes
from theta0.experiments.probe import ExperimentRun, Probe

LOW = 1e-5  # of the largest stable rate
HARDLY, MUCH, AHEAD = 0.1, 0.2, 4.0  # of the way from the first loss to what shows learning; times as far
SLOWLY, HALFWAY = 0.25, 0.5  # of the way, where a higher rate goes half of it or trains


def judge(evidence: Evidence) -> Finding | None:
    """A trial of the rate given and of higher ones; without a probe, the rate over the largest stable one."""
    probe = evidence.probe
    run = None if probe is None else probe.at(evidence.rate)
    return _suspected(evidence) if probe is None or run is None else _tried(run, probe)


def _tried(run: ExperimentRun, probe: Probe) -> Finding | None:
    """The loss hardly falls at the rate, and much more at ten or a hundred times it."""
    higher = [other for other in probe.runs if other.rate > run.rate and other.outcome != "diverges"]
    better = max(higher, key=probe.way, default=None)
    if better is None or run.outcome in ("trains", "diverges"):
        return None
    way, farther = probe.way(run), probe.way(better)
    times = max(1.0, len(run.losses) / len(better.losses))  # as many steps
    if way > (SLOWLY if farther > HALFWAY else HARDLY) or farther < MUCH or times * farther < AHEAD * way:
        return None
    return better_rate("warning", run, better, probe)


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
        meaning="Nothing is wrong with the start, but the steps are so small that the loss will hardly move.",
        why="A rate from another optimizer or another model, or an exponent that is off by a few.",
        numbers=(
            (
                "in a trial, the way from the first loss to what shows learning that a run goes at the rate, and at "
                "ten or a hundred times it",
                f"less than {HARDLY:.0%} ({SLOWLY:.0%} where a higher rate goes {HALFWAY:.0%} of it), and {MUCH:.0%} "
                f"and {AHEAD:g} times as far in as many steps: warning",
                "measured",
            ),
            (
                "without a probe, the rate over the largest stable one, where nothing else is an error or a warning",
                f"{LOW:.0e}: warning".replace("e-0", "e-"),
                "measured",
            ),
        ),
        fix="""
            import theta0

            learning_rate = theta0.suggest_learning_rate(model, batches, loss).value
        """,
        command="`theta0 rate TARGET --verify`",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 1e-7
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
            learning_rate = 0.1
        """,
        ignore="Where a pretrained network is to change only a little.",
        measured="The least ratio seen on a network that trains was 3e-4.",
    ),
)
