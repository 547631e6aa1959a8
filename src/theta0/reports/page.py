"""A result as one HTML file that needs neither script nor network."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from theta0._records import Shown
from theta0._version import __version__, help_on
from theta0.comparison.results import Comparison
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.rules import rule_of
from theta0.explanation.results import Explanation
from theta0.reports import canvas
from theta0.reports.advice import worded
from theta0.reports.causes import by_cause
from theta0.reports.comparison import COLUMNS as BOARD
from theta0.reports.comparison import comparison_rows, comparison_verdict, failures, notes
from theta0.reports.explanation import explanation_rows
from theta0.reports.figures import Panel, Starts, spectrum_panel
from theta0.reports.folding import SHARES
from theta0.reports.marks import out_of_bounds
from theta0.reports.plots import (
    comparison_runs,
    explanation_panels,
    layer_panels,
    rate_panels,
    run_panels,
    treatment_runs,
)
from theta0.reports.rate import RATE_COLUMNS, rate_numbers, rate_rows, rate_verdict
from theta0.reports.sources import named_in
from theta0.reports.spectrum import spectrum_rows, spectrum_verdict
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
    treatment_verdict,
)
from theta0.spectra import SpectrumChange
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
    "relative_gradient": "‖∇W‖/‖W‖",
}
THEMED = {
    canvas.GIVEN: "var(--given)",
    canvas.TREATED: "var(--treated)",
    canvas.INK: "var(--ink)",
    canvas.GRID: "var(--line)",
    canvas.MARK: "var(--muted)",
    canvas.THIRD: "var(--third)",
    canvas.FOURTH: "var(--fourth)",
    canvas.FIFTH: "var(--fifth)",
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

    A row has the numbers of the findings that begin at a layer, its name, its type, and a cell per column: the number
    and, where it is out of bounds, how grave that is.
    """

    title: str
    columns: list[str]
    rows: list[tuple[str, str, str, list[tuple[str, str]]]]


@dataclass(frozen=True)
class Content:
    """What the template lays out: texts, escaped by it, and drawings.

    `tone` is `good`, `warning` or `error`; `tiles` are a start's name, its held-out loss, and what that was measured
    after; `proof` is the chart of the short runs; `numbers` are label, number as given, number treated; `attempts` are
    remedy, held-out loss, run and reason; `board` is a table of runs with its `columns` and heading.
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
    board_title: str = "Leaderboard"
    attempts_title: str = "What was tried"


_FILTERS = (by_cause, counted_severities, extent, located, number, printable)


def write_page(path: str | Path, result: Shown, *, target: str) -> Path:
    """Write a result as one self-contained HTML page, and return the file; folders on the way are made.

    Returns:
        The file's path.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> import pathlib, tempfile
        >>> from theta0 import diagnose
        >>> diagnosis = diagnose(model, batches, "cross_entropy", probe_steps=0)
        >>> write_page(pathlib.Path(tempfile.mkdtemp()) / "page.html", diagnosis, target="train.py").name
        'page.html'
    """
    path = Path(path)
    html = page_of(result, target=target)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(html, encoding="utf-8", newline="\n")
    return path


def page_of(result: Shown, *, target: str) -> str:
    """A result as one self-contained HTML page.

    Args:
        result: a diagnosis, a treatment, an explanation, a comparison, a learning rate or a spectrum.
        target: as on the command line, which advice then names; the empty string words advice as Python.

    Returns:
        The page.
    """
    loader = PackageLoader("theta0.reports", ".")
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    environment.filters |= {function.__name__: function for function in _FILTERS} | {"themed": _themed}
    environment.filters |= {"help_on": help_on, "documented": lambda code: rule_of(code) is not None}
    environment.filters |= {"linked": _linked, "advice": lambda text: worded(printable(text), target)}
    template = environment.get_template("page.html.j2")
    return template.render(page=_CONTENTS[type(result)](result), target=printable(target), version=__version__)


def _themed(svg: str) -> Markup:
    """A drawing whose colours follow the page's light or dark mode.

    It is not to be escaped: matplotlib has escaped the names in it.
    """
    for colour, variable in THEMED.items():
        svg = svg.replace(colour, variable)
    return Markup(svg)


def _linked(text: str) -> Markup:
    """Text in which sources that have an address are links to it."""
    pieces = [
        Markup('<a href="{}" target="_blank" rel="noopener noreferrer">{}</a>').format(source.link, piece)
        if source is not None and source.link
        else escape(piece)
        for piece, source in named_in(printable(text))
    ]
    return Markup("").join(pieces)


def _comparison_content(found: Comparison) -> Content:
    """The leaderboard, and the curves of the default start and of the best ones."""
    failed = [(name, "–", "", reason) for name, reason in failures(found)]
    return Content(
        kind="comparison",
        verdict=comparison_verdict(found),
        tone="good" if found.complete else "warning",
        cost=number(found.cost),
        reason=notes(found),
        proof=run_panels(comparison_runs(found)),
        attempts=failed,
        board=comparison_rows(found),
        columns=BOARD,
        attempts_title="Not raced, or diverged",
    )


def _explanation_content(found: Explanation) -> Content:
    """The proven cause, the runs of the first seed with and without it, and every run."""
    findings = () if found.diagnosis is None else found.diagnosis.findings
    first, stop, more = printable(found.verdict).partition(". ")
    left = "; ".join(f"{printable(path)}: {why}" for path, why in found.left_out.items())
    return Content(
        kind="explanation",
        verdict=first + stop.strip(),
        tone="good" if found.trains else "error" if found.proof is None else "warning",
        cost=number(found.cost),
        sections=[FindingSection("Findings at the start as given", findings)],
        reason=" ".join([*([more] if more else []), *([f"Not re-initialized: {left}."] if left else [])]),
        proof=explanation_panels(found),
        board=explanation_rows(found),
        columns=("run with", "steps", "rate", "loss"),
        board_title="Runs",
    )


def _rate_content(found: LearningRate) -> Content:
    """The suggestion, what it rests on, and the runs that chose it."""
    return Content(
        kind="learning rate",
        verdict=rate_verdict(found),
        tone="warning" if found.value is None else "good",
        cost=number(found.cost),
        facts=rate_numbers(found),
        reason=" ".join(map(printable, found.advice)),
        proof=rate_panels(found),
        board=rate_rows(found),
        columns=RATE_COLUMNS,
        board_title="Runs",
    )


def _spectrum_content(found: SpectrumChange) -> Content:
    """Amplitudes by octave, and frequency by frequency as curves."""
    return Content(
        kind="spectrum",
        verdict=spectrum_verdict(found),
        tone="note",
        cost="",
        proof=[spectrum_panel(found)],
        board=spectrum_rows(found),
        columns=("cycles per segment", "start", *map(printable, found.trained)),
        board_title="Amplitudes by octave",
    )


def _diagnosis_content(diagnosis: Diagnosis) -> Content:
    severities = {finding.severity for finding in diagnosis.findings}
    return Content(
        kind="diagnosis",
        verdict=diagnosis_verdict(diagnosis),
        tone="error" if "error" in severities else "warning" if "warning" in severities else "good",
        cost=number(diagnosis.cost),
        sections=[FindingSection("Findings", diagnosis.findings)],
        panels=layer_panels([("as given", diagnosis)]),
        tables=_tables([("as given", diagnosis)]),
        facts=network_facts(diagnosis),
        reason=" ".join(probe_lines(diagnosis)),
    )


def _treatment_content(treatment: Treatment) -> Content:
    before, after, runs = treatment.before, treatment.after, treatment_runs(treatment)
    treated = runs[1][0]
    starts = [("as given", before), *([(treated, after)] if after else [])]
    fates = [fate(finding, after) for finding in before.findings] if after else []
    sections = [FindingSection("Findings at the start as given", before.findings, fates)]
    if after:
        sections.append(FindingSection(f"Findings at the treated start: {treated}", after.findings))
    return Content(
        kind="treatment",
        verdict=treatment_verdict(treatment),
        tone="good" if treatment.kept else "warning",
        cost=number(treatment.cost),
        sections=sections,
        panels=layer_panels(starts),
        tables=_tables(starts),
        reason=printable(treatment.reason),
        tiles=[_tile(label, run, len(treatment.confirmations)) for label, run in runs if run],
        proof=run_panels(runs),
        numbers=main_numbers(treatment),
        treated=treated,
        attempts=[_attempt(attempt) for attempt in treatment.attempts],
    )


def _tables(starts: Starts) -> list[LayerTable]:
    tables = [(label, diagnosis, layers_of(diagnosis)) for label, diagnosis in starts]
    return [_layer_table(label if len(tables) > 1 else "", diagnosis) for label, diagnosis, table in tables if table]


def _layer_table(label: str, diagnosis: Diagnosis) -> LayerTable:
    table, begins = layers_of(diagnosis), begins_at(diagnosis.findings)
    marked = out_of_bounds(diagnosis, table)

    def cell(layer: str, row: dict[str, float], quantity: str) -> tuple[str, str]:
        show = share if quantity in SHARES else number
        return show(row[quantity]) if quantity in row else "–", marked.get((layer, quantity), "")

    columns = [quantity for quantity in COLUMNS if any(quantity in row for row in table.values())]
    rows = [
        (
            ", ".join(map(str, begins.get(layer, []))),
            printable(layer),
            printable(diagnosis.layer_types.get(layer, "")),
            [cell(layer, row, q) for q in columns],
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


_CONTENTS: dict[type, Callable[[Any], Content]] = {
    Diagnosis: _diagnosis_content,
    Treatment: _treatment_content,
    Comparison: _comparison_content,
    Explanation: _explanation_content,
    LearningRate: _rate_content,
    SpectrumChange: _spectrum_content,
}
