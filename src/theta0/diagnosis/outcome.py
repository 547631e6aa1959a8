"""What short runs say of a start, in sentences."""

import math

from theta0.diagnosis.evidence import Evidence
from theta0.experiments.probe import ExperimentRun, Probe


def unprobed(evidence: Evidence, found: Probe | None) -> list[str]:
    """What was not found out about training, as lines of `Diagnosis.not_measured`."""
    if not evidence.has_loss:
        return [
            "Gradients, and whether training lowers the loss: there is no loss; pass loss=, step=, or what the model "
            "computes its own .loss from."
        ]
    if not evidence.probe_steps:
        return ["Whether training lowers the loss was not tried: the probe was turned off."]
    if found is None:
        return ["Whether training lowers the loss was not tried: nothing finite can be trained here."]
    if found.reason:
        return [f"Whether training lowers the loss was not found out: {found.reason}."]
    if any(run.outcome == "trains" for run in found.runs) or found.fails:
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


def rates(found: Probe) -> str:
    """The rates that were tried, in order."""
    return ", ".join(f"{run.rate:.2g}" for run in sorted(found.runs, key=lambda run: run.rate))
