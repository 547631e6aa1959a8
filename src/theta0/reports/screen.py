"""A terminal report: drawn for the width of the terminal on which it is printed, or as text."""

import io
import shutil
import sys
from collections.abc import Callable
from dataclasses import dataclass

from rich.console import Console, ConsoleOptions, RenderableType, RenderResult
from rich.text import Text

from theta0.reports.wording import printable

WIDTH = 80  # reports are laid out for at least this; a narrower terminal folds their lines


@dataclass(frozen=True)
class Screen:
    """What is drawn once the width of the terminal is known.

    Attributes:
        draw: makes what is shown from the number of columns.
    """

    draw: Callable[[int], RenderableType]

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        yield self.draw(max(options.max_width, WIDTH))


def headline(target: str, sentence: str, style: str) -> Text:
    """The first line of a report: what it is about, if that has a name, and the verdict."""
    name = Text.assemble((printable(target), "bold"), ": ") if target else Text()
    return Text.assemble(name, (sentence, style))


def text_of(report: RenderableType) -> str:
    """A report as text, as `print` shows it: as wide as the terminal and in colour, elsewhere 80 columns without."""
    terminal = sys.stdout.isatty()
    width = shutil.get_terminal_size((WIDTH, 24)).columns if terminal else WIDTH
    console = Console(file=io.StringIO(), width=width, force_terminal=terminal, force_jupyter=False)
    console.print(report)
    lines: str = console.file.getvalue()  # type: ignore[attr-defined]  # it is the StringIO above
    return "\n".join(line.rstrip() for line in lines.rstrip().split("\n"))
