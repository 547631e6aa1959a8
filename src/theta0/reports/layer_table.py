"""The layers of a diagnosis on a terminal: a row each, with type and shape, and a mark at what is out of bounds."""

import statistics
from collections.abc import Mapping, Sequence

from rich import box
from rich.table import Table as Grid
from rich.text import Text

from theta0._records import Table
from theta0.diagnosis.results import Diagnosis, Severity
from theta0.reports.folding import SHARES, Fold
from theta0.reports.wording import begins_at, number, printable, share, shortened

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
_APART = 2  # spaces between columns
Marked = Mapping[tuple[str, str], Severity]


def layer_grid(
    diagnosis: Diagnosis, table: Table, columns: Sequence[str], folds: Sequence[Fold], marked: Marked, width: int
) -> Grid:
    """The table, no wider than `width`: names get what the numbers leave, types and shapes what the names leave."""
    numbers = _numbers(diagnosis)
    rows = [_cells(table, columns, fold, marked) for fold in folds]
    cells = [[cell.cell_len for cell in row] for row in rows]
    taken = [max([len(COLUMNS[q]), *column]) for q, column in zip(columns, zip(*cells, strict=True), strict=True)]
    first = max(
        (len(numbers[layer].plain) for fold in folds for layer in fold.layers[:1] if layer in numbers), default=0
    )
    room = max(width - first - sum(taken) - _APART * (len(columns) + 1), 12)
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, 0, 0, _APART - 1), show_edge=False)
    grid.add_column("", justify="right", no_wrap=True, style="bold")
    grid.add_column("layer", no_wrap=True)
    for quantity in columns:
        grid.add_column(COLUMNS[quantity], justify="right", no_wrap=True)
    for fold, name, row in zip(folds, _names(folds, diagnosis.layer_types, room), rows, strict=True):
        grid.add_row(numbers.get(fold.layers[0], "") if len(fold.layers) == 1 else "", name, *row)
    return grid


def _numbers(diagnosis: Diagnosis) -> dict[str, Text]:
    """The numbers of the findings that begin at each layer, in the colour of the first."""
    styles = {layer: STYLES[f.severity] for f in reversed(diagnosis.findings) for layer in (f.layer, *f.layers)}
    return {layer: Text(_marks(found), style=styles[layer]) for layer, found in begins_at(diagnosis.findings).items()}


def _marks(numbers: list[int]) -> str:
    return ",".join(map(str, numbers)) if len(numbers) <= 3 else f"{numbers[0]},{numbers[1]},+{len(numbers) - 2}"


def _names(folds: Sequence[Fold], types: Mapping[str, str], room: int) -> list[Text]:
    """Names and types in two columns where all fit, else a type beside each name that leaves room for it."""
    single = [fold.layers[0] for fold in folds if len(fold.layers) == 1]
    names = {layer: shortened(layer, room) for layer in single}
    longest = max(map(len, names.values()), default=0)
    aligned = all(longest + 2 + len(types.get(layer, "")) <= room for layer in single)
    found = []
    for fold in folds:
        if len(fold.layers) > 1:
            found.append(Text(f"… {len(fold.layers)} layers {'alike' if fold.alike else 'between'}", style="dim"))
            continue
        name, kind = names[fold.layers[0]], printable(types.get(fold.layers[0], ""))
        name = f"{name:<{longest}}" if aligned and kind else name
        fits = kind and len(name) + 2 + len(kind) <= room
        found.append(Text.assemble(name, *([("  " + kind, "dim")] if fits else [])))
    return found


def _cells(table: Table, columns: Sequence[str], fold: Fold, marked: Marked) -> list[Text]:
    if len(fold.layers) > 1:
        rows = [table[layer] for layer in fold.layers]
        texts = [_typical(rows, quantity) if fold.alike else "" for quantity in columns]
        return [
            Text(text + _blank(quantity, marked), style="dim") for text, quantity in zip(texts, columns, strict=True)
        ]
    layer = fold.layers[0]
    found = []
    for quantity in columns:
        severity, text = marked.get((layer, quantity)), _cell(table[layer].get(quantity), quantity)
        found.append(Text(text + "!", style=STYLES[severity]) if severity else Text(text + _blank(quantity, marked)))
    return found


def _blank(quantity: str, marked: Marked) -> str:
    """What stands in place of a mark, so that a column's digits are below each other."""
    return " " if any(of == quantity for _, of in marked) else ""


def _typical(rows: list[dict[str, float]], quantity: str) -> str:
    values = [row[quantity] for row in rows if quantity in row]
    return "~" + _cell(statistics.median(values), quantity) if values else "–"


def _cell(value: float | None, quantity: str) -> str:
    if value is None:
        return "–"
    return share(value) if quantity in SHARES else number(value, 2)
