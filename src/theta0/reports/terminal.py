"""What a result looks like on a terminal: a sentence, the findings, and a table, on one screen of 80 columns."""

import io
import statistics
from collections.abc import Iterable

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from theta0._records import Table
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.reports.causes import by_cause
from theta0.reports.folding import SHARES, Fold, folded
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
    place,
    printable,
    probe_lines,
    run_label,
    share,
    shortened,
    treatment_verdict,
)
from theta0.treatment.results import Attempt, Treatment

WIDTH = 80
SCREEN = 48
FULL_FINDINGS = 28  # lines after which a finding takes one line: the table needs the rest of the screen
FATES = 6  # findings of which a treatment's screen says what became of them
NAME_WIDTH = 24
STYLES = {"error": "bold red", "warning": "bold yellow", "note": "bold cyan"}
COLUMNS = {
    "preactivation_variance": "var z",
    "shift_share": "shift",
    "sample_share": "samples",
    "saturated_share": "sat.",
    "dead_share": "dead",
    "gradient_variance": "var ∇z",
}
LEGEND = {
    "preactivation_variance": "z: preactivation",
    "shift_share": "shift: share of var z between units",
    "sample_share": "samples: share between samples",
    "saturated_share": "sat., dead: shares of units",
    "gradient_variance": "∇z: gradient at z",
}


def diagnosis_report(diagnosis: Diagnosis, *, target: str) -> RenderableType:
    """A diagnosis for the terminal: verdict, findings, then one row per layer, long runs of layers folded.

    Returns:
        What a rich console prints; at most 48 lines at 80 columns.
    """
    head: list[RenderableType] = [_verdict(target, diagnosis_verdict(diagnosis), _tone(diagnosis))]
    facts = [f"{label} {value}" for label, value in network_facts(diagnosis, brief=True)]
    facts.append(f"cost {number(diagnosis.cost)} gradients")
    head.append(Text(" · ".join(facts), style="dim"))
    if diagnosis.findings:
        head.extend([Text(), *_findings(diagnosis.findings, FULL_FINDINGS)])
    head.extend(Text(line, style="dim") for line in probe_lines(diagnosis))
    table = layers_of(diagnosis)
    if not table:
        return Group(*head)
    columns = [quantity for quantity in COLUMNS if any(quantity in row for row in table.values())]
    legend = Text(" · ".join(text for quantity, text in LEGEND.items() if quantity in columns), style="dim")
    overhead = 2 + _height([legend])  # the table's own head and rule
    rows = max(SCREEN - _height(head) - overhead - 2, 8)
    begins = begins_at(diagnosis.findings)
    grid = _layer_grid(table, columns, folded(table, columns, begins, rows), diagnosis.findings)
    return Group(*head, Text(), grid, legend)


def treatment_report(treatment: Treatment, *, target: str) -> RenderableType:
    """A treatment for the terminal: what was kept and why, both short runs, the main numbers and the findings.

    Returns:
        What a rich console prints; at most 48 lines at 80 columns unless very many remedies were tried.
    """
    parts: list[RenderableType] = [
        _verdict(target, treatment_verdict(treatment), "bold green" if treatment.kept else "bold yellow"),
        Text(printable(treatment.reason)),
        Text(),
        _comparison_grid(treatment),
    ]
    if treatment.before.findings:
        parts.extend([Text(), _fates(treatment)])
    tail: list[RenderableType] = [Text(f"\ncost {number(treatment.cost)} gradients", style="dim")]
    if treatment.attempts:
        tail = [Text(), _attempts_grid(treatment.attempts), *tail]
    remaining = treatment.after.findings if treatment.after and treatment.kept else ()
    if remaining:
        room = SCREEN - _height([*parts, *tail]) - 2
        parts.extend([Text(), Text("Left at the treated start", style="bold"), *_findings(remaining, room)])
    parts.extend(tail)
    return Group(*parts)


def _verdict(target: str, sentence: str, style: str) -> Text:
    return Text.assemble((printable(target), "bold"), ": ", (sentence, style))


def _tone(diagnosis: Diagnosis) -> str:
    worst = {finding.severity for finding in diagnosis.findings}
    return "bold red" if "error" in worst else "bold yellow" if "warning" in worst else "bold green"


def _height(parts: Iterable[RenderableType]) -> int:
    console = Console(width=WIDTH, file=io.StringIO())
    return sum(len(console.render_lines(part)) for part in parts)


def _findings(findings: tuple[Finding, ...], room: int) -> list[RenderableType]:
    """Causes in full as long as they fit into `room` lines, then in one line each, then only counted.

    What follows from a cause is one line each below it.
    """
    parts: list[RenderableType] = []
    left = len(findings)
    for caused in by_cause(findings):
        follows = [_consequence(*below) for below in caused.consequences]
        brief: list[RenderableType] = [_finding_head(caused.number, caused.finding), *follows]
        full = [brief[0], *_finding_body(caused.finding), *follows]
        left -= len(brief)
        used = _height(parts)
        if used + _height(full) + left <= room or (not parts and _height(full) < room):
            parts.extend(full)
        elif used + len(brief) < room or (left == 0 and used + len(brief) <= room):
            parts.extend(brief)
        else:
            hidden = counted(left + len(brief), "further finding")
            parts.append(Text(f"… {hidden}, all of them in --html and --json", style="dim"))
            break
    return parts


def _consequence(index: int, finding: Finding) -> Text:
    mark, value = "   follows from it: ", f" ({number(finding.value)})"
    what = f" {printable(finding.code)} {'at' if finding.layer else 'of'} "
    room = WIDTH - len(f"{mark}{index} {finding.severity}{what}{value}")
    severity = (finding.severity, STYLES[finding.severity])
    return Text.assemble((f"{mark}{index} ", "dim"), severity, what + shortened(place(finding), max(room, 12)), value)


def _finding_head(index: int, finding: Finding) -> Text:
    value, threshold = number(finding.value), f" (threshold {number(finding.threshold)})"
    mark = f"{index:>2} "
    what = f" {printable(finding.code)} {'at' if finding.layer else 'of'} "
    room = WIDTH - len(mark + finding.severity + what + ": " + value + threshold)
    where = what + shortened(place(finding), max(room, 12))
    severity = (finding.severity, STYLES[finding.severity])
    return Text.assemble((mark, "bold"), severity, where, ": ", (value, "bold"), threshold)


def _finding_body(finding: Finding) -> list[RenderableType]:
    parts: list[RenderableType] = [Padding(Text(printable(finding.message)), (0, 0, 0, 3))]
    if finding.source_line:
        parts.append(Padding(Text(printable(finding.source_line), style="dim"), (0, 0, 0, 3)))
    if finding.remedy:
        parts.append(Padding(Text("→ " + printable(finding.remedy), style="green"), (0, 0, 0, 3)))
    return parts


def _layer_grid(table: Table, columns: list[str], folds: list[Fold], findings: tuple[Finding, ...]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    grid.add_column("", justify="right", no_wrap=True, style="bold")
    grid.add_column("layer", no_wrap=True)
    for quantity in columns:
        grid.add_column(COLUMNS[quantity], justify="right", no_wrap=True)
    begins = begins_at(findings)
    styles = {layer: STYLES[f.severity] for f in reversed(findings) for layer in (f.layer, *f.layers)}
    for fold in folds:
        if len(fold.layers) == 1:
            layer = fold.layers[0]
            marks = Text(_marks(begins.get(layer, [])), style=styles.get(layer, ""))
            cells = [_cell(table[layer].get(quantity), quantity) for quantity in columns]
            grid.add_row(marks, Text(shortened(layer, NAME_WIDTH)), *cells)
        else:
            rows = [table[layer] for layer in fold.layers]
            label = f"… {len(rows)} layers {'alike' if fold.alike else 'between'}"
            cells = [_typical(rows, quantity) if fold.alike else "" for quantity in columns]
            grid.add_row("", Text(label, style="dim"), *(Text(cell, style="dim") for cell in cells))
    return grid


def _marks(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) if len(numbers) <= 3 else f"{numbers[0]},{numbers[1]},+{len(numbers) - 2}"


def _typical(rows: list[dict[str, float]], quantity: str) -> str:
    values = [row[quantity] for row in rows if quantity in row]
    return "~" + _cell(statistics.median(values), quantity) if values else "–"


def _cell(value: float | None, quantity: str) -> str:
    if value is None:
        return "–"
    return share(value) if quantity in SHARES else number(value, 2)


def _comparison_grid(treatment: Treatment) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    grid.add_column("", no_wrap=True)
    grid.add_column("as given", justify="right")
    treated = printable(treatment.remedy)
    if treated:
        grid.add_column(Text(treated if treatment.kept else f"{treated} (not kept)"), justify="right")
    for row in main_numbers(treatment):
        grid.add_row(*(row if treated else row[:2]))
    return grid


def _fates(treatment: Treatment) -> Group:
    after = treatment.after
    head = f"Findings: {counted_severities(treatment.before.findings)} before"
    head += f"; {counted_severities(after.findings)} after" if after else ""
    lines = [Text(head, style="bold")]
    outcomes = [shortened(fate(finding, after), 30) for finding in treatment.before.findings[:FATES]]
    width = max(map(len, outcomes), default=3)
    for finding, outcome in zip(treatment.before.findings, outcomes, strict=False):
        lines.append(_fate_line(f"{outcome:<{width}}", "green" if outcome == "gone" else "yellow", finding))
    if len(treatment.before.findings) > FATES:
        lines.append(Text(f"… {counted(len(treatment.before.findings) - FATES, 'further finding')}", style="dim"))
    known = {finding.code for finding in treatment.before.findings}
    fresh = [f for f in after.findings if f.code not in known] if after else []
    return Group(*lines, *(_fate_line(f"{'new':<{width}}", "red", finding) for finding in fresh[:FATES]))


def _fate_line(outcome: str, style: str, finding: Finding) -> Text:
    line = Text.assemble((outcome, style), f" {located(finding)} {extent(finding)}".rstrip())
    line.truncate(WIDTH, overflow="ellipsis")
    return line


def _attempts_grid(attempts: tuple[Attempt, ...]) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    grid.add_column("tried", no_wrap=True)
    grid.add_column("held-out", justify="right", no_wrap=True)
    grid.add_column("run and outcome")
    for attempt in attempts:
        held_out = number(attempt.run.held_out) if attempt.run else "–"
        outcome = printable(attempt.reason)
        if attempt.run:
            outcome = f"{run_label(attempt.run)}: {outcome}"
        grid.add_row(Text(shortened(attempt.remedy, NAME_WIDTH)), held_out, Text(outcome))
    return grid
