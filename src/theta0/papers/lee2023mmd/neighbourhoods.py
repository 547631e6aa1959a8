"""Figures 1 and 2: what the neighbours of a start put out, and whether they depend on the input (§B.1, §B.2)."""

import math
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Tensor, nn

from theta0.initializers import MmdStep, mmd_
from theta0.measurements import jacobians, neighbours, perturbed_outputs
from theta0.papers.datasets import Dataset
from theta0.papers.devices import device
from theta0.papers.drawing import finish, new_figure
from theta0.papers.lee2023mmd.setting import SCALES, image_data, store_in, unlabelled
from theta0.papers.lee2023mmd.starts import drawn_start, made_start, start
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep
from theta0.papers.verdicts import verdict

_PANELS = 4
_SCALE = math.sqrt(0.5)
_BINS = np.linspace(0, 1, 21)
SQUARES = (0.2, 0.5, 1.0, 2.0)
_COLOURS = ("#1f5a94", "#c1521c")
_EVALUATED = 64  # samples on which Figure 2's losses are taken


def fig1(
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
    """Outputs of neighbours before and after pre-training on L_uni alone: uniform for each input, constant over inputs.

    Args:
        data: a data set or its name; None for MNIST (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the picture, its numbers and the pre-trained starts go.
        store: results kept across interruptions; None keeps them in `out_dir`.
        backend: joblib's.
        jobs: starts made at once.
        progress: called with how many are done, and of how many.

    Returns:
        One line that compares with the source.
    """
    chosen, size = image_data(data, root, scale), scale_named(SCALES, scale)
    after = start(
        chosen, "xavier", "mmd", 0, steps=size.steps, perturbations=size.perturbations, weights=(1.0, 0.0, 0.0)
    )
    before = start(chosen, "xavier", "none", 0, steps=0)
    wanted = [{"experiment": "densities", "start": found, "points": size.points} for found in (before, after)]
    compute = partial(densities, chosen, str(Path(out_dir) / "starts"))
    results = sweep(compute, wanted, store=store_in(out_dir, store), backend=backend, jobs=jobs, progress=progress)
    finish(_densities_drawn(results, chosen.label), {"before": results[0], "after": results[1]}, out_dir, "fig1")
    spreads = [found["spread_over_inputs"] for found in results]
    return (
        f"fig1, {chosen.label}, {size.steps} steps on L_uni alone: a neighbour's outputs have standard deviation "
        f"{spreads[0]:.3f} over inputs before and {spreads[1]:.3f} after, {results[1]['constant']:.0f} % of neighbours "
        f"are constant within 0.01 ({verdict(results[1]['constant'] > 50, 'most collapse into constants')})"
    )


def densities(data: Dataset, folder: str, configuration: Configuration) -> dict[str, Any]:
    """Histograms of the probability of class 0.

    Args:
        data: as the network takes it.
        folder: of the pre-trained starts.
        configuration: `start` and `points`.

    Returns:
        `by_input` and `by_neighbour`, four densities each, `spread_over_inputs` of 256 neighbours, and `constant`, the
        percentage of these that do not depend on the input.
    """
    model, points = made_start(data, folder, configuration["start"]), configuration["points"]
    rows = torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(0))[:points]
    x = data.train_x[rows].to(device())
    with torch.no_grad():
        around = perturbed_outputs(model, x[:_PANELS], perturbations=points, scale=_SCALE, generator=1)
        few = perturbed_outputs(model, x, perturbations=_PANELS, scale=_SCALE, generator=2)
        many = perturbed_outputs(model, x[:_EVALUATED], perturbations=256, scale=_SCALE, generator=3)
    probabilities = many.logits.detach().softmax(-1)
    records = neighbours(model, [x[:_EVALUATED]], scale=_SCALE, generator=3)
    constant = next(record.value for record in records if record.quantity == "constant_output_share")
    return {
        "by_input": [_density(column) for column in around.logits.detach().softmax(-1)[:, :, 0].T],
        "by_neighbour": [_density(row) for row in few.logits.detach().softmax(-1)[:, :, 0]],
        "spread_over_inputs": float(probabilities[:, :, 0].std(1).median()),
        "constant": 100 * constant,
    }


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
    """L_iod at the parameters and at their neighbours while it is minimized at the parameters alone.

    Args:
        data: a data set or its name; None for MNIST (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the picture and its numbers go.
        store: results kept across interruptions; None keeps them in `out_dir`.
        backend: joblib's.
        jobs: not used, there is one run.
        progress: called with how many are done, and of how many.

    Returns:
        One line that compares with the source.
    """
    chosen, size = image_data(data, root, scale), scale_named(SCALES, scale)
    wanted = {"experiment": "detachment", "start": start(chosen, "xavier", "none", 0, steps=0), "steps": size.steps}
    compute = partial(detachment_curves, chosen)
    (found,) = sweep(compute, [wanted], store=store_in(out_dir, store), backend=backend, jobs=jobs, progress=progress)
    finish(_curves_drawn(found, chosen.label), found, out_dir, "fig2")
    ends = ", ".join(f"s² = {s:g}: {np.mean(found[f'{s:g}'][-1]):.3f}" for s in SQUARES)
    return (
        f"fig2, {chosen.label}: L_iod from {found['itself'][0]:.3f} to {found['itself'][-1]:.4f} at the parameters; at "
        f"neighbours it ends at {ends} ({_neighbours_follow(found)})"
    )


def _neighbours_follow(found: dict[str, list[Any]]) -> str:
    left = [float(np.mean(found[f"{s:g}"][-1])) / float(np.mean(found[f"{s:g}"][0])) for s in SQUARES]
    return verdict(left[1] < 0.5 and left == sorted(left), "it falls there too for s² of 0.2 and 0.5, less for larger")


def detachment_curves(data: Dataset, configuration: Configuration) -> dict[str, list[Any]]:
    """Minimize L_iod and follow it at the parameters and at four neighbours for each scale.

    Args:
        data: as the network takes it.
        configuration: `start` and `steps`.

    Returns:
        `steps`, `itself`, and for each s² four values a step.
    """
    model, steps = drawn_start(data, configuration["start"]), configuration["steps"]
    x = data.train_x[torch.randperm(len(data.train_x), generator=torch.Generator().manual_seed(0))[:_EVALUATED]]
    looked_at = {round(step) for step in np.geomspace(1, steps, 40)}
    found: dict[str, list[Any]] = {"steps": [], "itself": [], **{f"{s:g}": [] for s in SQUARES}}

    def look(step: MmdStep | None) -> None:
        number = 0 if step is None else step.step
        if number and number not in looked_at:
            return
        found["steps"].append(number)
        found["itself"].append(_detachment(model, x))
        for square in SQUARES:
            found[f"{square:g}"].append([neighbour_detachment(model, x, math.sqrt(square), e) for e in range(_PANELS)])

    look(None)
    # Two perturbations are the fewest; their terms have no weight.
    mmd_(model, unlabelled(data.train_x), perturbations=2, uniformity=0.0, degenerate=0.0, steps=steps, generator=1_000,
         progress=look)  # fmt: skip
    return found


def neighbour_detachment(model: nn.Module, x: Float[Tensor, "n ..."], scale: float, seed: int) -> float:
    """L_iod at θ + ε, the deviations of ε as in §3.3.

    Args:
        model: of linear layers; as it was afterwards.
        x: inputs.
        scale: s.
        seed: of ε.

    Returns:
        The loss.
    """
    generator, kept = torch.Generator().manual_seed(seed), [(p, p.detach().clone()) for p in model.parameters()]
    with torch.no_grad():
        for layer in (m for m in model.modules() if isinstance(m, nn.Linear)):
            for parameter, fan in ((layer.weight, layer.in_features), (layer.bias, layer.out_features)):
                parameter += scale / math.sqrt(fan) * torch.randn(parameter.shape, generator=generator).to(parameter)
        value = _detachment(model, x)
        for parameter, before in kept:
            parameter.copy_(before)
    return value


def _detachment(model: nn.Module, x: Tensor) -> float:
    return next(record.value for record in jacobians(model, [x]) if record.quantity == "detachment")


def _density(values: Tensor) -> list[float]:
    counts: list[float] = np.histogram(values.cpu().numpy(), _BINS, density=True)[0].tolist()
    return counts


def _densities_drawn(results: list[dict[str, Any]], label: str) -> Figure:
    figure = new_figure(_PANELS, 2, height=2.4)
    figure.suptitle(f"Probability of class 0 at neighbours of a start, L_uni alone · {label}", fontsize=10)
    for row, key in enumerate(("by_input", "by_neighbour")):
        for column in range(_PANELS):
            axes = figure.axes[_PANELS * row + column]
            for colour, words, found in zip(_COLOURS, ("before", "after"), results, strict=True):
                axes.stairs(found[key][column], _BINS, color=colour, label=words, linewidth=1.3)
            axes.axhline(1.0, color="black", linestyle=":", linewidth=1, label="uniform")
            kind = "(a) one input, many neighbours" if row == 0 else "(b) one neighbour, many inputs"
            axes.set(xlabel="probability of class 0", ylabel="density", xlim=(0, 1))
            axes.set_title(f"{kind}, {column + 1}", fontsize=8)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=3, fontsize=8)
    return figure


def _curves_drawn(found: dict[str, list[Any]], label: str) -> Figure:
    figure = new_figure(len(SQUARES))
    figure.suptitle(f"L_iod while it is minimized at θ₀ alone · {label}", fontsize=10)
    steps = np.array(found["steps"]) + 1
    for axes, square in zip(figure.axes, SQUARES, strict=True):
        values = np.array(found[f"{square:g}"])
        mean, deviation = values.mean(1), values.std(1)
        axes.plot(steps, found["itself"], color=_COLOURS[0], label="at θ₀")
        axes.plot(steps, mean, color=_COLOURS[1], label="at θ₀ + ε, mean ± s.d. of four")
        low = np.maximum(mean - deviation, mean / 10)
        axes.fill_between(steps, low, mean + deviation, color=_COLOURS[1], alpha=0.2, linewidth=0)
        axes.set(xscale="log", yscale="log", xlabel="step + 1", ylabel="L_iod")
        axes.set_title(f"s² = {square:g}", fontsize=9)
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=2, fontsize=8)
    return figure
