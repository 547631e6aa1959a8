"""Figure 4: preactivations and their gradients through twenty sigmoid layers (section 4.4)."""

from pathlib import Path
from typing import Any

import torch
from matplotlib.figure import Figure
from torch import Tensor, nn
from torch.nn import functional as F

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, new_figure
from theta0.papers.kutsuna2019lcw.boxes import draw_boxes, flow, perceptron, quantiles, scaled_data
from theta0.papers.kutsuna2019lcw.variants import VARIANTS
from theta0.papers.sweeps import Progress, Store
from theta0.papers.verdicts import verdict
from theta0.theory import gradient_gain

_DEPTH, _SAMPLES = 20, 100
_PANELS = {"(a) standard weights": "unit variance", "(b) LCW": "LCW"}


def fig4(
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
    """Preactivations and gradients at the unit-variance start, with plain and with zero-sum weights, on 100 samples.

    Args:
        data: a data set of images or its name; None for CIFAR-10 (digits at smoke scale).
        root: where its files are.
        scale: `smoke`, `laptop` or `paper`; all take seconds.
        out_dir: where `fig4.png` and `fig4.json` go.
        store: not used.
        backend: not used.
        jobs: not used.
        progress: called after each network.

    Returns:
        One line that compares with the source.
    """
    chosen, size = scaled_data(data, root, scale)
    found: dict[str, dict[str, Any]] = {}
    for name, variant in _PANELS.items():
        model, batch = perceptron(variant, chosen, _DEPTH, size.width, samples=_SAMPLES)
        found[name] = chain(model.double(), *batch)
        found[name]["gain_expected"] = gradient_gain(torch.sigmoid, zero_sum=variant == "LCW")
        if progress is not None:
            progress(len(found), len(_PANELS))
    finish(_drawn(found, chosen.label), {"data": chosen.label, "panels": found}, out_dir, "fig4")
    plain, constrained = found.values()
    return (
        f"fig4, {chosen.label}: preactivation variance stays {_span(plain)} and {_span(constrained)}; from the last "
        f"hidden layer back to the first the gradient's variance changes by {_ratio(plain):.1e} with standard weights "
        f"({verdict(_ratio(plain) < 1e-6, 'it vanishes')}) and by {_ratio(constrained):.2f} with LCW "
        f"({verdict(1 < _ratio(constrained) < 10, 'it increases slightly')}); "
        f"per layer {plain['gain']:.3f} and {constrained['gain']:.3f}, theory {plain['gain_expected']:.3f} and "
        f"{constrained['gain_expected']:.3f}"
    )


def chain(model: nn.Module, x: Tensor, y: Tensor) -> dict[str, Any]:
    """Preactivations and their gradients in every hidden layer, over units and samples, in float64.

    Args:
        model: from `deep_perceptron`, in float64.
        x: inputs.
        y: classes.

    Returns:
        `preactivation_quantiles`, `gradient_quantiles`, `preactivation_variance`, `gradient_variance`, first layer
        first, and `gain`, the geometric mean over layers of the gradient variance's change from a layer to the one
        before it.
    """
    logits, preactivations, _ = flow(model, x.double())
    gradients = torch.autograd.grad(F.cross_entropy(logits, y), preactivations)
    preactivations = [z.detach() for z in preactivations]
    variances = [float(g.var(correction=0)) for g in gradients]
    return {
        "preactivation_quantiles": quantiles(torch.stack([z.flatten() for z in preactivations], 1)).tolist(),
        "gradient_quantiles": quantiles(torch.stack([g.flatten() for g in gradients], 1)).tolist(),
        "preactivation_variance": [float(z.var(correction=0)) for z in preactivations],
        "gradient_variance": variances,
        "gain": (variances[0] / variances[-1]) ** (1 / (len(variances) - 1)),
    }


def _span(found: dict[str, Any]) -> str:
    return f"{min(found['preactivation_variance']):.2f}-{max(found['preactivation_variance']):.2f}"


def _ratio(found: dict[str, Any]) -> float:
    return float(found["gradient_variance"][0] / found["gradient_variance"][-1])


def _drawn(found: dict[str, dict[str, Any]], label: str) -> Figure:
    figure = new_figure(2, 2, height=2.6)
    figure.suptitle(f"{_DEPTH}-layer sigmoid networks at the unit-variance start · {label}", fontsize=10)
    for column, (name, numbers) in enumerate(found.items()):
        colour = VARIANTS[_PANELS[name]].colour
        for row, kind in enumerate(("preactivation", "gradient")):
            axes = figure.axes[2 * row + column]
            draw_boxes(axes, numbers[f"{kind}_quantiles"], colour)
            axes.set(xlabel="hidden layer", ylabel=kind if row == 0 else "gradient of the preactivation")
        figure.axes[column].set_title(name, fontsize=9)
    largest = max(abs(v) for n in found.values() for row in n["gradient_quantiles"] for v in row)
    for axes in figure.axes[2:]:
        axes.set_ylim(-1.05 * largest, 1.05 * largest)
    return figure
