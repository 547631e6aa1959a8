"""Amplitudes along a segment of inputs, before and after training: a table by octaves."""

import math
from collections.abc import Mapping

from rich import box
from rich.console import Group, RenderableType
from rich.table import Table as Grid
from rich.text import Text

from theta0.reports.screen import headline
from theta0.reports.wording import counted, number, printable
from theta0.spectra import Spectrum, SpectrumChange


def spectrum_report(change: SpectrumChange, *, target: str) -> RenderableType:
    """The amplitudes of each octave, at the start and after every training.

    An octave's amplitude is the root of its summed squares, averaged in squares over the network's outputs. The last
    row is the data's loss, without the penalty.

    Returns:
        What a rich console prints.

    Example:
        >>> import torch
        >>> from torch import nn
        >>> _ = torch.manual_seed(0)
        >>> model = nn.Sequential(nn.Linear(8, 16), nn.Tanh(), nn.Linear(16, 3))
        >>> batches = [(torch.randn(32, 8), torch.randint(3, (32,))) for _ in range(4)]
        >>> from rich.console import Console
        >>> from theta0.spectra import spectrum_change
        >>> change = spectrum_change(model, batches, "cross_entropy", between=(0, 5), steps=2, points=16)
        >>> console = Console(width=80)
        >>> with console.capture() as captured:
        ...     console.print(spectrum_report(change, target="train.py"))
        >>> "train.py" in captured.get()
        True
    """
    trained = "Each column is a training from the same start."
    names = ("start", *change.trained)
    pad = 1 if len(names) < 6 else 0  # seven columns of numbers fit into a terminal of 80
    grid = Grid(box=box.SIMPLE_HEAD, pad_edge=False, padding=(0, pad))
    grid.add_column("cycles per segment", min_width=10)
    for name in names:
        grid.add_column(printable(name), justify="right", min_width=8, overflow="fold")
    *amplitudes, losses = spectrum_rows(change)
    for row in amplitudes:
        grid.add_row(*row)
    grid.add_section()
    grid.add_row(*losses)
    note = Text("Amplitudes by octave (root of summed squares, mean over outputs).", style="dim")
    return Group(headline(target, spectrum_verdict(change), "bold"), Text(trained), Text(), grid, note)


def spectrum_verdict(change: SpectrumChange) -> str:
    """What was measured, in one sentence."""
    first, last = change.between
    return f"Frequencies between samples {first} and {last}, at the start and after {_trained(change)}."


def _trained(change: SpectrumChange) -> str:
    steps = counted(len(change.losses["no penalty"]), "step")
    return f"{steps} of {printable(change.optimizer)} at {number(change.rate)}"


def spectrum_rows(change: SpectrumChange) -> list[tuple[str, ...]]:
    """The amplitude of each octave at the start and after every training, then the loss."""
    columns = [octaves(spectrum) for spectrum in (change.start, *change.trained.values())]
    rows = [(octave, *(number(column[octave]) for column in columns)) for octave in columns[0]]
    first, last = change.losses["no penalty"][0], [losses[-1] for losses in change.losses.values()]
    return [*rows, ("loss", *map(number, [first, *last]))]


def mean_amplitudes(spectrum: Spectrum) -> list[float]:
    """The amplitude of each frequency, from 0: the root mean square over the network's outputs."""
    rows = spectrum.amplitudes.reshape(-1, spectrum.amplitudes.shape[-1]).double()
    found: list[float] = rows.square().mean(0).sqrt().tolist()
    return found


def octaves(spectrum: Spectrum) -> Mapping[str, float]:
    """Amplitudes gathered by octaves: frequencies 0, 1, 2, 3-4, 5-8 ….

    By label, the root of the octave's summed squares, of the root mean square over outputs.
    """
    amplitudes = mean_amplitudes(spectrum)
    found = {"0": amplitudes[0]}
    low = 1
    while low < len(amplitudes):
        high = min(2 * low - 2 if low > 2 else low, len(amplitudes) - 1)
        found[f"{low}" if high == low else f"{low}-{high}"] = math.hypot(*amplitudes[low : high + 1])
        low = high + 1
    return found
