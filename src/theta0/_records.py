"""One measured number, how numbers are looked up, and results that show themselves."""

import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from matplotlib.figure import Figure


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


_faces: list[str] = []  # the module that knows how results look; `theta0` names it, the first use imports it


def shown_by(module: str) -> None:
    """Name the module whose functions show results; nothing is imported before one is shown."""
    _faces[:] = [module]


class Shown:  # a class, because frozen results inherit from it
    """A result that says itself: in one line as its `repr`, in full when it is printed."""

    def __repr__(self) -> str:
        return str(_face("line")(self))

    def __str__(self) -> str:
        return str(_face("text")(self))


class Result(Shown):  # a class, because frozen results inherit from it
    """A result that is also a page, a figure and a table."""

    def _repr_html_(self) -> str:
        return str(_face("fragment")(self))

    def save_html(self, path: str | Path, *, target: str = "") -> Path:
        """Write the result as one self-contained HTML page.

        Args:
            path: the file; folders on the way are made.
            target: what the page calls the network, such as the name of its script.

        Returns:
            The file.
        """
        written: Path = _face("write_page")(path, self, target=target)
        return written

    def plot(self) -> "Figure":
        """Draw the result; pyplot and its global state are not touched.

        Returns:
            A matplotlib figure, which a notebook shows and `savefig` writes.
        """
        figure: Figure = _face("figure")(self)
        return figure

    def to_frame(self) -> Any:
        """The numbers of the result as a table.

        Returns:
            A `pandas.DataFrame`.

        Raises:
            ImportError: if pandas is not installed.
        """
        return _face("frame")(self)


def _face(name: str) -> Any:
    return getattr(importlib.import_module(_faces[0]), name)
