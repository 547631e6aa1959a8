"""Which layers a short table shows, and which it folds into one row."""

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from theta0._records import Table

SHARES = ("shift_share", "sample_share", "dead_share", "saturated_share")
ALIKE_DECADES = 1.0
ALIKE_SHARE = 0.1


@dataclass(frozen=True)
class Fold:
    """Consecutive layers shown as one row of a table.

    They are `alike` if every quantity is about the same at all of them; a single one is a row of its own.
    """

    layers: tuple[str, ...]
    alike: bool


def unlikeness(rows: Sequence[dict[str, float]], quantities: Sequence[str]) -> float:
    """How much some layers differ: the widest range of any quantity, 1 being the widest that still counts as alike.

    Shares are compared by difference, other quantities (variances, factors) by ratio. Infinite where only some of the
    values are finite, positive or present.
    """
    widest = 0.0
    for quantity in quantities:
        values = [row.get(quantity, math.nan) for row in rows]
        usable = [v for v in values if math.isfinite(v) and (v > 0 or quantity in SHARES)]
        if not usable:
            continue
        if len(usable) < len(values):
            return math.inf
        if quantity in SHARES:
            span = (max(usable) - min(usable)) / ALIKE_SHARE
        else:
            span = (math.log10(max(usable)) - math.log10(min(usable))) / ALIKE_DECADES
        widest = max(widest, span)
    return widest


def extremes(table: Table, quantities: Sequence[str]) -> list[str]:
    """The layers at which some quantity is largest or smallest, none that are hardly apart from the others."""
    found: dict[str, None] = {}
    for quantity in quantities:
        values = {layer: row[quantity] for layer, row in table.items() if math.isfinite(row.get(quantity, math.nan))}
        if values and unlikeness([{quantity: v} for v in values.values()], [quantity]) > 1:
            found[max(values, key=values.__getitem__)] = None
            found[min(values, key=values.__getitem__)] = None
        found.update(dict.fromkeys(layer for layer, row in table.items() if not math.isfinite(row.get(quantity, 0.0))))
    return list(found)


def folded(table: Table, quantities: Sequence[str], begins: Iterable[str], rows: int) -> list[Fold]:
    """A table's layers in at most `rows` (5 or more) rows: all of them where they fit, otherwise runs of layers folded.

    The first and last layer have a row of their own; then, as long as there is room, those in `begins`, the extremes,
    and the middles of the runs that differ most.
    """
    layers = list(table)
    if len(layers) <= rows:
        return [Fold((layer,), True) for layer in layers]
    shown = {0, len(layers) - 1}
    for layer in [*begins, *extremes(table, quantities)]:
        if layer in table and len(_split(layers, shown | {layers.index(layer)})) <= rows:
            shown.add(layers.index(layer))
    while (middle := _middle_of_most_unlike(table, quantities, _split(layers, shown))) is not None:
        if len(_split(layers, shown | {layers.index(middle)})) > rows:
            break
        shown.add(layers.index(middle))
    folds = _split(layers, shown)
    spans = [unlikeness([table[layer] for layer in run], quantities) for run in folds]
    return [Fold(tuple(run), span <= 1) for run, span in zip(folds, spans, strict=True)]


def _split(layers: list[str], shown: set[int]) -> list[list[str]]:
    """Layers as rows: each shown one alone, the runs between them together; a run of two is not worth folding."""
    folds: list[list[str]] = []
    run: list[str] = []
    for index, layer in enumerate([*layers, ""]):
        if index < len(layers) and index not in shown:
            run.append(layer)
            continue
        folds.extend([run] if len(run) > 2 else [[name] for name in run])
        run = []
        if index < len(layers):
            folds.append([layer])
    return folds


def _middle_of_most_unlike(table: Table, quantities: Sequence[str], folds: list[list[str]]) -> str | None:
    """The middle of the folded run that differs most, the longest of several; None where all are alike."""
    spans = [(unlikeness([table[layer] for layer in run], quantities), len(run), run) for run in folds if len(run) > 1]
    span, _, run = max(spans, key=lambda item: item[:2], default=(0.0, 0, [""]))
    return run[len(run) // 2] if span > 1 else None
