"""A result as one HTML file that needs neither script nor network."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup

from theta0.comparison.results import Comparison
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.experiments.probe import ExperimentRun
from theta0.explanation.results import Explanation
from theta0.reports import canvas
from theta0.reports.causes import by_cause
from theta0.reports.comparison import COLUMNS as BOARD
from theta0.reports.comparison import comparison_rows, comparison_verdict, failures, notes
from theta0.reports.explanation import explanation_rows
from theta0.reports.figures import Panel, Starts, box_panels, loss_panel, share_panel
from theta0.reports.folding import SHARES
from theta0.reports.summary import main_numbers
from theta0.reports.wording import (
    begins_at,
    counted,
    counted_severities,
    diagnosis_verdict,
    extent,
    fate,
    layers_of,
    located,
    network_facts,
    number,
    printable,
    probe_lines,
    run_label,
    share,
    theta0_version,
    treatment_verdict,
)
from theta0.treatment.results import Attempt, Run, Treatment

COLUMNS = {
    "preactivation_mean": "mean z",
    "preactivation_variance": "var z",
    "shift_share": "shift share",
    "sample_share": "sample share",
    "preactivation_max": "max |z|",
    "saturated_share": "saturated",
    "dead_share": "dead",
    "gradient_variance": "var ∇z",
    "forward_factor": "forward factor",
    "backward_factor": "backward factor",
    "weight_gradient_norm": "‖∇W‖",
}
THEMED = {
    canvas.GIVEN: "var(--given)",
    canvas.TREATED: "var(--treated)",
    canvas.INK: "var(--ink)",
    canvas.GRID: "var(--line)",
    canvas.MARK: "var(--muted)",
}


@dataclass(frozen=True)
class FindingSection:
    """Findings under one heading, and what became of each where something was treated."""

    title: str
    findings: tuple[Finding, ...]
    fates: Sequence[str] = ()


@dataclass(frozen=True)
class LayerTable:
    """Every layer in numbers.

    A row has the numbers of the findings that begin at a layer, its name, and a cell per column.
    """

    title: str
    columns: list[str]
    rows: list[tuple[str, str, list[str]]]


@dataclass(frozen=True)
class Content:
    """What the template lays out: texts, escaped by it, and drawings.

    `tone` is `good`, `warning` or `error`; `tiles` are a start's name, its held-out loss, and what that was measured
    after; `proof` is the chart of the short runs; `numbers` are label, number as given, number treated; `attempts` are
    remedy, held-out loss, run and reason; `board` is a race's leaderboard, with its `columns`.
    """

    kind: str
    verdict: str
    tone: str
    cost: str
    sections: Sequence[FindingSection] = ()
    panels: Sequence[Panel] = ()
    tables: Sequence[LayerTable] = ()
    reason: str = ""
    facts: Sequence[tuple[str, str]] = ()
    tiles: Sequence[tuple[str, str, str]] = ()
    proof: Sequence[Panel] = ()
    numbers: Sequence[tuple[str, str, str]] = ()
    treated: str = ""
    attempts: Sequence[tuple[str, str, str, str]] = ()
    board: Sequence[tuple[str, ...]] = ()
    columns: Sequence[str] = ()


_FILTERS = (by_cause, counted_severities, extent, located, number, printable)


def write_page(path: str | Path, result: Diagnosis | Treatment | Comparison | Explanation, *, target: str) -> Path:
    """Write a result as one self-contained HTML page, and return the file; folders on the way are made."""
    path = Path(path)
    loader = PackageLoader("theta0.reports", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {function.__name__: function for function in _FILTERS} | {"themed": _themed}
    template = environment.get_template("page.html.j2")
    html = template.render(page=_content(result), target=printable(target), version=theta0_version())
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8", newline="\n")
    return path


def _themed(svg: str) -> Markup:
    """A drawing whose colours follow the page's light or dark mode.

    It is not to be escaped: matplotlib has escaped the names in it.
    """
    for colour, variable in THEMED.items():
        svg = svg.replace(colour, variable)
    return Markup(svg)


def _content(result: Diagnosis | Treatment | Comparison | Explanation) -> Content:
    if isinstance(result, Explanation):
        return _explanation_content(result)
    if isinstance(result, Diagnosis):
        return _diagnosis_content(result)
    return _comparison_content(result) if isinstance(result, Comparison) else _treatment_content(result)


def _comparison_content(found: Comparison) -> Content:
    """The leaderboard, and the curves of the winner and of the default start, or of the second."""
    shown = [s for s in found.standings if s.start == "default" and s is not found.winner] or found.standings[1:2]
    loss = loss_panel([(standing.start, standing.runs[0]) for standing in [*shown, *found.standings[:1]]])
    failed = [(name, "–", "", reason) for name, reason in failures(found)]
    return Content(
        kind="comparison",
        verdict=comparison_verdict(found),
        tone="good" if found.complete else "warning",
        cost=number(found.cost),
        reason=notes(found),
        proof=[loss] if loss else [],
        attempts=failed,
        board=comparison_rows(found),
        columns=BOARD,
    )


def _explanation_content(found: Explanation) -> Content:
    """The proven cause, the runs of the first seed with and without it, and every run."""
    proof = found.proof
    pairs = [] if proof is None else [("as given", proof.given[0]), (printable(proof.change), proof.changed[0])]
    loss = loss_panel([(label, _as_run(run)) for label, run in pairs])
    findings = () if found.diagnosis is None else found.diagnosis.findings
    left = "; ".join(f"{printable(path)}: {why}" for path, why in found.left_out.items())
    return Content(
        kind="comparison",
        verdict=printable(found.verdict),
        tone="good" if found.trains else "warning",
        cost=number(found.cost),
        sections=[FindingSection("Findings at the start as given", findings)],
        reason=f"Not re-initialized: {left}." if left else "",
        proof=[loss] if loss else [],
        board=explanation_rows(found),
        columns=("run with", "steps", "rate", "loss"),
    )


def _as_run(run: ExperimentRun) -> Run:
    return Run(run.optimizer, run.rate, run.losses, run.final, run.losses[0], float(len(run.losses)))


def _diagnosis_content(diagnosis: Diagnosis) -> Content:
    severities = {finding.severity for finding in diagnosis.findings}
    return Content(
        kind="diagnosis",
        verdict=diagnosis_verdict(diagnosis),
        tone="error" if "error" in severities else "warning" if "warning" in severities else "good",
        cost=number(diagnosis.cost),
        sections=[FindingSection("Findings", diagnosis.findings)],
        panels=_panels([("as given", diagnosis)]),
        tables=_tables([("as given", diagnosis)]),
        facts=network_facts(diagnosis),
        reason=" ".join(probe_lines(diagnosis)),
    )


def _treatment_content(treatment: Treatment) -> Content:
    before, after, remedy = treatment.before, treatment.after, printable(treatment.remedy)
    treated = remedy if treatment.kept or not remedy else f"{remedy} (not kept)"
    runs = [("as given", treatment.untreated), (treated, treatment.treated)]
    starts = [("as given", before), *([(treated, after)] if after else [])]
    fates = [fate(finding, after) for finding in before.findings] if after else []
    sections = [FindingSection("Findings at the start as given", before.findings, fates)]
    if after:
        sections.append(FindingSection(f"Findings at the treated start: {treated}", after.findings))
    loss = loss_panel(runs)
    return Content(
        kind="treatment",
        verdict=treatment_verdict(treatment),
        tone="good" if treatment.kept else "warning",
        cost=number(treatment.cost),
        sections=sections,
        panels=_panels(starts),
        tables=_tables(starts),
        reason=printable(treatment.reason),
        tiles=[_tile(label, run, len(treatment.confirmations)) for label, run in runs if run],
        proof=[loss] if loss else [],
        numbers=main_numbers(treatment),
        treated=treated,
        attempts=[_attempt(attempt) for attempt in treatment.attempts],
    )


def _panels(starts: Starts) -> list[Panel]:
    shares = [share_panel(starts, quantity) for quantity in ("shift_share", "sample_share")]
    boxes = [*box_panels(starts, "preactivation"), *box_panels(starts, "gradient")]
    return [*boxes, *(panel for panel in shares if panel)]


def _tables(starts: Starts) -> list[LayerTable]:
    tables = [(label, diagnosis, layers_of(diagnosis)) for label, diagnosis in starts]
    return [_layer_table(label if len(tables) > 1 else "", diagnosis) for label, diagnosis, table in tables if table]


def _layer_table(label: str, diagnosis: Diagnosis) -> LayerTable:
    table, begins = layers_of(diagnosis), begins_at(diagnosis.findings)
    columns = [quantity for quantity in COLUMNS if any(quantity in row for row in table.values())]
    rows = [
        (
            ", ".join(map(str, begins.get(layer, []))),
            printable(layer),
            [(share if q in SHARES else number)(row[q]) if q in row else "–" for q in columns],
        )
        for layer, row in table.items()
    ]
    title = f"All {counted(len(rows), 'layer')} in numbers" if len(rows) > 1 else "The layer in numbers"
    return LayerTable(f"{title}, {label}" if label else title, [COLUMNS[q] for q in columns], rows)


def _tile(label: str, run: Run, orders: int) -> tuple[str, str, str]:
    which = f", first of {orders} data orders" if orders > 1 else ""
    said = f"held-out loss after {run_label(run)}, from {number(run.held_out_start)}{which}"
    return label, number(run.held_out), said


def _attempt(attempt: Attempt) -> tuple[str, str, str, str]:
    held_out, run = (number(attempt.run.held_out), run_label(attempt.run)) if attempt.run else ("–", "not run")
    return printable(attempt.remedy), held_out, run, printable(attempt.reason)
