"""One way of drawing every chart: palette, scales, layer names, and SVG that is the same on every run."""

import io
import math
import re
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import matplotlib as mpl
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.layout_engine import ConstrainedLayoutEngine

from theta0.reports.wording import shortened

# Okabe and Ito's blue and vermilion, told apart in every common form of colour blindness; where more than two are
# drawn, dashes and markers differ too. The page replaces all these colours in dark mode, so each must be one that
# matplotlib does not use for anything else.
GIVEN, TREATED, INK, GRID, MARK = "#d55e01", "#0072b3", "#1c2331", "#d5dae2", "#5b6472"
THIRD, FOURTH, FIFTH = "#3c7d3c", "#8d4fa3", "#8a6d12"
SIZE = (4.7, 3.0)  # inches at 72 units: 338 units, so that 9-unit text is still 9 px in a column of a phone's width
SETTINGS: dict[Any, Any] = {
    "svg.fonttype": "none",
    "font.size": 10,
    "font.sans-serif": ["system-ui", "DejaVu Sans"],
    "axes.edgecolor": MARK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": True,
    "axes.grid.axis": "y",
    "axes.axisbelow": True,
    "grid.color": GRID,
    "grid.linewidth": 0.6,
    "text.color": INK,
    "axes.labelcolor": INK,
    "xtick.color": MARK,
    "ytick.color": MARK,
    "xtick.labelcolor": INK,
    "ytick.labelcolor": INK,
    "legend.frameon": False,
}
MANY_DECADES = 1.5
MOST_DECADES = 30
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Scale:
    """A vertical axis shared by several panels.

    Below the magnitude `threshold` a symmetric-logarithmic axis is linear; 0 is a linear axis throughout.
    """

    low: float
    high: float
    threshold: float


def svg_of(draw: Callable[[Axes], None], salt: str) -> str:
    """A chart as an `<svg>` element without script, metadata, date or outside reference.

    It is sized by its view box alone, and the same text on every run. `salt` keeps the names of its definitions apart
    from those of other charts on one page.
    """
    with _own_style(**{"svg.hashsalt": salt}):
        figure = Figure(figsize=SIZE, layout=ConstrainedLayoutEngine(rect=(0, 0, 1, 0.95)))  # findings' numbers above
        draw(figure.add_subplot())
        buffer = io.StringIO()
        nothing = dict.fromkeys(("Creator", "Date", "Format", "Type"))
        figure.savefig(buffer, format="svg", transparent=True, metadata=nothing)
    svg = buffer.getvalue()
    svg = re.sub(r"<metadata>.*?</metadata>\s*|<!--.*?-->\s*", "", svg[svg.index("<svg") :], flags=re.DOTALL)
    svg = re.sub(r'<g id="[^"]*"', "<g", svg)  # nothing refers to groups, and their names repeat between charts
    head, rest = svg.split(">", 1)
    return re.sub(r'\s(?:width|height|version)="[^"]*"', "", head) + ">" + rest.strip()


class Picture(Figure):  # a class, because a notebook asks a figure for its picture
    """A figure that a notebook shows, also one in which no inline backend was chosen."""

    def _repr_png_(self) -> bytes:
        buffer = io.BytesIO()
        with _own_style(**{"font.sans-serif": ["DejaVu Sans"]}):
            self.savefig(buffer, format="png", dpi=80)
        return buffer.getvalue()


def figure_of(panels: Sequence[tuple[str, Callable[[Axes], None]]]) -> Figure:
    """Charts, given as title and drawing, as one figure, two beside each other; pyplot does not know of it."""
    across = min(len(panels), 2)
    down = math.ceil(len(panels) / max(across, 1))
    with _own_style(**{"font.sans-serif": ["DejaVu Sans"]}):
        figure = Picture(figsize=(6.0 * max(across, 1), 3.8 * max(down, 1)), layout="constrained")
        for place, (title, draw) in enumerate(panels, start=1):
            axes = figure.add_subplot(down, across, place)
            draw(axes)
            axes.set_title(title, fontsize=11, pad=16, parse_math=False)
    return figure


@contextmanager
def _own_style(**further: Any) -> Iterator[None]:
    """Within the block, the user's style does not show, and nothing is said of glyphs: the viewer's fonts count."""
    with mpl.rc_context(), warnings.catch_warnings():
        warnings.filterwarnings("ignore", message="(?s).*Glyph .* missing from")
        mpl.rcdefaults()
        mpl.rcParams.update(SETTINGS | further)
        yield


def scale_for(quantiles: Iterable[Sequence[float]]) -> Scale:
    """The axis on which all of these per-layer quantiles can be seen: logarithmic where spreads are decades apart."""
    rows = [[v for v in row if math.isfinite(v)] for row in quantiles]
    values = [value for row in rows for value in row]
    sizes = [max(map(abs, row)) for row in rows if any(row)]
    if not sizes:
        return Scale(-1.0, 1.0, 0.0)
    low, high, largest = min(values), max(values), max(sizes)
    smallest = max(min(sizes), largest * 10.0**-MOST_DECADES)
    if math.log10(largest / smallest) <= MANY_DECADES:
        margin = 0.05 * (high - low) or abs(high) or 1.0
        return Scale(low - margin, high + margin, 0.0)
    threshold = 10.0 ** math.floor(math.log10(smallest))
    return Scale(3 * low if low < 0 else -threshold, 3 * high if high > 0 else threshold, threshold)


def use_scale(axes: Axes, scale: Scale) -> None:
    """Give an axis its scale, with at most about seven ticks."""
    if scale.threshold:
        axes.set_yscale("symlog", linthresh=scale.threshold)
        top = math.floor(math.log10(max(abs(scale.low), abs(scale.high))))
        bottom = round(math.log10(scale.threshold))
        step = max(1, math.ceil((top - bottom) / 3))
        powers = [p for p in range(top, bottom - 1, -step) if p - bottom + 1 > 0.18 * (top - bottom + 1)]  # clear of 0
        ticks = [sign * 10.0**power for sign in (-1, 1) for power in powers]
        labels = [f"{'−' if s < 0 else ''}10{str(p).translate(SUPERSCRIPTS)}" for s in (-1, 1) for p in powers]
        shown = [
            (t, text) for t, text in zip([0.0, *ticks], ["0", *labels], strict=True) if scale.low <= t <= scale.high
        ]
        axes.set_yticks([t for t, _ in shown], [text for _, text in shown])
        axes.set_yticks([], minor=True)
    axes.set_ylim(scale.low, scale.high)


def name_layers(axes: Axes, layers: Sequence[str], important: Sequence[str]) -> None:
    """Put names under as many layers as can be read: first, last, the important ones, then others evenly between."""
    apart = max(1, math.ceil(len(layers) / 9))
    chosen: list[int] = []
    evenly = range(0, len(layers), apart)
    wanted = [layers.index(name) for name in important if name in layers]
    for index in [0, len(layers) - 1, *wanted, *evenly]:
        if all(abs(index - other) >= apart for other in chosen):
            chosen.append(index)
    chosen.sort()
    names = [shortened(layers[index], 16) for index in chosen]
    axes.set_xticks(chosen, names, rotation=40, ha="right", rotation_mode="anchor", parse_math=False, fontsize=9)
    axes.set_xticks(range(len(layers)), minor=True)
    axes.tick_params(axis="x", which="minor", length=1.5, color=GRID)
    axes.set_xlim(-0.7, len(layers) - 0.3)


def number_findings(axes: Axes, layers: Sequence[str], begins: dict[str, list[int]]) -> None:
    """Mark the layers at which findings begin by a dotted line and the findings' numbers."""
    last = -math.inf
    for index, layer in enumerate(layers):
        if layer not in begins:
            continue
        axes.axvline(index, color=MARK, linewidth=0.8, linestyle=":", zorder=0.5)
        if index - last >= len(layers) / 16:  # closer than that the numbers would overlap; the lines remain
            text = "·".join(map(str, begins[layer][:3]))
            top = axes.get_xaxis_transform()
            axes.text(index, 1.01, text, transform=top, ha="center", va="bottom", fontsize=9, in_layout=False)
            last = index
