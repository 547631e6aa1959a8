"""Figures 17, 18, 22, 23: the loss after 50 updates over learning rate and depth or width (§4.3.3, §B.4.4)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from torch import Tensor

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, finite, new_figure
from theta0.papers.furusho2020thesis.eigenvalues import DRAWS, top_eigenvalues
from theta0.papers.furusho2020thesis.evaluation import evaluation_losses
from theta0.papers.furusho2020thesis.setting import (
    KINDS,
    SCALES,
    SURVIVAL,
    TITLES,
    WIDTH_SWEEP_DEPTH,
    fisher_bounds,
    half_squared_error,
    layer_draw,
    make_network,
    thesis_bounds,
    two_class_data,
    whitened,
)
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Moment, Progress, Store, sweep, train_stacked
from theta0.theory import max_learning_rate

DIVERGED = 1000.0
FACTORS = (0.5, 1.0, 1.6, 4.0)
_BOUNDS = {"thesis_rate": "2 / upper bound (thesis)", "independent_drops_rate": "2 / upper bound, independent drops"}
_MARKS = {"thesis_rate": ("#e02020", "s"), "independent_drops_rate": ("#ff9d4d", "v")}


@dataclass(frozen=True)
class RateMap:
    """The runs of one network over one axis.

    Attributes:
        kind: which network.
        axis: `depth` or `width`.
        cells: one result of `train_at_all_rates` per value of the axis.
        values: the axis.
        rates: learning rates of the grid.
    """

    kind: str
    axis: str
    cells: list[dict[str, Any]]
    values: list[int]
    rates: list[float]


def draw_rate_maps(
    name: str,
    axis: str,
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
    """Train all networks at all rates, draw the three maps and write the numbers.

    Args:
        name: of the files.
        axis: `depth` or `width`.
        thesis_data: the thesis's data set.
        data: a data set or its name; None for the thesis's (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where `name.png` and `name.json` go.
        store: results kept across interruptions.
        backend: joblib's.
        jobs: shapes trained at once.
        progress: called with how many shapes are done, and of how many.

    Returns:
        One line that compares with the thesis.
    """
    chosen, size = two_class_data(data, root, scale, thesis_data), scale_named(SCALES, scale)
    values = list(size.depths if axis == "depth" else size.widths)
    rates = np.logspace(-7, -1, size.rates).tolist()
    shapes = [(kind, value) for kind in KINDS for value in values]
    configurations = [
        {
            "experiment": "rate map",
            "bounds": list(_BOUNDS),
            "draws": DRAWS,
            "data": chosen.label,
            "samples": len(chosen.train_x),
            "network": kind,
            "depth": value if axis == "depth" else WIDTH_SWEEP_DEPTH,
            "width": size.width if axis == "depth" else value,
            "survival": SURVIVAL,
            "rates": rates,
            "factors": list(FACTORS),
            "runs": size.runs,
            "steps": size.steps,
        }
        for kind, value in shapes
    ]
    compute = partial(train_at_all_rates, chosen)
    results = sweep(compute, configurations, store=store, backend=backend, jobs=jobs, progress=progress)
    maps = [
        RateMap(kind, axis, [r for (k, _), r in zip(shapes, results, strict=True) if k == kind], values, rates)
        for kind in KINDS
    ]
    numbers = {"configurations": configurations, "results": results, "counts": {m.kind: counts(m) for m in maps}}
    finish(_drawn(maps, chosen.label), numbers, out_dir, name)
    return f"{name}, {chosen.label}: {_sentence(maps)}"


fig17 = partial(draw_rate_maps, "fig17", "depth", "mnist")
fig18 = partial(draw_rate_maps, "fig18", "width", "mnist")
fig22 = partial(draw_rate_maps, "fig22", "depth", "cifar10")
fig23 = partial(draw_rate_maps, "fig23", "width", "cifar10")


def train_at_all_rates(data: Dataset, configuration: Configuration) -> dict[str, Any]:
    """All runs of one shape: at the grid's rates, and at multiples of 2/λ of each run's own start.

    Args:
        data: two classes, not yet whitened.
        configuration: the shape and the grid.

    Returns:
        The last losses in training, the first and last ones in evaluation (they differ where training drops layers,
        so that training losses of two updates belong to different networks), λ of each start, 2/bound as the thesis
        states it (None where Theorem 8 does not apply) and for independent drops (None but for stochastic depth).
    """
    kind, depth, width = configuration["network"], configuration["depth"], configuration["width"]
    x, y = whitened(data, width)
    seeds = list(range(configuration["runs"]))
    draw = layer_draw(kind, depth, configuration["survival"])
    tops = top_eigenvalues(kind, depth, x, seeds, configuration["survival"])
    edges = 2 / torch.tensor(tops, dtype=torch.float64)
    grid = torch.tensor(configuration["rates"], dtype=torch.float64).unsqueeze(1).expand(-1, len(seeds))
    table = torch.cat([grid, torch.tensor(configuration["factors"], dtype=torch.float64).unsqueeze(1) * edges])
    evaluate = evaluation_losses(kind, depth, width, configuration["survival"])
    evaluated = torch.full((table.numel(), 2), torch.inf)

    def observe(moment: Moment) -> None:
        if moment.step in {0, configuration["steps"]}:
            evaluated[moment.members, int(moment.step > 0)] = evaluate(moment.weights, x, y, x)

    losses = train_stacked(
        partial(make_network, kind, width, depth),
        x,
        y,
        half_squared_error,
        rates=table,
        seeds=seeds,
        steps=configuration["steps"],
        draw=draw,
        limit=DIVERGED,
        observe=observe,
    )
    first, last = evaluated.view(*table.shape, 2).unbind(-1)
    last = torch.where(torch.isfinite(losses[..., -1]), last, torch.inf)
    thesis = thesis_bounds(kind, depth, width, configuration["survival"])
    drops = fisher_bounds(kind, depth, width, configuration["survival"]) if kind == "stochastic_depth" else None
    return {
        "training_last": finite(losses[: len(grid), :, -1].tolist()),
        "first": finite(first[0].tolist()),
        "last": finite(last[: len(grid)].tolist()),
        "last_at_factors": finite(last[len(grid) :].tolist()),
        "top_eigenvalues": tops,
        "thesis_rate": thesis and max_learning_rate(thesis),
        "independent_drops_rate": drops and max_learning_rate(drops),
    }


def counts(rate_map: RateMap) -> dict[str, str]:
    """How many runs end finite and below their first loss, at each multiple of 2/λ of their start.

    Args:
        rate_map: all runs of one network.

    Returns:
        `"below/all"` by factor.
    """
    fell = torch.stack([_fell(cell["last_at_factors"], cell["first"]) for cell in rate_map.cells])
    return {f"{factor:g}": f"{int(fell[:, i].sum())}/{fell[:, i].numel()}" for i, factor in enumerate(FACTORS)}


def _numbers(nested: list[Any]) -> Tensor:
    return torch.tensor([[np.inf if v is None else v for v in row] for row in nested], dtype=torch.float64)


def _fell(last: list[Any], first: list[float]) -> Tensor:
    return _numbers(last) < _numbers([first])


def caution(rate_map: RateMap, rate: str) -> list[float]:
    """How far a bound's rate lies below 2/λ of the median start; below 1 it lies above.

    Args:
        rate_map: all runs of one network.
        rate: `thesis_rate` or `independent_drops_rate`.

    Returns:
        One factor per value of the axis at which there is such a rate.
    """
    return [_measured(cell) / cell[rate] for cell in rate_map.cells if cell[rate] is not None]


def _measured(cell: dict[str, Any]) -> float:
    return 2 / float(np.median(cell["top_eigenvalues"]))


def _sentence(maps: list[RateMap]) -> str:
    parts = []
    for rate_map in maps:
        count = counts(rate_map)
        below = [_below(name, caution(rate_map, rate)) for rate, name in _BOUNDS.items()]
        parts.append(
            f"{TITLES[rate_map.kind]}: {count['1']} runs fall at 2/λ measured, {count['1.6']} at 1.6 times it, "
            f"{count['4']} at 4 times; {', '.join(filter(None, below))}"
        )
    return "; ".join(parts)


def _below(name: str, factors: list[float]) -> str:
    """Whether 2/bound is below 2/λ, and by how much."""
    if not factors:
        return ""
    above = sum(factor < 1 for factor in factors)
    place = f", above it for {above} of {len(factors)}" if above else ""
    return f"{name} is 2/λ divided by {min(factors):.2g}-{max(factors):.2g}{place}"


def _drawn(maps: list[RateMap], label: str) -> Figure:
    figure = new_figure(len(maps), height=3.8)
    figure.suptitle(f"Training loss after gradient descent · {label}", fontsize=10)
    for axes, rate_map in zip(figure.axes, maps, strict=True):
        image = _draw_map(axes, rate_map)
    figure.colorbar(image, ax=figure.axes[: len(maps)], label="mean loss (white: above 1000, or diverged)")
    named = {label: h for axes in figure.axes for h, label in zip(*axes.get_legend_handles_labels(), strict=True)}
    figure.legend(named.values(), named.keys(), loc="outside lower center", ncols=2, fontsize=9)
    return figure


def _draw_map(axes: Axes, rate_map: RateMap) -> Any:
    mean = torch.stack([_numbers(cell["training_last"]).mean(1) for cell in rate_map.cells], 1).numpy()
    shown = np.ma.masked_where(~(mean <= DIVERGED), mean)
    columns = np.arange(len(rate_map.values))
    image = axes.pcolormesh(
        columns, rate_map.rates, shown, norm=LogNorm(1e-3, DIVERGED), cmap="viridis", shading="nearest"
    )
    for rate, (colour, marker) in _MARKS.items():
        values = np.array([cell[rate] for cell in rate_map.cells], dtype=float)  # None becomes nan
        if np.isfinite(values).any():
            axes.plot(columns, values, color=colour, marker=marker, markersize=4, label=_BOUNDS[rate])
    measured = [_measured(cell) for cell in rate_map.cells]
    axes.plot(columns, measured, color="black", marker="o", markersize=4, label="2 / λ measured (median start)")
    fell = torch.stack([_fell(cell["last"], cell["first"]).all(1) for cell in rate_map.cells], 1).numpy()
    row, column = np.nonzero(fell)
    axes.scatter(
        columns[column],
        np.array(rate_map.rates)[row],
        s=9,
        color="white",
        edgecolor="dimgrey",
        linewidth=0.6,
        label="every run ends below its first loss",
    )
    axes.set_yscale("log")
    axes.set_ylim(rate_map.rates[0] / 1.5, rate_map.rates[-1] * 1.5)
    axes.set_xticks(columns, [str(value) for value in rate_map.values])
    axes.set_xlabel("depth L" if rate_map.axis == "depth" else "width D")
    axes.set_ylabel("learning rate")
    axes.set_title(TITLES[rate_map.kind], fontsize=10)
    return image
