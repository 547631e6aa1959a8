"""How numbers, names and verdicts are put into words; every face of a result says the same."""

import math
import re
from collections.abc import Sequence

from theta0._progress import ENDED
from theta0._records import Table, by_layer
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.reports.causes import by_cause
from theta0.treatment.results import Run, Treatment

NETWORK_LABELS = {
    "loss": "loss",
    "loss_constant": "best constant prediction",
    "loss_uniform": "equal probabilities",
    "starved_class_share": "classes that are never predicted",
    "output_rms": "output size",
    "output_sample_std": "spread between samples",
    "gradient_agreement": "batches agree",
    "batches": "batches read",
}
BRIEF = frozenset(NETWORK_LABELS) - {"loss_uniform", "starved_class_share"}  # what a terminal has room for


def number(value: float, digits: int = 3) -> str:
    """A number in at most `digits` significant figures, for a table cell: `0.617`, `1.3e-9`, `64`, `inf`, `nan`."""
    if not math.isfinite(value):
        return "nan" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    if value == 0:
        return "0"
    if value == int(value) and abs(value) < 1e5:
        return str(int(value))
    if digits > 2 and 0.99 < abs(value) < 1 - 1e-6:  # a share: what is left to one tells two of them apart
        digits = max(digits, math.ceil(-math.log10(1 - abs(value)) - 1e-9))
    mantissa, exponent = f"{value:.{digits - 1}e}".split("e")
    if -3 <= int(exponent) < 5:
        return _trimmed(f"{value:.{max(digits - 1 - int(exponent), 0)}f}")
    return f"{_trimmed(mantissa)}e{int(exponent)}"


def _trimmed(decimal: str) -> str:
    return decimal.rstrip("0").rstrip(".") if "." in decimal else decimal


def share(value: float) -> str:
    """A share between 0 and 1, to two decimals unless it is too small for them: `0.92`, `1.00`, `3e-9`, `0`, `nan`."""
    return f"{value:.2f}" if 0.005 <= value <= 1 else number(value, 1)


def printable(text: str) -> str:
    """Text without control characters: a layer's name must not steer the terminal or break a page.

    Tabs and line ends become spaces, every other unprintable character U+FFFD.
    """
    return "".join(c if c.isprintable() else " " if c in "\t\r\n" else "\N{REPLACEMENT CHARACTER}" for c in text)


def shortened(name: str, width: int) -> str:
    """A layer's name in at most `width` characters; the end is kept, because it tells layers apart."""
    name = printable(name)
    return name if len(name) <= width else "…" + name[len(name) - width + 1 :]


def counted(amount: int, noun: str) -> str:
    """An amount and its noun: `1 error`, `3 layers`."""
    return f"{amount} {noun}" + ("" if amount == 1 else "s")


def counted_severities(findings: tuple[Finding, ...]) -> str:
    """How many findings there are of each severity: `2 errors, 1 warning`, or `no finding`."""
    amounts = [(sum(f.severity == severity for f in findings), severity) for severity in ("error", "warning", "note")]
    return ", ".join(counted(amount, severity) for amount, severity in amounts if amount) or "no finding"


def place(finding: Finding) -> str:
    """Where a finding begins: the layer's path, or `the whole network`."""
    return printable(finding.layer) or "the whole network"


def located(finding: Finding) -> str:
    """What and where a finding is: `activation-shift at hidden.1`; what has no place of its own, `broadcast-loss`."""
    return f"{printable(finding.code)} at {place(finding)}" if finding.layer else printable(finding.code)


def measured(finding: Finding) -> tuple[str, str, str]:
    """What a finding's number is, the number, and its threshold: `terms for each output `, `32`, ` (threshold 1)`.

    Of what any amount is too much the threshold is zero, and is left out.
    """
    quantity = f"{printable(finding.quantity)} " if finding.quantity else ""
    limit = f" (threshold {number(finding.threshold)})" if finding.threshold or not finding.quantity else ""
    return quantity, number(finding.value), limit


def extent(finding: Finding) -> str:
    """How far a finding reaches beyond the layer where it begins: `and 18 further layers`; empty for one place.

    Parameters count as the layer that has them.
    """
    further = [name for name in dict.fromkeys(map(_owner, finding.layers)) if name != _owner(finding.layer)]
    if len(further) == 1:
        return f"and {printable(further[0])}"
    return f"and {counted(len(further), 'further layer')}" if further else ""


def _owner(name: str) -> str:
    return re.sub(r"\.(in_proj_)?(weight|bias)(_\w+)?$", "", name)


OPEN = "Whether "  # how a line of `not_measured` begins that leaves a question of training open


def diagnosis_verdict(diagnosis: Diagnosis) -> str:
    """A diagnosis in one sentence."""
    if not diagnosis.records and not diagnosis.findings:
        return "Nothing was measured."
    counts = counted_severities(diagnosis.findings)
    if not diagnosis.healthy:
        first = next(f for f in diagnosis.findings if f.severity == "error")
        follow = next((len(c.consequences) for c in by_cause(diagnosis.findings) if c.finding is first), 0)
        others = f"; {_others(follow)} from it" if follow else ""
        return f"Not ready to train: {counts}. Fix first: {located(first)}{others}."
    open_ = "".join(f"; {clause}" for clause in left_open(diagnosis))
    if any(f.severity == "warning" for f in diagnosis.findings):
        said = f"Found: {counts}" if open_ else f"This network can train, but not as well as it could: {counts}"
        return f"{said}{open_}."
    if "loss" not in by_layer(diagnosis.records).get("", {}):
        open_ = "; no loss was given, so only the forward pass was seen"
    return "No problem was found" + (f" ({counts})" if diagnosis.findings else "") + open_ + "."


def left_open(diagnosis: Diagnosis) -> list[str]:
    """What a diagnosis leaves open, a clause each: `whether it trains is undecided`."""
    lines = [line.partition(": ")[0].rstrip(".") for line in diagnosis.not_measured if line.startswith(OPEN)]
    return [f"{printable(line[0].lower())}{printable(line[1:])}" for line in dict.fromkeys(lines)]


def _others(amount: int) -> str:
    return "another follows" if amount == 1 else f"{amount} others follow"


def finding_verdict(finding: Finding) -> str:
    """A finding in one line: how grave, what, where, and the number against its threshold."""
    return f"{finding.severity} {located(finding)}: {''.join(measured(finding))}"


def run_verdict(run: Run) -> str:
    """A short run in one line."""
    return f"{run_label(run)}: held-out loss {number(run.held_out)}, from {number(run.held_out_start)}"


def treatment_verdict(treatment: Treatment) -> str:
    """A treatment in one sentence."""
    remedy, treated, untreated = printable(treatment.remedy), treatment.treated, treatment.untreated
    if treatment.healthy:
        return "Nothing to fix: no error and no warning was found."
    if not treatment.kept:
        ended = ENDED in treatment.reason
        compared = f"{ENDED} before {remedy} was proven" if ended else f"{remedy} was no better"
        tried = compared if remedy else "no remedy was tried"
        return f"Nothing was kept, the model is bit for bit as given: {tried}."
    if treated is None or untreated is None:
        return f"{remedy} was kept."
    plain, treated_losses = zip(*(treatment.confirmations or ((untreated, treated),)), strict=True)
    orders = f" on average over {len(treated_losses)} data orders" if len(treated_losses) > 1 else ""
    steps = counted(len(treated.losses), "step")
    return (
        f"{remedy} was kept: held-out loss {number(_mean(treated_losses))} after {steps}{orders}, "
        f"where the start as given is at {number(_mean(plain))}."
    )


def _mean(runs: Sequence[Run]) -> float:
    return sum(run.held_out for run in runs) / len(runs)


def run_label(run: Run) -> str:
    """A short run's setting: `100 steps of momentum at rate 0.1`."""
    return f"{counted(len(run.losses), 'step')} of {printable(run.optimizer)} at rate {number(run.rate)}"


def network_facts(diagnosis: Diagnosis, *, brief: bool = False) -> list[tuple[str, str]]:
    """The numbers about the whole network: labels and the numbers in words, in the order measured."""
    facts = by_layer(diagnosis.records).get("", {})
    units = {record.quantity: record.unit for record in diagnosis.records if not record.layer}
    labels = [
        (NETWORK_LABELS.get(q, printable(q).replace("_", " ")), value, units[q])
        for q, value in facts.items()
        if q in BRIEF or not brief
    ]
    return [
        (label, "none" if value == -math.inf else f"{number(value)} {printable(unit)}".rstrip())  # without a minimum
        for label, value, unit in labels
    ]


def probe_lines(diagnosis: Diagnosis) -> list[str]:
    """What short runs showed, and what was not measured, a sentence each."""
    probe, lines = diagnosis.probe, [printable(line) for line in diagnosis.not_measured]
    trained = [] if probe is None else [run for run in probe.runs if run.outcome == "trains"]
    if probe is None or not trained:
        return lines
    run = next((run for run in trained if run.rate == probe.given), trained[0])
    fell = f"the loss falls from {number(probe.first)} to {number(run.final)} in {counted(len(run.losses), 'step')}"
    below = "" if probe.constant is None else f" (without looking at the inputs: {number(probe.constant)})"
    return [f"Probe: {fell} of {printable(run.optimizer)} at {number(run.rate)}{below}.", *lines]


def layers_of(diagnosis: Diagnosis) -> Table:
    """What was measured at each layer, without the whole network's numbers."""
    table = by_layer(diagnosis.records)
    return {layer: row for layer, row in table.items() if layer and "preactivation_variance" in row}


def begins_at(findings: tuple[Finding, ...]) -> dict[str, list[int]]:
    """The numbers, from 1, of the findings that begin at each layer."""
    numbers: dict[str, list[int]] = {}
    for index, finding in enumerate(findings, start=1):
        if finding.layer:
            numbers.setdefault(finding.layer, []).append(index)
    return numbers


def fate(finding: Finding, after: Diagnosis | None) -> str:
    """A treated finding: `gone`, `remains`, `remains at <layer>`, `remains as a <severity>`, or `untreated`."""
    if after is None:
        return "untreated"
    same = [other for other in after.findings if other.code == finding.code]
    if not same:
        return "gone"
    there = next((other for other in same if other.layer == finding.layer), same[0])
    if there.severity != finding.severity:
        return f"remains as {'an' if there.severity == 'error' else 'a'} {there.severity}"
    return "remains" if there.layer == finding.layer else f"remains at {place(there)}"
