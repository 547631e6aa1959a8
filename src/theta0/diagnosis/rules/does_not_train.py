"""Short runs that do not come below what outputs reach that ignore the input, at any rate, nor learn a few samples."""

import itertools
import math
from collections.abc import Sequence
from dataclasses import replace

from theta0.diagnosis.evidence import Evidence
from theta0.diagnosis.outcome import described, rates
from theta0.diagnosis.results import MEASURED, Finding
from theta0.diagnosis.rule import Place, Rule, RuleDoc
from theta0.experiments.probe import CLOSING, LEARNT, ONE_BATCH, Probe
from theta0.experiments.zero_inputs import changed_without_data

FAINT = 20.0  # times smaller, by no weight
_NAMES = {
    "stuck": "stuck",
    "slow": "slower than it would take to reach a constant",
    "diverges": "diverging",
}


def judge(evidence: Evidence) -> Finding | None:
    """The loss of the best short run."""
    probe = evidence.probe
    if probe is None or not probe.fails:
        return None
    best = probe.at(probe.best)
    outcome = _NAMES.get(best.outcome if best is not None else "diverges", "stuck")
    return Finding(
        code="does-not-train",
        severity="error",
        layer="",
        value=float("inf") if best is None else best.final,
        quantity="best loss",
        threshold=probe.level,
        message=f"Training is {outcome}: {described(probe)}.",
        remedy="theta0 explain TARGET",
        source=MEASURED,
        evidence=probe.runs,
    )


def revise(finding: Finding, others: Sequence[Finding], evidence: Evidence) -> Finding:
    """Without another finding: that the cause is not known, and what was excluded."""
    probe = evidence.probe
    if probe is None or any(other.severity != "note" for other in others):
        return finding
    message = f"{finding.message} The cause is not known. Excluded: {excluded(probe, evidence)}."
    layer, suspicion = _faint(evidence)
    return replace(finding, layer=layer, message=message + suspicion)


def _faint(evidence: Evidence) -> tuple[str, str]:
    """The layer before which the signal shrinks most, though no weight is applied there, and what to look at."""
    found = []
    for before, behind in itertools.pairwise(link for link in evidence.links if link.rms > 0):
        name = f"{behind.layer.partition('#')[0]}.weight"
        weight, size = evidence.parameters.get(name), evidence.table.get(name, {}).get("value_rms", 0.0)
        if weight is not None and weight.dim() > 1 and size > 0:
            reaching = behind.rms / (size * math.sqrt(weight[0].numel()))
            found.append((before.rms / reaching, before.layer, behind.layer))
    times, before_layer, layer = max(found, default=(0.0, "", ""))
    if times < FAINT:
        return "", ""
    return layer, (
        f" The signal that reaches {layer!r} is {times:.0f} times smaller than the output of {before_layer!r}, and no "
        "weight makes it so: look first at what is computed between them (a softmax, a mean or a norm over too much)."
    )


def excluded(probe: Probe, evidence: Evidence) -> str:
    """What the experiments rule out, joined by semicolons."""
    found = [f"the learning rate ({rates(probe)} were tried)"]
    if probe.fits_one_batch is False:
        found.append(f"data that are too many or too noisy ({ONE_BATCH} samples alone are not learned either)")
    change = changed_without_data(evidence.model, evidence.batches[0])
    evidence.spend(2 / 3)
    if change is not None and change > 0:
        found.append(f"inputs that do not reach the output (without them it changes by {change:.2g} of its size)")
    return "; ".join(found)


RULE = Rule(
    code="does-not-train",
    judge=judge,
    place=Place.OUTCOME,
    revise=revise,
    outcome=True,
    doc=RuleDoc(
        meaning="theta0 trained the network for a few dozen steps, at up to five learning rates, and the loss never "
        "came below what one answer for all inputs reaches (for classes: their frequencies), nor was it on its way "
        "there. Even a few samples alone, which any network that works can memorize, were not learned. A long "
        "run would most likely be wasted.",
        why="This is a symptom, not a cause. Where other findings stand above it, fix these first. Where there are "
        "none, theta0 knows no rule for what is wrong; the message says what was excluded. Compare a few inputs "
        "with their labels by eye, print the loss on a batch where you know the answer, see that outputs change "
        "with the inputs, and run `theta0 explain`.",
        numbers=(
            (
                "the mean loss of the last steps of a run, compared with the loss of the best outputs that are the "
                f"same for every sample, minus {LEARNT:.0%} of what there is to learn below it",
                f"error if all of these hold: no rate gets below it; no run goes {CLOSING:.0%} of the way there in "
                f"its second half; {ONE_BATCH} samples trained alone are not half learned",
                "judgement",
            ),
            (
                "where no other finding stands beside it: the root mean square of a layer's output, divided by that "
                "of what reaches the next layer",
                f"the layer is named from {FAINT:g}",
                "judgement",
            ),
        ),
        fix="nn.init.xavier_uniform_(model[2].weight)",
        command="`theta0 explain TARGET` finds the change that makes it train; `--no-probe` leaves the runs out.",
        ill="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
            with torch.no_grad():
                model[2].weight.zero_()
                model[2].bias.zero_()
                model[4].weight.zero_()
        """,
        healthy="""
            model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 16), nn.Tanh(), nn.Linear(16, 3))
            targets = inputs[:, :3].argmax(1)
            batches = [(inputs, targets)]
        """,
        ignore="You can ignore it where training starts from a network that has already learned what these "
        "batches contain.",
        measured="A run that is on its way, or a start from which a few samples are learned, is called undecided, "
        "which is a line among what was not measured: a hundred gradients are too few to tell a slow network from an "
        "ill one. Where no other cause is an error, the first warning becomes one, since the runs confirm it.",
    ),
)
