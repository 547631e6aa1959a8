"""What short runs say of a start, in sentences."""

import math
from collections.abc import Sequence

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.results import Finding, Severity
from theta0.experiments.probe import ExperimentRun, Probe


def unprobed(evidence: Evidence, found: Probe | None, findings: Sequence[Finding] = ()) -> list[str]:
    """What was not found out about training, as lines of `Diagnosis.not_measured`."""
    if not evidence.has_loss:
        return [
            "Gradients, and whether training lowers the loss: there is no loss; pass loss=, step=, or what the model "
            "computes its own .loss from."
        ]
    if not evidence.probe_steps:
        return [f"Whether training lowers the loss was not tried: {evidence.unprobed}."]
    if found is None:
        return ["Whether training lowers the loss was not tried: nothing finite can be trained here."]
    if found.reason:
        return [f"Whether training lowers the loss was not found out: {found.reason}."]
    trained, given = next((run for run in found.runs if run.outcome == "trains"), None), found.at(found.given)
    judged = any(f.code.startswith("learning-rate") and f.severity != "note" for f in findings)
    if trained is not None and given is not None and given.outcome != "trains" and not judged:
        both = f"{fall(given, found.first)}, and {fall(trained, found.first)}"
        return [f"Whether it trains at the rate given is undecided: {both}."]
    if trained is not None or found.fails:
        return []
    return [f"Whether it trains is undecided: {described(found)}."]


def described(found: Probe) -> str:
    """The best run of a probe, with what it is held against."""
    run = found.at(found.best)
    against = "" if found.constant is None else f", where outputs that ignore the input reach {found.constant:.3g}"
    if run is None:
        return f"at every rate tried ({rates(found)}) the loss diverges from {found.first:.3g}"
    return f"{fall(run, found.first)}{against}"


def fall(run: ExperimentRun, first: float) -> str:
    """What became of the loss in a run."""
    reached = f"{run.final:.3g}" if math.isfinite(run.final) else "no finite number"
    return (
        f"in {len(run.losses)} steps of {run.optimizer} at {run.rate:.2g} the loss goes from {first:.3g} to {reached}"
    )


def better_rate(severity: Severity, run: ExperimentRun, better: ExperimentRun, probe: Probe) -> Finding:
    """The finding that the rate of a run is too high or too low, since another one was seen to do better."""
    direction = "low" if run.rate < better.rate else "high"
    both = f"{fall(run, probe.first)}, and {fall(better, probe.first)}"
    proven = better.outcome == "trains"
    advice = f"Train at about {better.rate:.2g}." if proven else "No run was long enough to say which rate trains."
    return Finding(
        code=f"learning-rate-too-{direction}",
        severity=severity,
        layer="",
        value=run.rate / better.rate,
        quantity="rate over one that trains",
        threshold=1.0,
        message=f"The learning rate {run.rate:g} is too {direction}: {both}. {advice}",
        remedy="theta0 rate TARGET --verify",
        source="a trial of both rates",
        evidence=(run, better),
    )


def rates(found: Probe) -> str:
    """The rates that were tried, in order."""
    return ", ".join(f"{run.rate:.2g}" for run in sorted(found.runs, key=lambda run: run.rate))
