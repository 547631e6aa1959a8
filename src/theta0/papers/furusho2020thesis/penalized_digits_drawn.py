"""Figures 11-13 drawn from the numbers of `penalized_digits`."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from matplotlib.figure import Figure

from theta0.papers.drawing import new_figure
from theta0.papers.furusho2020thesis.penalized import COLOURS, TITLES

Penalties = Mapping[str, tuple[str, float]]
PARTS = {"train": ("training set (noisy labels)", "#5b6472"), "test": ("test set (true labels)", "#c1521c")}


def title(kind: str, coefficient: float) -> str:
    """A penalty as it is written above a panel and in a sentence.

    Returns:
        Its name and C.
    """
    return TITLES[kind] if kind == "none" else f"{TITLES[kind]}, C = {coefficient:g}"


def accuracies(run: dict[str, Any], penalties: Penalties) -> Figure:
    """Figure 11: accuracies over epochs, the mean of the trials and each of them.

    Args:
        run: a result of `penalized_digits.trained`.
        penalties: by name of the run, two to a row.

    Returns:
        The figure.
    """
    figure = new_figure(2, (len(penalties) + 1) // 2, height=2.2)
    figure.suptitle("Accuracy, 65 % of the training labels redrawn (mean, and thin each trial)", fontsize=10)
    for axes, (name, penalty) in zip(figure.axes, penalties.items(), strict=True):
        for part, (label, colour) in PARTS.items():
            curves = np.array(run["runs"][name][part])
            axes.plot(run["epochs"], curves.T, color=colour, linewidth=0.7, alpha=0.5)
            axes.plot(run["epochs"], curves.mean(0), color=colour, linewidth=2, label=label)
        axes.set(xlabel="epoch", ylabel="accuracy", ylim=(0.4, 1.02))
        axes.set_title(title(*penalty), fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def spectra(run: dict[str, Any], penalties: Penalties) -> Figure:
    """Figure 12: outputs along the latent line, and their normalised spectra.

    Args:
        run: a result of `penalized_digits.trained`.
        penalties: by name of the run, one to a column.

    Returns:
        The figure.
    """
    figure = new_figure(len(penalties), 2)
    figure.set_size_inches(0.8 + 2.3 * len(penalties), 4.8)
    for column, (name, penalty) in enumerate(penalties.items()):
        above, below = figure.axes[column], figure.axes[len(penalties) + column]
        found = run["runs"][name]
        for values, amplitudes in zip(found["along"], found["amplitudes"], strict=True):
            z = -2 + 4 * np.arange(len(values)) / len(values)
            above.plot(z, values, color=COLOURS[penalty[0]], linewidth=1.2)
            below.plot(range(len(amplitudes)), amplitudes, color=COLOURS[penalty[0]], linewidth=1.2)
        above.set(xlabel="z", ylim=(-0.03, 1.03))
        below.set(xlabel="cycles on the line", yscale="log", ylim=(1e-4, 1.2))
        above.set_title(title(*penalty), fontsize=9)
        if column == 0:
            above.set_ylabel("σ∘f")
            below.set_ylabel("normalised amplitude")
        else:
            above.tick_params(labelleft=False)
            below.tick_params(labelleft=False)
    return figure


def line(run: dict[str, Any], penalties: Penalties) -> Figure:
    """Figure 13: twenty images along the latent line.

    Args:
        run: a result of `penalized_digits.trained`.
        penalties: not used: the line is the same for all.

    Returns:
        The figure.
    """
    images = np.array(run["images"])
    side = round(images.shape[1] ** 0.5)
    figure = new_figure(10, 2)
    figure.set_size_inches(9.0, 2.4)
    for axes, place in zip(figure.axes, np.linspace(0, len(images) - 1, 20).round().astype(int), strict=True):
        axes.imshow(images[place].reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"z = {-2 + 4 * place / len(images):.2f}", fontsize=7)
        axes.set(xticks=[], yticks=[])
    return figure
