"""Figures 15 and 20: do the thesis's two assumptions hold at the start (§4.1, §B.4.2)?"""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor
from torch.nn import functional as F

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, finite, new_figure
from theta0.papers.furusho2020thesis.setting import (
    COLOURS,
    KINDS,
    SCALES,
    SURVIVAL,
    TITLES,
    Kind,
    layer_draw,
    make_network,
    two_class_data,
    whitened,
)
from theta0.papers.models import ThesisResNet
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep

_MORE = 10  # the products of Assumption 1 have heavy tails and cost one forward and backward pass a start


def draw_activation_rates(
    name: str,
    thesis_data: str,
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
    """Share of active units in each layer, and how far forward and backward signals depend on each other.

    Args:
        name: of the files.
        thesis_data: the thesis's data set.
        data: a data set or its name; None for the thesis's (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where `name.png` and `name.json` go.
        store: results kept across interruptions.
        backend: joblib's.
        jobs: networks measured at once.
        progress: called with how many networks are done, and of how many.

    Returns:
        One line that compares with the thesis.
    """
    chosen, size = two_class_data(data, root, scale, thesis_data), scale_named(SCALES, scale)
    configurations = [
        {
            "experiment": "assumptions",
            "data": chosen.label,
            "samples": len(chosen.train_x),
            "network": kind,
            "depth": max(size.depths),
            "width": size.width,
            "starts": _MORE * size.starts,
        }
        for kind in KINDS
    ]
    compute = partial(assumptions, chosen)
    results = sweep(compute, configurations, store=store, backend=backend, jobs=jobs, progress=progress)
    measured = dict(zip(KINDS, results, strict=True))
    finish(_drawn(measured, chosen.label), {"configurations": configurations, "results": results}, out_dir, name)
    rates = [rate for found in results for rate in found["rate"]]
    residuals = "; ".join(f"{TITLES[kind]} up to {_largest(measured[kind]['residual']):+.2f}" for kind in KINDS)
    return (
        f"{name}, {chosen.label}: {min(rates):.3f}-{max(rates):.3f} of the units are active, Assumption 2 says 0.5; "
        f"relative residual of Assumption 1: {residuals}"
    )


fig15 = partial(draw_activation_rates, "fig15", "mnist")
fig20 = partial(draw_activation_rates, "fig20", "cifar10")


def assumptions(data: Dataset, configuration: Configuration) -> dict[str, list[float | None]]:
    """Measure both assumptions over several starts.

    Args:
        data: two classes, not yet whitened.
        configuration: `network`, `depth`, `width`, `starts`.

    Returns:
        For layers 1 … L: `rate`, the share of active units, its `deviation` over starts, and `residual`,
        E[u²δ²] / (E[u²] E[δ²]) - 1, which Assumption 1 takes as 0 (None for a layer that was never kept).
    """
    kind, depth = configuration["network"], configuration["depth"]
    x, _ = whitened(data, configuration["width"])
    draw = layer_draw(kind, depth, SURVIVAL)
    active, forward, backward, product = [], [], [], []
    for seed in range(configuration["starts"]):
        generator = torch.Generator().manual_seed(seed)
        model = make_network(kind, x.shape[1], depth, generator)
        kept = draw(generator) if draw else None
        inputs, errors = signals(model, x, kept)
        active.append(torch.stack([(u > 0).double().mean() for u in inputs]))
        beta = torch.ones(depth) if kept is None else kept
        u2 = torch.stack([b * u.double().square().mean(1) for b, u in zip(beta, inputs, strict=True)])
        d2 = torch.stack([d.double().square().mean(1) for d in errors])
        forward.append(u2.mean(1))
        backward.append(d2.mean(1))
        product.append((u2 * d2).mean(1))
    rates = torch.stack(active)
    expected = torch.stack(forward).mean(0) * torch.stack(backward).mean(0)
    residual = torch.stack(product).mean(0) / expected - 1
    parts = {"rate": rates.mean(0), "deviation": rates.std(0), "residual": residual}
    return {key: finite(values.tolist()) for key, values in parts.items()}


def signals(
    model: ThesisResNet, x: Float[Tensor, "n width"], kept: Float[Tensor, " depth"] | None = None
) -> tuple[list[Float[Tensor, "n width"]], list[Float[Tensor, "n width"]]]:
    """Forward signals φ(BN(hˡ⁻¹)) before the drop, and backward errors δˡ = ∂f/∂hˡ, for l = 1 … L.

    Batch statistics are constant, as in the thesis's Lemma 3.

    Args:
        model: the network.
        x: inputs.
        kept: the layers that stochastic depth keeps.

    Returns:
        Both, one tensor per layer.
    """
    statistics = model.batch_statistics(x, kept)
    states = model.hidden(x, kept, statistics)
    errors = torch.autograd.grad(states[-1].sum(), states[1:])
    inputs = []
    for layer, state in enumerate(states[:-1]):
        normal = state if statistics is None else F.batch_norm(state, *statistics[layer])
        inputs.append(F.relu(normal).detach())
    return inputs, list(errors)


def _largest(residuals: list[float | None]) -> float:
    return max((value for value in residuals if value is not None), key=abs)


def _drawn(measured: dict[Kind, dict[str, Any]], label: str) -> Figure:
    figure = new_figure(2)
    figure.suptitle(f"Assumptions 2 and 1 at the start · {label}", fontsize=10)
    rates, residuals = figure.axes
    for kind, found in measured.items():
        layers = list(range(1, len(found["rate"]) + 1))
        rates.errorbar(
            layers,
            found["rate"],
            found["deviation"],
            marker="o",
            markersize=4,
            capsize=3,
            color=COLOURS[kind],
            label=TITLES[kind],
        )
        residuals.plot(layers, np.array(found["residual"], dtype=float), marker="o", markersize=4, color=COLOURS[kind])
    rates.axhline(0.5, color="grey", linestyle="--", linewidth=1, label="assumed")
    residuals.axhline(0.0, color="grey", linestyle="--", linewidth=1)
    rates.set(ylim=(0.25, 0.75), xlabel="layer", ylabel="share of active units (mean ± s.d. of starts)")
    residuals.set(xlabel="layer", ylabel="E[u²δ²] / (E[u²] E[δ²]) - 1")
    for axes in figure.axes:
        axes.set_xticks(layers)
    figure.legend(loc="outside lower center", ncols=4, fontsize=8)
    return figure
