"""A race of starting points on a terminal, and as plain data."""

import math
from dataclasses import asdict
from functools import partial
from typing import Any

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from theta0.comparison.results import Comparison, Standing
from theta0.reports.document import document
from theta0.reports.screen import WIDTH, Screen, headline
from theta0.reports.wording import counted, number, printable, shortened

COLUMNS = ("start", "held-out", "spread", "seeds", "rate", "suggested", "first loss", "made in", "gradients")
_ON_SCREEN = 8  # of these, so that a row has 80 columns
_WIDE = 100  # columns in which there is room for all


def comparison_verdict(found: Comparison) -> str:
    """A race in one sentence: who won, and by how much against the default start."""
    winner = found.winner
    if winner is None or not math.isfinite(winner.mean):
        return "No start trained: every run diverged or the time ran out."
    won = f"{printable(winner.start)} at rate {number(winner.rate)} trains best: held-out loss {_measured(winner)}"
    won += f" after {counted(found.steps, 'step')} of {printable(found.optimizer)}"
    plain = next((standing for standing in found.standings if standing.start == "default"), None)
    if plain is None or plain is winner:
        second = next((standing for standing in found.standings if standing is not winner), None)
        return won + (f", next {printable(second.start)} with {_measured(second)}." if second else ".")
    close = abs(plain.mean - winner.mean) <= _spread(winner) + _spread(plain)
    tie = "; within the spread of the seeds" if close and math.isfinite(plain.mean) else ""
    return f"{won}, where the default start reaches {_measured(plain)} at rate {number(plain.rate)}{tie}."


def comparison_rows(found: Comparison) -> list[tuple[str, ...]]:
    """The leaderboard as text, a row for each start, those that could not be made last."""
    candidates = {candidate.start: candidate for candidate in found.candidates}
    rows: list[tuple[str, ...]] = []
    for standing in found.standings:
        candidate = candidates[standing.start]
        first = standing.runs[0].losses[0] if standing.runs[0].losses else math.nan
        made = (f"{candidate.seconds:.1f} s", "–" if candidate.gradients is None else number(candidate.gradients))
        suggested = "–" if candidate.suggested is None else number(candidate.suggested)
        spread = "–" if math.isnan(standing.spread) else number(standing.spread, 2)
        numbers = (number(standing.mean), spread, str(len(standing.runs)), number(standing.rate), suggested)
        rows.append((printable(standing.start), *numbers, number(first), *made))
    return rows


def failures(found: Comparison) -> list[tuple[str, str]]:
    """The starts that diverge at every rate or could not be made ("not raced"), and why."""
    raced = {standing.start for standing in found.standings}
    return [
        (printable(e.start), ("" if e.start in raced else "not raced: ") + printable(e.reason))
        for e in found.candidates
        if e.reason
    ]


def comparison_report(found: Comparison, *, target: str) -> RenderableType:
    """A race for the terminal, as a rich console prints it.

    Returns:
        What a rich console prints.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from rich.console import Console
        >>> from theta0 import compare
        >>> found = compare(model, batches, "cross_entropy", starts=["default"], rates=[0.1], steps=5, seeds=1)
        >>> console = Console(width=80)
        >>> with console.capture() as captured:
        ...     console.print(comparison_report(found, target="train.py"))
        >>> "default" in captured.get()
        True
    """
    return Screen(partial(_screen, found, target))


def _screen(found: Comparison, target: str, width: int) -> RenderableType:
    rows, room = comparison_rows(found), 14 + width - WIDTH
    shown = _ON_SCREEN if width < _WIDE else len(COLUMNS)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 1), collapse_padding=True, show_edge=False)
    for column in COLUMNS[:shown]:
        grid.add_column(column, justify="left" if column == "start" else "right", no_wrap=True)
    for place, (name, *cells) in enumerate(rows):
        grid.add_row(shortened(name, room), *cells[: shown - 1], style="bold" if place == 0 else "")
    style = "bold green" if found.complete else "bold yellow"
    parts: list[RenderableType] = [headline(target, comparison_verdict(found), style), Text(), grid]
    parts += [Text(f"{name}: {reason}", style="yellow") for name, reason in failures(found)]
    parts += [Text(), Text(notes(found), style="dim")]
    return Group(*parts)


def notes(found: Comparison) -> str:
    """What the numbers rest on."""
    seeds = "weights, data orders and noise" if found.drawn else "data orders and noise, not weights"
    text = f"Spread: standard deviation over seeds, which draw {seeds}. Held-out batches took no part in the choice of "
    text += f"rates ({counted(len(found.tuning_runs), 'tuning run')}). "
    text += f"Cost {number(found.cost)} gradients, {found.seconds:.0f} s."
    return text + ("" if found.complete else " The time ran out before every start had every seed.")


def comparison_document(found: Comparison, *, target: str) -> dict[str, Any]:
    """A race as a JSON object with the keys schema, theta0, target, comparison, cost_in_gradients.

    Returns:
        The object.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from theta0 import compare
        >>> found = compare(model, batches, "cross_entropy", starts=["default"], rates=[0.1], steps=5, seeds=1)
        >>> comparison_document(found, target="train.py")["target"]
        'train.py'
    """
    winner = None if found.winner is None else {"start": found.winner.start, "rate": found.winner.rate}
    standings = [asdict(standing) | {"mean": standing.mean, "spread": standing.spread} for standing in found.standings]
    body = asdict(found) | {"standings": standings, "winner": winner}
    body["entrants"], body["heats"] = body.pop("candidates"), body.pop("tuning_runs")  # their names in schema 1
    return document(target, {"comparison": body, "cost_in_gradients": found.cost})


def _measured(standing: Standing) -> str:
    spread = "" if math.isnan(standing.spread) else f" ± {number(standing.spread, 2)}"
    return number(standing.mean) + spread


def _spread(standing: Standing) -> float:
    return 0.0 if math.isnan(standing.spread) else standing.spread
