"""One measured number, and how numbers are looked up."""

from collections.abc import Iterable
from dataclasses import dataclass


@dataclass(frozen=True)
class Record:
    """A number measured at one place of a network.

    Attributes:
        layer: where: a module or parameter path as in `named_parameters()`; the n-th call of a module used several
            times is `path#n` (from 2); the empty string is the whole network.
        quantity: what, in the field's terms, with underscores.
        value: the number.
        unit: its unit; the empty string for a pure number.
    """

    layer: str
    quantity: str
    value: float
    unit: str = ""


Table = dict[str, dict[str, float]]


def by_layer(records: Iterable[Record]) -> Table:
    """Records as `{layer: {quantity: value}}`, layers in the order in which they appear (execution order).

    A later record of the same layer and quantity replaces an earlier one.
    """
    table: Table = {}
    for record in records:
        table.setdefault(record.layer, {})[record.quantity] = record.value
    return table


def flat(records: Iterable[Record]) -> dict[str, float]:
    """Records as `{"layer/quantity": value}`, as experiment trackers log them; whole-network ones have no slash."""
    return {f"{r.layer}/{r.quantity}" if r.layer else r.quantity: r.value for r in records}
