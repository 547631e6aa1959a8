"""Figures 2 and 3: how each unit's activation is distributed, with zero-sum weights and without (section 3)."""

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import nn

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, new_figure
from theta0.papers.kutsuna2019lcw.boxes import draw_boxes, flow, perceptron, quantiles, scaled_data
from theta0.papers.kutsuna2019lcw.training import evaluated, train
from theta0.papers.kutsuna2019lcw.variants import VARIANTS
from theta0.papers.sweeps import Progress, Store
from theta0.papers.verdicts import verdict
from theta0.theory import common_mean_share

_DEPTH, _SHOWN, _UNITS = 10, (1, 5, 9), 20
_NEAR, _ALONG, _VARIES = 0.15, 0.95, 0.05  # of a mean to 0.5; share of the mean along 1; least deviation of a unit
Spread = dict[str, Any]


def fig2(
    data: Dataset | str | None = None,
    root: str | Path | None = None,
    *,
    scale: str = "laptop",
    out_dir: str | Path = ".",
    store: Store | None = None,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Activations of a ten-layer sigmoid network under LCW, (a) at its start and (b) after ten epochs of section 6.1.

    Args:
        data: a data set of images or its name; None for CIFAR-10 (digits at smoke scale).
        root: where its files are.
        scale: `smoke` (seconds; two epochs), `laptop` or `paper` (the source's ten, minutes).
        out_dir: where `fig2.png` and `fig2.json` go.
        store: not used.
        backend: not used.
        jobs: not used: it is one network.
        progress: called before and after the training.

    Returns:
        One line that compares with the source.
    """
    chosen, size = scaled_data(data, root, scale)
    model, (x, _) = perceptron("LCW", chosen, _DEPTH, size.width)
    before = activation_spread(model, x)
    if progress is not None:
        progress(0, 1)
    curves = train(model, chosen, size.plan, torch.Generator().manual_seed(1))
    if progress is not None:
        progress(1, 1)
    after = activation_spread(model, x)
    loss, accuracy = evaluated(model, chosen)
    epochs = size.plan.epochs
    panels = {"(a) at the start": before, f"(b) after {epochs} epochs": after}
    numbers = {"data": chosen.label, "panels": panels, "curves": curves, "test_loss": loss, "test_accuracy": accuracy}
    finish(_drawn(panels, f"under LCW · {chosen.label}", VARIANTS["LCW"].colour), numbers, out_dir, "fig2")
    return (
        f"fig2, {chosen.label}: at the start unit means are {_range(before)} and the activations' mean lies to "
        f"{min(before['common_mean_share']):.1%} at least along 1 ({_near(before)}); after {epochs} epochs (test "
        f"accuracy {accuracy:.1%}) {_range(after)} and {min(after['common_mean_share']):.1%}; standard deviation of a "
        f"unit in layer 9 {after['within_unit'][8]:.3f}, {before['within_unit'][8]:.3f} before ({_varied(after)})"
    )


def fig3(
    data: Dataset | str | None = None,
    root: str | Path | None = None,
    *,
    scale: str = "laptop",
    out_dir: str | Path = ".",
    store: Store | None = None,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> str:
    """The same network without LCW, at Glorot's start.

    Args:
        data: a data set of images or its name; None for CIFAR-10 (digits at smoke scale).
        root: where its files are.
        scale: `smoke`, `laptop` or `paper`; all take seconds.
        out_dir: where `fig3.png` and `fig3.json` go.
        store: not used.
        backend: not used.
        jobs: not used.
        progress: called once it is done.

    Returns:
        One line that compares with the source.
    """
    chosen, size = scaled_data(data, root, scale)
    model, (x, _) = perceptron("plain", chosen, _DEPTH, size.width)
    found = activation_spread(model, x)
    panels = {"at Glorot's start": found}
    finish(_drawn(panels, f"without LCW · {chosen.label}", "#7a7a7a"), {"data": chosen.label} | found, out_dir, "fig3")
    if progress is not None:
        progress(1, 1)
    shown = ", ".join(f"{found['within_unit'][layer - 1]:.1e}" for layer in _SHOWN)
    return (
        f"fig3, {chosen.label}: without LCW a unit's standard deviation over samples is {shown} in layers 1, 5, 9 "
        f"({_vanishes(found)}), while units differ by {found['between_units'][8]:.3f} in layer 9"
    )


def activation_spread(model: nn.Module, x: torch.Tensor) -> Spread:
    """How activations are distributed, by layer and unit.

    Args:
        model: from `deep_perceptron`.
        x: a minibatch.

    Returns:
        `quantiles` of the first units of the layers shown, and for every layer `within_unit` (the root mean square of
        units' standard deviations), `between_units` (the standard deviation of units' means), `lowest_mean` and
        `highest_mean` of a unit, and `common_mean_share`.
    """
    with torch.no_grad():
        layers = [a.double() for a in flow(model, x)[2]]
    means = [a.mean(0) for a in layers]
    return {
        "quantiles": {str(layer): quantiles(layers[layer - 1][:, :_UNITS]).tolist() for layer in _SHOWN},
        "within_unit": [float(a.var(0, correction=0).mean().sqrt()) for a in layers],
        "between_units": [float(mean.std(correction=0)) for mean in means],
        "lowest_mean": [float(mean.min()) for mean in means],
        "highest_mean": [float(mean.max()) for mean in means],
        "common_mean_share": [common_mean_share(mean) for mean in means],
    }


def _near(start: Spread) -> str:
    within = min(start["lowest_mean"]) > 0.5 - _NEAR and max(start["highest_mean"]) < 0.5 + _NEAR
    return verdict(within and min(start["common_mean_share"]) > _ALONG, "means are about 0.5 and 𝒫_γ nearly holds")


def _varied(trained: Spread) -> str:
    return verdict(min(trained["within_unit"]) > _VARIES, "units take various values")


def _vanishes(found: Spread) -> str:
    return verdict(found["within_unit"][8] < found["within_unit"][0] / 100, "it shrinks rapidly through the layers")


def _range(found: Spread) -> str:
    return f"{min(found['lowest_mean']):.2f}-{max(found['highest_mean']):.2f}"


def _drawn(panels: dict[str, Spread], title: str, colour: str) -> Figure:
    figure = new_figure(len(_SHOWN), len(panels), height=2.4)
    figure.suptitle(f"Activations of the first {_UNITS} units, {_DEPTH}-layer sigmoid network {title}", fontsize=10)
    for row, (name, found) in enumerate(panels.items()):
        for column, layer in enumerate(_SHOWN):
            axes = figure.axes[row * len(_SHOWN) + column]
            draw_boxes(axes, found["quantiles"][str(layer)], colour)
            axes.set_title(f"{name}, layer {layer}", fontsize=9)
            axes.set(ylim=(-0.02, 1.02), xlabel="unit", ylabel="activation" if column == 0 else "")
    return figure
