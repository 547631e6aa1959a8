"""What a result looks like on a terminal: a sentence, the findings, and a table, on one screen of 80 columns."""

import io
from collections.abc import Iterable
from functools import partial
from pathlib import Path

from rich import box
from rich.console import Console, Group, RenderableType
from rich.padding import Padding
from rich.table import Table as Grid
from rich.text import Text

from theta0._version import help_on
from theta0.diagnosis.results import Diagnosis, Finding
from theta0.diagnosis.rules import rule_of
from theta0.reports.advice import here, worded
from theta0.reports.causes import by_cause
from theta0.reports.folding import folded
from theta0.reports.layer_table import COLUMNS, LEGEND, STYLES, layer_grid
from theta0.reports.marks import out_of_bounds
from theta0.reports.screen import WIDTH, Screen, headline
from theta0.reports.sources import named_in
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
    measured,
    network_facts,
    number,
    place,
    printable,
    probe_lines,
    run_label,
    shortened,
    treatment_verdict,
)
from theta0.treatment.results import Attempt, Treatment

SCREEN = 48
FULL_FINDINGS = 28  # lines after which a finding takes one line: the table needs the rest of the screen
FATES = 6  # findings of which a treatment's screen says what became of them
NAME_WIDTH = 24  # of a name in 80 columns
MOST_SOURCES = 3


def diagnosis_report(diagnosis: Diagnosis, *, target: str) -> RenderableType:
    """A diagnosis for the terminal: verdict, findings, then one row per layer, long runs of layers folded.

    Args:
        diagnosis: the result.
        target: as on the command line, which advice then names; the empty string words advice as Python.

    Returns:
        What a rich console prints; at most 48 lines at 80 columns.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import diagnose
        >>> diagnosis = diagnose(model, batches, "cross_entropy", probe_steps=0)
        >>> from rich.console import Console
        >>> console = Console(width=80)
        >>> with console.capture() as captured:
        ...     console.print(diagnosis_report(diagnosis, target="train.py"))
        >>> captured.get().splitlines()[0]
        'train.py: No problem was found (1 note); whether training lowers the loss was '
    """
    return Screen(partial(_diagnosis_screen, diagnosis, target))


def _diagnosis_screen(diagnosis: Diagnosis, target: str, width: int) -> RenderableType:
    head: list[RenderableType] = [headline(target, diagnosis_verdict(diagnosis), _tone(diagnosis))]
    facts = [f"{label} {value}" for label, value in network_facts(diagnosis, brief=True)]
    facts.append(f"cost {number(diagnosis.cost)} gradients")
    head.append(Text(" · ".join(facts), style="dim"))
    if diagnosis.findings:
        head.extend([Text(), *_findings(diagnosis.findings, FULL_FINDINGS, target, width), *_sources(diagnosis)])
    head.extend(Text(worded(line, target), style="dim") for line in probe_lines(diagnosis))
    table = layers_of(diagnosis)
    if not table:
        return Group(*head)
    columns = [quantity for quantity in COLUMNS if any(quantity in row for row in table.values())]
    marked = out_of_bounds(diagnosis, table)
    words = [text for quantity, text in LEGEND.items() if quantity in columns]
    legend = Text(" · ".join([*words, *(["!: out of bounds"] if marked else [])]), style="dim")
    overhead = 2 + _height([legend], width)  # the table's own head and rule
    rows = max(SCREEN - _height(head, width) - overhead - 2, 8)
    folds = folded(table, columns, begins_at(diagnosis.findings), rows)
    return Group(*head, Text(), layer_grid(diagnosis, table, columns, folds, marked, width), legend)


def treatment_report(treatment: Treatment, *, target: str, out: Path | None = None) -> RenderableType:
    """A treatment for the terminal: what was kept and why, both short runs, the main numbers and the findings.

    Args:
        treatment: the result.
        target: as on the command line, which advice then names; the empty string words advice as Python.
        out: the file that the kept start was written to, if it was.

    Returns:
        What a rich console prints; at most 48 lines at 80 columns unless very many remedies were tried.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from rich.console import Console
        >>> from theta0 import treat
        >>> treatment = treat(model, batches, "cross_entropy", steps=5)
        >>> console = Console(width=80)
        >>> with console.capture() as captured:
        ...     console.print(treatment_report(treatment, target="train.py"))
        >>> "train.py" in captured.get()
        True
    """
    return Screen(partial(_treatment_screen, treatment, target, out))


def _treatment_screen(treatment: Treatment, target: str, out: Path | None, width: int) -> RenderableType:
    saved = (f" {_saved(out)}", "green" if out else "bold yellow") if treatment.kept and target else ""
    parts: list[RenderableType] = [
        headline(target, treatment_verdict(treatment), "bold green" if treatment.kept else "bold yellow"),
        Text.assemble(worded(printable(treatment.reason), target), saved),
        Text(),
        _comparison_grid(treatment),
    ]
    if treatment.before.findings:
        parts.extend([Text(), _fates(treatment, width)])
    tail: list[RenderableType] = [Text(f"\ncost {number(treatment.cost)} gradients", style="dim")]
    if treatment.attempts:
        tail = [Text(), _attempts_grid(treatment.attempts, target, width), *tail]
    remaining = treatment.after.findings if treatment.after and treatment.kept else ()
    if remaining:
        room = SCREEN - _height([*parts, *tail], width) - 2
        left = _findings(remaining, room, target, width)
        parts.extend([Text(), Text("Left at the treated start", style="bold"), *left])
    parts.extend(tail)
    return Group(*parts)


def _saved(out: Path | None) -> str:
    """What to do with a start that a command kept: the script is as it was."""
    if out is None:
        return "Nothing was saved: add --out start.safetensors."
    return f"Saved. Before the first step: theta0.load_start_(model, {printable(str(out))!r})"


def finding_report(finding: Finding) -> RenderableType:
    """One finding in full, its advice as Python.

    Returns:
        What a rich console prints.
    """
    return Screen(lambda width: Group(_finding_head("", finding, width), *_finding_body(finding, "", indent=0)))


def _tone(diagnosis: Diagnosis) -> str:
    worst = {finding.severity for finding in diagnosis.findings}
    return "bold red" if "error" in worst else "bold yellow" if "warning" in worst else "bold green"


def _height(parts: Iterable[RenderableType], width: int) -> int:
    console = Console(width=width, file=io.StringIO())
    return sum(len(console.render_lines(part)) for part in parts)


def _findings(findings: tuple[Finding, ...], room: int, target: str, width: int) -> list[RenderableType]:
    """Causes in full as long as they fit into `room` lines, then in one line each, then only counted.

    What follows from a cause is one line each below it.
    """
    parts: list[RenderableType] = []
    left = len(findings)
    for caused in by_cause(findings):
        follows = [_consequence(*below, width) for below in caused.consequences]
        brief: list[RenderableType] = [_finding_head(f"{caused.number:>2} ", caused.finding, width), *follows]
        full = [brief[0], *_finding_body(caused.finding, target), *follows]
        left -= len(brief)
        used = _height(parts, width)
        if used + _height(full, width) + left <= room or (not parts and _height(full, width) < room):
            parts.extend(full)
        elif used + len(brief) < room or (left == 0 and used + len(brief) <= room):
            parts.extend(brief)
        else:
            hidden = counted(left + len(brief), "further finding")
            where = here(target, "in --html and --json", "in .findings and by .save_html()")
            parts.append(Text(f"… {hidden}, all of them {where}", style="dim"))
            break
    return parts


def _sources(diagnosis: Diagnosis) -> list[Text]:
    """The first cause's page, and the links of what the causes' thresholds rest on."""
    named = {
        source.key: source.link
        for caused in by_cause(diagnosis.findings)
        for _, source in named_in(caused.finding.source)
        if source is not None and source.link
    }
    first = diagnosis.findings[0].code
    page = [Text(f"   more: {help_on(first)}", style="dim")] if rule_of(first) is not None else []
    return page + [
        Text(f"   source: {key}, {link}", style="dim", no_wrap=True) for key, link in list(named.items())[:MOST_SOURCES]
    ]


def _consequence(index: int, finding: Finding, width: int) -> Text:
    mark, value = f"   follows from it: finding {index}, ", f" ({number(finding.value)})"
    where = _where(finding, width - len(f"{mark}{finding.severity}:{value}"))
    return Text.assemble((mark, "dim"), (finding.severity, STYLES[finding.severity]), f":{where}{value}")


def _where(finding: Finding, room: int) -> str:
    """Code and place of a finding in so many columns; the place, if there is one, is shortened to 12 at least."""
    code = f" {printable(finding.code)}"
    return f"{code} at {shortened(place(finding), max(room - len(code) - 4, 12))}" if finding.layer else code


def _finding_head(mark: str, finding: Finding, width: int) -> Text:
    quantity, value, threshold = measured(finding)
    where = _where(finding, width - len(f"{mark}{finding.severity}: {quantity}{value}{threshold}"))
    severity = (finding.severity, STYLES[finding.severity])
    return Text.assemble((mark, "bold"), severity, where, f": {quantity}", (value, "bold"), threshold)


def _finding_body(finding: Finding, target: str, indent: int = 3) -> list[RenderableType]:
    lines = [Text(worded(printable(finding.message), target))]
    if finding.source_line:
        lines.append(Text(printable(finding.source_line), style="dim"))
    if finding.remedy:
        lines.append(Text("→ " + worded(printable(finding.remedy), target), style="green"))
    return [Padding(line, (0, 0, 0, indent)) for line in lines]


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


def _fates(treatment: Treatment, width: int) -> Group:
    after = treatment.after
    head = f"Findings: {counted_severities(treatment.before.findings)} before"
    head += f"; {counted_severities(after.findings)} after" if after else ""
    lines = [Text(head, style="bold")]
    outcomes = [shortened(fate(finding, after), 30) for finding in treatment.before.findings[:FATES]]
    longest = max(map(len, outcomes), default=3)
    for finding, outcome in zip(treatment.before.findings, outcomes, strict=False):
        style = "green" if outcome == "gone" else "yellow"
        lines.append(_fate_line(f"{outcome:<{longest}}", style, finding, width))
    if len(treatment.before.findings) > FATES:
        lines.append(Text(f"… {counted(len(treatment.before.findings) - FATES, 'further finding')}", style="dim"))
    known = {finding.code for finding in treatment.before.findings}
    fresh = [f for f in after.findings if f.code not in known] if after else []
    return Group(*lines, *(_fate_line(f"{'new':<{longest}}", "red", finding, width) for finding in fresh[:FATES]))


def _fate_line(outcome: str, style: str, finding: Finding, width: int) -> Text:
    line = Text.assemble((outcome, style), f" {located(finding)} {extent(finding)}".rstrip())
    line.truncate(width, overflow="ellipsis")
    return line


def _attempts_grid(attempts: tuple[Attempt, ...], target: str, width: int) -> Grid:
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), show_edge=False)
    grid.add_column("tried", no_wrap=True)
    grid.add_column("held-out", justify="right", no_wrap=True)
    grid.add_column("run and outcome")
    for attempt in attempts:
        held_out = number(attempt.run.held_out) if attempt.run else "–"
        outcome = worded(printable(attempt.reason), target)
        if attempt.run:
            outcome = f"{run_label(attempt.run)}: {outcome}"
        grid.add_row(Text(shortened(attempt.remedy, NAME_WIDTH + width - WIDTH)), held_out, Text(outcome))
    return grid
