"""A new figure, and writing it beside its numbers."""

import json
import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure


def new_figure(columns: int, rows: int = 1, *, height: float = 3.4) -> Figure:
    """An empty figure that belongs to no window.

    Args:
        columns: panels beside each other.
        rows: panels under one another.
        height: inches per row.

    Returns:
        The figure, with its panels in `figure.axes`, row by row.
    """
    figure = Figure(figsize=(1.0 + 3.6 * columns, 0.7 + height * rows), layout="constrained")
    FigureCanvasAgg(figure)
    figure.subplots(rows, columns)
    return figure


def paler(rows: Sequence[Mapping[str, Any]]) -> str:
    """What a title says where curves of further seeds are drawn paler than the first.

    >>> paler([{"seed": 0}, {"seed": 1}])
    ' · paler: further seeds'
    """
    return " · paler: further seeds" if any(row["seed"] for row in rows) else ""


def finish(figure: Figure, numbers: dict[str, Any], out_dir: str | Path, name: str) -> None:
    """Write `name.png` and `name.json`; numbers that are not finite become null.

    Args:
        figure: what was drawn.
        numbers: what was drawn from.
        out_dir: folder, made if it is missing.
        name: such as `fig17`.
    """
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    figure.savefig(folder / f"{name}.png", dpi=130)
    text = json.dumps(finite(numbers), indent=1, allow_nan=False)
    (folder / f"{name}.json").write_text(text + "\n", encoding="utf-8")


def finite(value: Any) -> Any:
    """A nested value with None for every number that is not finite, as JSON has none.

    Args:
        value: numbers, strings, lists, tuples and dictionaries.

    Returns:
        A copy of plain lists and dictionaries.
    """
    if isinstance(value, dict):
        return {key: finite(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [finite(item) for item in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value


def finish_table(
    header: Sequence[str], rows: Sequence[Sequence[str]], numbers: dict[str, Any], out_dir: str | Path, name: str
) -> None:
    """Write `name.md`, a Markdown table, and `name.json`.

    Args:
        header: one word or two per column.
        rows: as many cells each.
        numbers: what the cells were computed from.
        out_dir: folder, made if it is missing.
        name: such as `table1`.
    """
    folder = Path(out_dir)
    folder.mkdir(parents=True, exist_ok=True)
    lines = [header, ["---"] * len(header), *rows]
    text = "".join(f"| {' | '.join(line)} |\n" for line in lines)
    (folder / f"{name}.md").write_text(text, encoding="utf-8")
    (folder / f"{name}.json").write_text(
        json.dumps(finite(numbers), indent=1, allow_nan=False) + "\n", encoding="utf-8"
    )
