"""The charts of a report: first the numbers (a frozen dataclass), then the drawing."""

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

from matplotlib.axes import Axes
from matplotlib.collections import LineCollection, PolyCollection
from matplotlib.ticker import MaxNLocator

from theta0._records import Table
from theta0.curvature.learning_rate import LearningRate
from theta0.diagnosis.results import Diagnosis
from theta0.reports.canvas import (
    FIFTH,
    FOURTH,
    GIVEN,
    INK,
    MARK,
    THIRD,
    TREATED,
    Scale,
    name_layers,
    number_findings,
    scale_for,
    svg_of,
    use_scale,
)
from theta0.reports.rate import last_loss
from theta0.reports.spectrum import mean_amplitudes
from theta0.reports.wording import begins_at, counted, layers_of, number, printable
from theta0.spectra import Spectrum, SpectrumChange
from theta0.treatment.results import Run

LEVELS = ("q01", "q25", "q50", "q75", "q99")
SIGNALS = {"preactivation": "Preactivations", "gradient": "Gradients at the preactivations"}
SHARES_IN_WORDS = {
    "shift_share": "Activation shift: share of variance between units",
    "sample_share": "Signal: share of variance between samples",
}
STYLES = ((GIVEN, "-", "o"), (TREATED, "--", "s"), (THIRD, ":", "^"), (FOURTH, "-.", "D"), (FIFTH, "-", "v"))
Starts = Sequence[tuple[str, Diagnosis]]


@dataclass(frozen=True)
class Panel:
    """One chart; the description is for those who cannot see it."""

    title: str
    description: str
    draw: Callable[[Axes], None]

    @property
    def svg(self) -> str:
        """The chart as a whole SVG element."""
        return svg_of(self.draw, self.title)


@dataclass(frozen=True)
class Boxes:
    """The 1, 25, 50, 75 and 99 % quantiles of a signal at every layer, in execution order."""

    layers: tuple[str, ...]
    quantiles: tuple[tuple[float, ...], ...]


@dataclass(frozen=True)
class Series:
    """Numbers in order at one start: per layer, or per training step.

    NaN is where there is none; `end` stands for the whole series, such as the held-out loss after the last step.
    """

    label: str
    values: tuple[float, ...]
    end: float = math.nan


def boxes(table: Table, signal: str) -> Boxes:
    """The quantiles of a signal (`preactivation` or `gradient`) at the layers where all five were measured."""
    wanted = [f"{signal}_{level}" for level in LEVELS]
    rows = {layer: tuple(row[q] for q in wanted) for layer, row in table.items() if all(q in row for q in wanted)}
    return Boxes(tuple(rows), tuple(rows.values()))


def box_panels(starts: Starts, signal: str) -> list[Panel]:
    """Quantiles of a signal per layer in the manner of kutsuna2019lcw, Fig. 4: one panel per start, all on one scale.

    The box holds the middle half of the values, its line the median, the whiskers reach from 1 to 99 %. The scale is
    symmetric-logarithmic where the layers' spreads are decades apart, so that vanishing is seen as a funnel.
    """
    data = [(label, diagnosis, boxes(layers_of(diagnosis), signal)) for label, diagnosis in starts]
    scale = scale_for([quantiles for _, _, box in data for quantiles in box.quantiles])
    panels = []
    for position, (label, diagnosis, box) in enumerate(data):
        if not box.layers:
            continue
        title = f"{SIGNALS[signal]}, {label}" if len(starts) > 1 else SIGNALS[signal]
        draw = partial(
            _draw_boxes, box=box, scale=scale, begins=begins_at(diagnosis.findings), colour=STYLES[position][0]
        )
        panels.append(Panel(title, _boxes_in_words(box), draw))
    return panels


def share_panel(starts: Starts, quantity: str) -> Panel | None:
    """A share per layer, all starts in one chart; None where it was not measured at any layer."""
    tables = [(label, layers_of(diagnosis)) for label, diagnosis in starts]
    layers = list(dict.fromkeys(layer for _, table in tables for layer, row in table.items() if quantity in row))
    if not layers:
        return None
    series = [
        Series(label, tuple(table.get(layer, {}).get(quantity, math.nan) for layer in layers))
        for label, table in tables
    ]
    title = SHARES_IN_WORDS[quantity]
    words = "; ".join(_series_in_words(one, layers) for one in series)
    begins = begins_at(starts[0][1].findings)
    return Panel(title, words, partial(_draw_shares, series=series, layers=layers, begins=begins))


def loss_panel(runs: Sequence[tuple[str, Run | None]], *, ending: str = "held-out") -> Panel | None:
    """The training loss of each short run, with the loss that judges it, in words `ending`; None without a run."""
    made = [(label, run) for label, run in runs if run and run.losses]
    if not made:
        return None
    series = [Series(printable(label), run.losses, run.held_out) for label, run in made]
    first = next(position for position, (_, run) in enumerate(runs) if run and run.losses)
    words = "; ".join(
        f"{one.label}: from {number(one.values[0])} to {number(one.values[-1])} in {counted(len(one.values), 'step')}, "
        f"{ending} {number(one.end)}"
        for one in series
    )
    title = "Training loss of the short runs"
    return Panel(title, words, partial(_draw_losses, series=series, styles=STYLES[first:], ending=ending))


def rate_panel(rate: LearningRate) -> Panel | None:
    """The last losses of the runs that chose a rate, over their rates; None without runs."""
    if not rate.runs:
        return None
    words = "; ".join(f"{number(run.rate)}: {run.outcome}, {number(last_loss(run))}" for run in rate.runs)
    return Panel("Last losses of the runs, by learning rate", words, partial(_draw_rates, rate=rate))


def spectrum_panel(change: SpectrumChange) -> Panel:
    """Amplitudes over frequencies, one curve for the start and one for each training."""
    spectra = {"start": change.start, **change.trained}
    curves = {name: _amplitudes(spectrum) for name, spectrum in spectra.items()}
    words = "; ".join(
        f"{printable(name)}: {number(curve[0])} at 1 cycle, {number(curve[-1])} at {len(curve)}"
        for name, curve in curves.items()
    )
    title = f"Amplitudes between samples {change.between[0]} and {change.between[1]}"
    return Panel(title, words, partial(_draw_spectra, curves=curves))


def _draw_boxes(axes: Axes, *, box: Boxes, scale: Scale, begins: dict[str, list[int]], colour: str) -> None:
    use_scale(axes, scale)
    finite = [(x, q) for x, q in enumerate(box.quantiles) if all(map(math.isfinite, q))]
    crowded = len(box.layers) > 40
    width = 0.85 if crowded else 0.65
    half = width / 2
    halves = [[(x - half, q[1]), (x - half, q[3]), (x + half, q[3]), (x + half, q[1])] for x, q in finite]
    axes.add_collection(PolyCollection(halves, facecolors=colour, alpha=0.55, linewidths=0))
    thickness = 0.5 if crowded else 1.0
    axes.add_collection(
        LineCollection([[(x, q[0]), (x, q[4])] for x, q in finite], colors=colour, linewidths=thickness)
    )
    medians = [[(x - half, q[2]), (x + half, q[2])] for x, q in finite]
    axes.add_collection(LineCollection(medians, colors=INK, linewidths=1.2))
    broken = [x for x, q in enumerate(box.quantiles) if not all(map(math.isfinite, q))]
    if broken:
        axes.plot(
            broken, [0.94] * len(broken), "x", color=colour, transform=axes.get_xaxis_transform(), label="not finite"
        )
        axes.legend(loc="lower right", fontsize=9)
    use_scale(axes, scale)
    number_findings(axes, box.layers, begins)
    name_layers(axes, box.layers, list(begins))


def _draw_shares(axes: Axes, *, series: list[Series], layers: list[str], begins: dict[str, list[int]]) -> None:
    size = 3.5 if len(layers) <= 40 else 0
    for one, (colour, line, marker) in zip(series, STYLES, strict=False):
        axes.plot(one.values, line, color=colour, marker=marker, markersize=size, linewidth=1.3, label=one.label)
    axes.set_ylim(-0.03, 1.03)
    number_findings(axes, layers, begins)
    name_layers(axes, layers, list(begins))
    if len(series) > 1:
        axes.legend(loc="best", fontsize=9)


def _draw_losses(axes: Axes, *, series: list[Series], styles: Sequence[tuple[str, str, str]], ending: str) -> None:
    for one, (colour, line, marker) in zip(series, styles, strict=False):
        values = [value if math.isfinite(value) else math.nan for value in one.values]
        axes.plot(range(1, len(values) + 1), values, line, color=colour, linewidth=1.4)
        axes.plot(len(values), one.end, marker, color=colour, markersize=7, clip_on=False)
        (key,) = axes.plot([], [], line, marker=marker, color=colour, label=f"{one.label}, {ending} {number(one.end)}")
        key.set_linewidth(1.4)
    finite = [v for one in series for v in (*one.values, one.end) if math.isfinite(v)]
    if finite and min(finite) > 0 and max(finite) > 30 * min(finite):
        axes.set_yscale("log")
    axes.xaxis.set_major_locator(MaxNLocator("auto", steps=[1, 2, 5, 10], integer=True))
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    for text in axes.figure.legend(loc="outside upper left", fontsize=9).get_texts():
        text.set_parse_math(False)


def _draw_rates(axes: Axes, *, rate: LearningRate) -> None:
    ends = [(run.rate, last_loss(run), run.outcome) for run in rate.runs]
    finite = [(x, y, outcome) for x, y, outcome in ends if math.isfinite(y)]
    good = [(x, y) for x, y, outcome in finite if outcome == "trains"]
    other = [(x, y) for x, y, outcome in finite if outcome != "trains"]
    lost = [x for x, y, _ in ends if not math.isfinite(y)]
    for points, marker, colour, label in ((good, "o", TREATED, "trains"), (other, "s", GIVEN, "does not, or waits")):
        if points:
            axes.plot(*zip(*points, strict=True), marker, color=colour, markersize=6, label=label)
    if lost:
        top = axes.get_xaxis_transform()
        axes.plot(lost, [0.96] * len(lost), "x", color=GIVEN, transform=top, label="not finite")
    if rate.value is not None:
        axes.axvline(rate.value, color=MARK, linewidth=1.0, linestyle="--", label=f"suggestion: {number(rate.value)}")
    axes.set_xscale("log")
    if finite and min(y for _, y, _ in finite) > 0 and max(y for _, y, _ in finite) > 30 * min(y for _, y, _ in finite):
        axes.set_yscale("log")
    axes.set(xlabel="learning rate", ylabel="loss")
    axes.legend(loc="best", fontsize=9)


def _draw_spectra(axes: Axes, *, curves: dict[str, list[float]]) -> None:
    colours, dashes = (MARK, TREATED, GIVEN, THIRD, FOURTH), ("-", "--", ":")
    for place, (name, curve) in enumerate(curves.items()):
        again, colour = divmod(place, len(colours))
        frequencies = range(1, len(curve) + 1)
        axes.plot(frequencies, curve, dashes[again % 3], color=colours[colour], label=printable(name), linewidth=1.5)
    axes.set_yscale("log")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set(xlabel="cycles per segment", ylabel="amplitude, mean over outputs")
    for text in axes.legend(fontsize=9).get_texts():
        text.set_parse_math(False)


def _amplitudes(spectrum: Spectrum) -> list[float]:
    """Of the frequencies from 1, the root mean square over the outputs."""
    return mean_amplitudes(spectrum)[1:]


def _boxes_in_words(box: Boxes) -> str:
    ends = [(layer, q[4] - q[0]) for layer, q in zip(box.layers, box.quantiles, strict=True)]
    (first, wide_first), (last, wide_last) = ends[0], ends[-1]
    spread = f"The middle 98 % of values span {number(wide_first)} at {printable(first)}"
    if len(ends) == 1:
        return f"{spread}."
    return f"{spread} and {number(wide_last)} at {printable(last)}, the last of {len(ends)} layers."


def _series_in_words(one: Series, layers: list[str]) -> str:
    there = [(value, layer) for value, layer in zip(one.values, layers, strict=True) if math.isfinite(value)]
    if not there:
        return f"{one.label}: no finite value"
    (low, low_layer), (high, high_layer) = min(there), max(there)
    return f"{one.label}: from {number(low)} at {printable(low_layer)} to {number(high)} at {printable(high_layer)}"
