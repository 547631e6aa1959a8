"""Table 5 and Figure 3: the scale of the perturbation and the weight of the degenerate-softmax term (§C.2)."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float
from matplotlib.figure import Figure

from theta0.papers.datasets import Dataset
from theta0.papers.drawing import finish, finish_table, new_figure
from theta0.papers.lee2023mmd.degeneracies import mean_and_deviation, shares_of_start, shares_wanted
from theta0.papers.lee2023mmd.published import GRID, words
from theta0.papers.lee2023mmd.setting import SCALES, Scale, image_data, store_in
from theta0.papers.lee2023mmd.starts import Configuration, history_store, make_missing, start, start_file
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Progress, Store, sweep

Cell = tuple[float, float]
_COLOURS = ("#1f5a94", "#c1521c", "#3c7d3c", "#6b4c9a")


def table5(
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
    """Degenerate softmax and the largest dead share over hidden layers, over a grid of s² and λ with ξ = 1.

    Args:
        data: a data set or its name; None for MNIST (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the table, its numbers and the pre-trained starts go.
        store: results kept across interruptions; None keeps them in `out_dir`.
        backend: joblib's.
        jobs: starts made at once.
        progress: called with how many are done, and of how many.

    Returns:
        One line that compares with the source.
    """
    chosen, size, folder = image_data(data, root, scale), scale_named(SCALES, scale), str(Path(out_dir) / "starts")
    described = _described(chosen, size)
    every = [found for runs in described.values() for found in runs]
    make_missing(chosen, folder, every, backend=backend, jobs=jobs, progress=progress)
    wanted = [
        shares_wanted(found, size.perturbations, size.mini_batches, cell[0])
        for cell, runs in described.items()
        for found in runs
    ]
    compute = partial(shares_of_start, chosen, folder)
    results = iter(
        sweep(compute, wanted, store=store_in(out_dir, store), backend=backend, jobs=jobs, progress=progress)
    )
    table = {cell: np.array([_pair(next(results)) for _ in runs]) for cell, runs in described.items()}
    rows = [_cells(cell, runs) for cell, runs in table.items()]
    numbers = [{"cell": list(cell), "runs": runs.tolist(), "source": GRID.get(cell)} for cell, runs in table.items()]
    header = ["s²", "λ", "DS (%)", "IOD (%)", "source DS", "source IOD"]
    finish_table(header, rows, {"cells": numbers}, out_dir, "table5")
    cell = (0.5, 0.4) if (0.5, 0.4) in table else next(iter(table))
    ours, source = table[cell].mean(0), GRID.get(cell)
    beside = f"{source[0][0]:.2f} % and {source[1][0]:.2f} %" if source else "none"
    return (
        f"table5, {chosen.label}, {size.grid_steps} steps, s² = {cell[0]:g}, λ = {cell[1]:g}: degenerate "
        f"{ours[0]:.2f} %, dead at most {ours[1]:.2f} %; source {beside}"
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
    """L_uni over pre-training on the grid of Table 5, means of every hundred steps.

    Args:
        data: a data set or its name; None for MNIST (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where the picture, its numbers and the pre-trained starts go.
        store: not used; the curves are kept beside the starts.
        backend: joblib's.
        jobs: starts made at once.
        progress: called with how many are done, and of how many.

    Returns:
        One line that compares with the source.
    """
    chosen, size, folder = image_data(data, root, scale), scale_named(SCALES, scale), str(Path(out_dir) / "starts")
    described = _described(chosen, size)
    every = [found for runs in described.values() for found in runs]
    make_missing(chosen, folder, every, backend=backend, jobs=jobs, progress=progress)
    curves = {cell: [uniformity_curve(folder, found) for found in runs] for cell, runs in described.items()}
    numbers = [{"cell": list(cell), "steps": runs[0][0], "runs": [y for _, y in runs]} for cell, runs in curves.items()]
    finish(_drawn(curves, chosen.label), {"curves": numbers}, out_dir, "fig3")
    ends = ", ".join(f"(s² {c[0]:g}, λ {c[1]:g}) {np.mean([y[-1] for _, y in runs]):.4f}" for c, runs in curves.items())
    return (
        f"fig3, {chosen.label}: L_uni after {size.grid_steps} steps: {ends}; "
        "source: near 0 unless λ = 1, where it stays up"
    )


def uniformity_curve(folder: str | Path, description: Configuration) -> tuple[list[int], list[float]]:
    """L_uni during the pre-training of a start.

    Args:
        folder: of the starts.
        description: of the start.

    Returns:
        Steps, and the means over the hundred steps that ended there.
    """
    found: dict[int, float] = {}
    for key, result in history_store(start_file(folder, description)).read().items():
        step = key.removeprefix('{"step":').removesuffix("}")
        if step.isdigit():
            found[int(step)] = result["uniformity"]
    steps = sorted(found)
    return steps, [found[step] for step in steps]


def _described(data: Dataset, size: Scale) -> dict[Cell, list[dict[str, Any]]]:
    return {
        (square, degenerate): [
            start(
                data,
                "xavier",
                "mmd",
                run,
                steps=size.grid_steps,
                perturbations=size.perturbations,
                square_scale=square,
                weights=(1.0, degenerate, 1.0),
            )
            for run in range(size.grid_runs)
        ]
        for square in size.scales
        for degenerate in size.degenerates
    }


def _pair(found: dict[str, list[float]]) -> tuple[float, float]:
    dead = [mean_and_deviation(values)[0] for key, values in found.items() if key.startswith("dead_")]
    return mean_and_deviation(found["degenerate"])[0], max(dead)


def _cells(cell: Cell, runs: Float[np.ndarray, "runs 2"]) -> list[str]:
    spread = runs.std(0, ddof=1) if len(runs) > 1 else None
    values = [f"{mean:.2f}" + ("" if spread is None else f" ± {spread[i]:.2f}") for i, mean in enumerate(runs.mean(0))]
    return [f"{cell[0]:g}", f"{cell[1]:g}", *values, *(words(value) for value in GRID.get(cell, (None, None)))]


def _drawn(curves: dict[Cell, list[tuple[list[int], list[float]]]], label: str) -> Figure:
    squares = list(dict.fromkeys(cell[0] for cell in curves))
    figure = new_figure(len(squares))
    spread = " · mean ± s.d. of runs" if any(len(runs) > 1 for runs in curves.values()) else ""
    figure.suptitle(f"L_uni during pre-training from Xavier, ξ = 1 · {label}{spread}", fontsize=10)
    for axes, square in zip(figure.axes, squares, strict=True):
        here = [item for item in curves.items() if item[0][0] == square]
        for colour, (cell, runs) in zip(_COLOURS, here, strict=False):
            values = np.array([y for _, y in runs])
            mean, deviation = values.mean(0), values.std(0)
            axes.plot(runs[0][0], mean, color=colour, label=f"λ = {cell[1]:g}", marker="." if len(mean) < 3 else "")
            axes.fill_between(runs[0][0], mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
        axes.set(xscale="log", xlabel="step", ylabel="L_uni (unbiased)")
        axes.axhline(0.0, color="grey", linestyle="--", linewidth=1)
        axes.set_title(f"s² = {square:g}", fontsize=9)
    limits = [axes.get_ylim() for axes in figure.axes]
    for axes in figure.axes:  # they are compared
        axes.set_ylim(min(low for low, _ in limits), max(high for _, high in limits))
    figure.legend(*figure.axes[0].get_legend_handles_labels(), loc="outside lower center", ncols=4, fontsize=8)
    return figure
