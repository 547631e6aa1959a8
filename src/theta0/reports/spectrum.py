"""Amplitudes along a segment of inputs, before and after training: a table by octaves, a figure, plain data."""

from collections.abc import Mapping
from pathlib import Path

import matplotlib as mpl
import torch
from matplotlib.figure import Figure
from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from theta0.reports.canvas import SETTINGS
from theta0.reports.wording import number, printable
from theta0.spectra import Spectrum, SpectrumChange

_COLOURS = ("#5b6472", "#0072b3", "#d55e01", "#3c7d3c", "#8d4fa3")
_DASHES = ("-", "--", ":")


def spectrum_report(change: SpectrumChange, *, target: str) -> RenderableType:
    """The amplitudes of each octave, at the start and after every training.

    An octave's amplitude is the root of its summed squares, averaged in squares over the network's outputs. The last
    row is the data's loss, without the penalty.

    Returns:
        What a rich console prints.
    """
    first, last = change.between
    steps = len(change.losses["no penalty"])
    head = f"{printable(target)}: frequencies between samples {first} and {last}."
    trained = f"{steps} steps of {change.optimizer} at {number(change.rate)} from the same start for each column."
    columns = {"start": change.start, **change.trained}
    pad = 1 if len(columns) < 6 else 0  # seven columns of numbers fit into a terminal of 80
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, pad))
    grid.add_column("cycles per segment", min_width=10)
    for name in columns:
        grid.add_column(printable(name), justify="right", min_width=8, overflow="fold")
    rows = {name: octaves(spectrum) for name, spectrum in columns.items()}
    for octave in rows["start"]:
        grid.add_row(octave, *(number(row[octave]) for row in rows.values()))
    grid.add_section()
    grid.add_row("loss", number(change.losses["no penalty"][0]), *(number(v[-1]) for v in change.losses.values()))
    note = Text("Amplitudes by octave (root of summed squares, mean over outputs).", style="dim")
    return Group(Text(head, style="bold"), Text(printable(trained)), Text(), grid, note)


def octaves(spectrum: Spectrum) -> Mapping[str, float]:
    """Amplitudes gathered by octaves: frequencies 0, 1, 2, 3-4, 5-8 ….

    By label, the root of the octave's summed squares, of the root mean square over outputs.
    """
    rows = spectrum.amplitudes.reshape(-1, spectrum.amplitudes.shape[-1]).double()
    power = rows.square().mean(0)
    found = {"0": float(power[0].sqrt())}
    low = 1
    while low < len(power):
        high = min(2 * low - 2 if low > 2 else low, len(power) - 1)
        found[f"{low}" if high == low else f"{low}-{high}"] = float(power[low : high + 1].sum().sqrt())
        low = high + 1
    return found


def write_spectrum_figure(path: Path, change: SpectrumChange) -> None:
    """Draw amplitudes over frequencies, one curve for the start and one for each training."""
    with mpl.rc_context():
        mpl.rcdefaults()  # the user's style must not show in a report
        mpl.rcParams.update(SETTINGS | {"font.sans-serif": ["DejaVu Sans"]})
        figure = Figure(figsize=(6.4, 4.0), layout="constrained")
        axes = figure.add_subplot()
        for place, (name, spectrum) in enumerate({"start": change.start, **change.trained}.items()):
            power = spectrum.amplitudes.reshape(-1, spectrum.amplitudes.shape[-1]).double().square().mean(0)
            k = torch.arange(len(power))
            again, colour = divmod(place, len(_COLOURS))
            dashes = _DASHES[again % len(_DASHES)]
            axes.plot(k[1:], power[1:].sqrt(), dashes, color=_COLOURS[colour], label=name, linewidth=1.5)
        axes.set_yscale("log")
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
        axes.set(xlabel="cycles per segment", ylabel="amplitude, mean over outputs")
        axes.set_title(f"Between samples {change.between[0]} and {change.between[1]}", fontsize=11)
        axes.legend()
        path.parent.mkdir(parents=True, exist_ok=True)
        figure.savefig(path, dpi=150)
