"""Figures 19 and 24: training and test loss at η = 1/(upper bound of λ_max) (§4.3.4, §B.4.5)."""

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure

from theta0.papers.datasets import Dataset, pca_whiten
from theta0.papers.drawing import finish, finite, new_figure
from theta0.papers.furusho2020thesis.eigenvalues import DRAWS, top_eigenvalues
from theta0.papers.furusho2020thesis.evaluation import evaluation_losses
from theta0.papers.furusho2020thesis.setting import (
    COLOURS,
    KINDS,
    SCALES,
    SPEED_DEPTH,
    SURVIVAL,
    TITLES,
    Kind,
    half_squared_error,
    layer_draw,
    make_network,
    thesis_bounds,
    two_class_data,
)
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Moment, Progress, Store, sweep, train_stacked

RATES = ("1 / upper bound", "1 / λ measured")


def draw_speed(
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
    """Training and test loss over updates of the three networks, at the thesis's rate and at the measured one.

    Args:
        name: of the files.
        thesis_data: the thesis's data set.
        data: a data set or its name; None for the thesis's (digits at smoke scale).
        root: where its files are.
        scale: size of the experiment.
        out_dir: where `name.png` and `name.json` go.
        store: results kept across interruptions.
        backend: joblib's.
        jobs: networks trained at once.
        progress: called with how many networks are done, and of how many.

    Returns:
        One line that compares with the thesis.
    """
    chosen, size = two_class_data(data, root, scale, thesis_data), scale_named(SCALES, scale)
    configurations = [
        {
            "experiment": "speed",
            "bound": "Theorem 8",
            "draws": DRAWS,
            "data": chosen.label,
            "samples": [len(chosen.train_x), len(chosen.test_x)],
            "network": kind,
            "depth": SPEED_DEPTH,
            "width": size.width,
            "survival": SURVIVAL,
            "runs": size.speed_runs,
            "steps": size.steps,
        }
        for kind in KINDS
    ]
    compute = partial(losses_over_updates, chosen)
    results = sweep(compute, configurations, store=store, backend=backend, jobs=jobs, progress=progress)
    curves = dict(zip(KINDS, results, strict=True))
    finish(_drawn(curves, chosen.label), {"configurations": configurations, "curves": curves}, out_dir, name)
    return f"{name}, {chosen.label}: {_sentence(curves)}"


fig19 = partial(draw_speed, "fig19", "mnist")
fig24 = partial(draw_speed, "fig24", "cifar10")


def losses_over_updates(data: Dataset, configuration: Configuration) -> dict[str, Any]:
    """Train at both rates and evaluate after every update.

    Args:
        data: two classes, not yet whitened.
        configuration: the shape and the number of runs and updates.

    Returns:
        `train` and `test` losses `[rate][run][update]`, None where a run has diverged, and the rates.

    Raises:
        ValueError: if Theorem 8 does not apply, p·L not being whole.
    """
    kind, depth, width = configuration["network"], configuration["depth"], configuration["width"]
    survival, steps = configuration["survival"], configuration["steps"]
    ready = pca_whiten(data, width)
    y, test_y = (labels.float().unsqueeze(1) for labels in (ready.train_y, ready.test_y))
    seeds = list(range(configuration["runs"]))
    draw = layer_draw(kind, depth, survival)
    bounds = thesis_bounds(kind, depth, width, survival)
    if bounds is None:
        raise ValueError(f"survival: expected p with p·L whole (Theorem 8), got {survival} at L = {depth}")
    theory = 1 / bounds.upper
    measured = [1 / top for top in top_eigenvalues(kind, depth, ready.train_x, seeds, survival)]
    evaluate = evaluation_losses(kind, depth, width, survival)
    evaluated = torch.full((2, 2 * len(seeds), steps + 1), torch.inf)

    def observe(moment: Moment) -> None:
        for row, (x, targets) in enumerate(((ready.train_x, y), (ready.test_x, test_y))):
            evaluated[row, moment.members, moment.step] = evaluate(moment.weights, x, targets, ready.train_x)

    train_stacked(
        partial(make_network, kind, width, depth),
        ready.train_x,
        y,
        half_squared_error,
        rates=torch.tensor([[theory] * len(seeds), measured], dtype=torch.float64),
        seeds=seeds,
        steps=steps,
        draw=draw,
        observe=observe,
    )
    train, test = evaluated.view(2, 2, len(seeds), steps + 1)
    return {
        "train": finite(train.tolist()),
        "test": finite(test.tolist()),
        "theory_rate": theory,
        "measured_rates": measured,
    }


def _curves(nested: list[Any]) -> Float[np.ndarray, "rates runs updates"]:
    return np.array(nested, dtype=float)  # None becomes nan


def shares(nested: list[Any]) -> Float[np.ndarray, "rates runs updates"]:
    """The share of each run's starting loss that is left: the networks start at very different losses.

    Args:
        nested: losses `[rate][run][update]`, None where a run has diverged.

    Returns:
        The same divided by the run's first loss, nan where it has diverged.
    """
    losses = _curves(nested)
    left: Float[np.ndarray, "rates runs updates"] = losses / losses[:, :, :1]
    return left


def _sentence(curves: dict[Kind, dict[str, Any]]) -> str:
    updates = len(curves["resnet"]["train"][0][0]) - 1
    first = ", ".join(f"{TITLES[kind]} {_curves(curves[kind]['train'])[0, :, 0].mean():.3g}" for kind in KINDS)
    parts = [f"training losses start at {first}"]
    for row, rate in enumerate(RATES):
        left = {kind: shares(curves[kind]["train"])[row, :, -1] for kind in KINDS}
        ends = ", ".join(f"{TITLES[kind]} {_end(runs)}" for kind, runs in left.items())
        parts.append(f"share left after {updates} updates at {rate}: {ends} ({_faster(left)})")
    return "; ".join(parts) + "; in the thesis both are faster than the plain network"


def _faster(left: dict[Kind, Float[np.ndarray, " runs"]]) -> str:
    """Which networks have less of their loss left than the plain one, in the mean of the runs that ended."""
    plain = _mean(left["resnet"])
    faster = [TITLES[kind] for kind in KINDS if kind != "resnet" and _mean(left[kind]) < plain]
    return f"faster than the plain network: {' and '.join(faster) or 'neither'}"


def _mean(runs: Float[np.ndarray, " runs"]) -> float:
    """Infinite where a run diverged."""
    return float(runs.mean()) if np.isfinite(runs).all() else np.inf


def _end(runs: Float[np.ndarray, " runs"]) -> str:
    ended = runs[np.isfinite(runs)]
    lost = f" ({len(runs) - len(ended)} of {len(runs)} runs diverged)" if len(ended) < len(runs) else ""
    spread = f" ± {ended.std(ddof=1):.2g}" if len(ended) > 1 else ""
    return f"{ended.mean():.3g}{spread}{lost}" if len(ended) else f"none: all {len(runs)} runs diverged"


def _drawn(curves: dict[Kind, dict[str, Any]], label: str) -> Figure:
    figure = new_figure(2, 2, height=2.8)
    figure.suptitle(f"{SPEED_DEPTH}-layer networks, loss left, mean ± s.d. of runs · {label}", fontsize=10)
    for row, rate in enumerate(RATES):
        for column, part in enumerate(("train", "test")):
            axes = figure.axes[2 * row + column]
            for kind in KINDS:
                runs = shares(curves[kind][part])[row]
                runs = runs[np.isfinite(runs).all(1)]  # the line of numbers says how many diverged
                if not len(runs):
                    continue
                mean, deviation = runs.mean(0), runs.std(0)
                updates = np.arange(len(mean))
                axes.plot(updates, mean, color=COLOURS[kind], label=TITLES[kind])
                low = np.maximum(mean - deviation, mean / 10)
                axes.fill_between(updates, low, mean + deviation, color=COLOURS[kind], alpha=0.2, linewidth=0)
            axes.set_yscale("log")
            axes.set(xlabel="update", ylabel=f"{part} loss, share of its start")
            axes.set_title(f"η = {rate}", fontsize=9)
    limits = [limit for axes in figure.axes for limit in axes.get_ylim()]
    for axes in figure.axes:
        axes.set_ylim(min(limits), max(limits))  # one scale, so that panels can be compared
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=3, fontsize=8)
    return figure
