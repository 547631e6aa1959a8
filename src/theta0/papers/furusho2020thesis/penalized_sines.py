"""Figures 8-10: which frequencies of a noisy sum of sines a network learns under each penalty (§3.3.1)."""

from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from torch import Generator, Tensor

from theta0.papers.drawing import finish, new_figure
from theta0.papers.furusho2020thesis.penalized import COLOURS, PENALTIES, TITLES, stacked, train
from theta0.papers.furusho2020thesis.setting import half_squared_error
from theta0.papers.models import he_perceptron
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep
from theta0.spectra import fourier_amplitude

FREQUENCIES = (3, 6, 9, 20, 23, 26)
HEIGHTS = (1.0, 1.0, 1.0, 0.4, 0.4, 0.4)
NOISE = (20, 23, 26)
POINTS = 200
COEFFICIENTS = {"none": 0.0, "l2": 0.03, "l1": 0.002, "path": 1e-5}
# The published C of L2 takes a good part of k = 9 along with the noise; half of it spares k = 9 and takes less noise.
HALF = "l2, half"
RUNS = {**{kind: (kind, c) for kind, c in COEFFICIENTS.items()}, HALF: ("l2", COEFFICIENTS["l2"] / 2)}
LABELS = {**TITLES, HALF: "L2, half of C"}
EVERY = 100


@dataclass(frozen=True)
class Size:
    """How long the networks train.

    Attributes:
        steps: number of updates.
        trials: number of targets, each with a network of its own.
        widths: of the input, the hidden layers and the output.
    """

    steps: int
    trials: int
    widths: tuple[int, ...]


_FULL = Size(8000, 3, (1, 100, 100, 100, 100, 1))
SIZES = {"smoke": Size(300, 2, (1, 20, 20, 1)), "laptop": _FULL, "paper": _FULL}


def draw_sines(
    name: str,
    data: str | None = None,
    root: str | Path | None = None,
    *,
    scale: str = "laptop",
    out_dir: str | Path = ".",
    store: Store | None = None,
    backend: str | None = None,
    jobs: int | None = None,
    progress: Progress | None = None,
) -> str:
    """Train with each penalty and draw norms (fig9) or amplitudes (fig10) over updates.

    Args:
        name: `fig9` or `fig10`; both draw from the same runs.
        data: not used: the targets are made here.
        root: likewise.
        scale: `smoke` (seconds), `laptop` or `paper` (minutes, the thesis's sizes).
        out_dir: where `name.png` and `name.json` go, and the runs, so that the other figure finds them.
        store: results kept across interruptions; `out_dir/penalized_sines.jsonl` by default.
        backend: joblib's.
        jobs: penalties trained at once.
        progress: called with how many penalties are done, and of how many.

    Returns:
        One line that compares with the thesis.
    """
    size = _size(scale)
    configurations = [
        {
            "experiment": "penalized sines",
            "penalty": kind,
            "coefficient": coefficient,
            "steps": size.steps,
            "trials": size.trials,
            "widths": list(size.widths),
        }
        for kind, coefficient in RUNS.values()
    ]
    kept = store or Store(Path(out_dir) / "penalized_sines.jsonl")
    results = sweep(trained, configurations, store=kept, backend=backend, jobs=jobs, progress=progress)
    runs = dict(zip(RUNS, results, strict=True))
    figure = _norms_drawn(runs) if name == "fig9" else _amplitudes_drawn(runs)
    finish(figure, {"configurations": configurations, "results": results}, out_dir, name)
    return f"{name}, sums of sines: {_sentence(runs, name)}"


def draw_targets(
    data: str | None = None, root: str | Path | None = None, *, out_dir: str | Path = ".", **unused: Any
) -> str:
    """Figure 8: inputs, targets and their Fourier amplitudes, for the first trial.

    Args:
        data: not used.
        root: not used.
        out_dir: where the files go.
        unused: the options of the other figures.

    Returns:
        One line.
    """
    x, y = grid(), targets(0)
    spectrum = fourier_amplitude(lambda t: y, x)
    figure = new_figure(2)
    left, right = figure.axes
    left.plot(x, y, color=COLOURS["none"], linewidth=1)
    left.set(xlabel="x", ylabel="y")
    right.vlines(spectrum.frequencies[:40], 0, spectrum.amplitudes[:40], color=COLOURS["l2"], linewidth=3)
    right.set(xlabel="frequency k", ylabel="amplitude")
    numbers = {"x": x.tolist(), "y": y.tolist(), "amplitudes": spectrum.amplitudes.tolist()}
    finish(figure, numbers, out_dir, "fig8")
    found = ", ".join(f"{spectrum.at(k):.2f} at {k}" for k in FREQUENCIES)
    return f"fig8, sums of sines: amplitudes {found}; the thesis's eq. 25 has 1 and 0.4"


fig8 = draw_targets
fig9 = partial(draw_sines, "fig9")
fig10 = partial(draw_sines, "fig10")


def grid() -> Float[Tensor, " points"]:
    """The 200 inputs, equally spaced on [0, 1) so that every whole frequency has its own line.

    Returns:
        The grid.
    """
    return torch.arange(POINTS) / POINTS


def targets(trial: int) -> Float[Tensor, " points"]:
    """Target function plus noise with phases drawn for this trial (furusho2020thesis, eq. 25).

    Args:
        trial: its number.

    Returns:
        y at the grid's points.
    """
    phases = torch.rand(len(FREQUENCIES), generator=torch.Generator().manual_seed(1000 + trial)) * 2 * torch.pi
    waves = zip(FREQUENCIES, HEIGHTS, phases, strict=True)
    return torch.stack([a * torch.sin(2 * torch.pi * k * grid() + phase) for k, a, phase in waves]).sum(0)


def trained(configuration: Configuration) -> dict[str, Any]:
    """Train one network per trial with one penalty.

    Args:
        configuration: penalty, coefficient, steps, trials, widths.

    Returns:
        `norms` by penalty `[trial][moment]` and `amplitudes` `[trial][moment][frequency up to 40]`, every 100 updates.
    """
    torch.set_flush_denormal(True)  # in every worker: norm penalties make denormal numbers, ten times slower
    trials = configuration["trials"]
    models = [
        he_perceptron(list(configuration["widths"]), generator=Generator().manual_seed(trial))
        for trial in range(trials)
    ]
    stack = stacked(models)
    x = grid()
    y = torch.stack([targets(trial) for trial in range(trials)]).unsqueeze(2)
    norms: dict[str, list[list[float]]] = {}
    amplitudes = []

    def observe(step: int) -> None:
        for kind, values in stack.norms().items():
            norms.setdefault(kind, []).append([round(value, 4) for value in values])
        spectrum = fourier_amplitude(lambda t: stack.outputs(t.expand(trials, -1, -1)).squeeze(2).T, x)
        amplitudes.append([[round(a, 4) for a in row[:41]] for row in spectrum.amplitudes.tolist()])

    train(
        stack,
        x.view(1, -1, 1).expand(trials, -1, -1),
        y,
        half_squared_error,
        penalties=[(configuration["penalty"], configuration["coefficient"])] * trials,
        optimizer=lambda weights: torch.optim.Adam(weights, 1e-3),
        steps=configuration["steps"],
        every=EVERY,
        observe=observe,
    )
    turned = {kind: np.array(values).T.tolist() for kind, values in norms.items()}
    return {"norms": turned, "amplitudes": np.array(amplitudes).swapaxes(0, 1).tolist()}


def summed(run: dict[str, Any], frequencies: tuple[int, ...], moment: int = -1) -> Float[np.ndarray, " trials"]:
    """Amplitudes summed over some frequencies.

    Args:
        run: a result of `trained`.
        frequencies: which.
        moment: the observation, the last by default.

    Returns:
        One number per trial.
    """
    amplitudes: Float[np.ndarray, "trials moments k"] = np.array(run["amplitudes"])
    return np.asarray(amplitudes[:, moment, list(frequencies)].sum(1))


def _size(scale: str) -> Size:
    return scale_named(SIZES, scale)


def _sentence(runs: dict[str, Any], name: str) -> str:
    updates = EVERY * (len(runs["none"]["amplitudes"][0]) - 1)
    if name == "fig9":
        parts = []
        for kind in PENALTIES[1:]:
            ends = {of: np.mean([trial[-1] for trial in runs[of]["norms"][kind]]) for of in ("none", kind)}
            parts.append(f"{TITLES[kind]} norm {ends['none']:.4g} without its penalty, {ends[kind]:.4g} with")
        return f"after {updates} updates " + "; ".join(parts)
    plain = summed(runs["none"], NOISE).mean()
    noise = {run: max(summed(runs[run], NOISE).mean(), 1e-9) for run in RUNS}
    parts = [f"{LABELS[run]} {plain / noise[run]:.2f}" for run in RUNS if run != "none"]
    low = {run: np.array(runs[run]["amplitudes"])[:, -1, [3, 6, 9]].mean(0) for run in RUNS}
    learned = "; ".join(f"{LABELS[run]} {', '.join(f'{a:.2f}' for a in low[run])}" for run in RUNS)
    return (
        f"after {updates} updates the noise's amplitudes sum to {plain:.3f} without a penalty and are smaller with one "
        f"by {', '.join(parts)} times; amplitudes at 3, 6, 9 (target 1): {learned}"
    )


def _norms_drawn(runs: dict[str, Any]) -> Figure:
    figure = new_figure(3)
    figure.suptitle("Norms while training (mean ± s.d. of trials)", fontsize=10)
    for axes, norm in zip(figure.axes, PENALTIES[1:], strict=True):
        for kind in PENALTIES:
            _band(axes, np.array(runs[kind]["norms"][norm]), kind)
        axes.set_yscale("log")
        axes.set(xlabel="update", ylabel=f"ψ of {TITLES[norm]}")
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, fontsize=8)
    return figure


def _amplitudes_drawn(runs: dict[str, Any]) -> Figure:
    figure = new_figure(3, 2, height=2.7)
    figure.suptitle("Amplitudes while training · right: mean ± s.d. of trials, dashed the target", fontsize=10)
    panels = figure.axes
    for axes, kind in zip((*panels[:2], *panels[3:5]), PENALTIES, strict=True):
        mean = np.array(runs[kind]["amplitudes"]).mean(0).T
        extent = (0, EVERY * (mean.shape[1] - 1), -0.5, mean.shape[0] - 0.5)
        shown = axes.imshow(mean, origin="lower", aspect="auto", extent=extent, vmin=0, vmax=1, cmap="viridis")
        axes.set_title(f"{TITLES[kind]}, C = {COEFFICIENTS[kind]:g}" if kind != "none" else TITLES[kind], fontsize=9)
        axes.set(xlabel="update", ylabel="frequency k", yticks=FREQUENCIES)
    figure.colorbar(shown, ax=panels[4], label="amplitude")
    for axes, ks, target in ((panels[2], FREQUENCIES[:3], 3.0), (panels[5], NOISE, 1.2)):
        for run in RUNS:
            _band(axes, np.array(runs[run]["amplitudes"])[:, :, list(ks)].sum(2), run)
        axes.axhline(target, color="black", linestyle="--", linewidth=1)
        axes.set(xlabel="update", ylabel="sum at k = " + ", ".join(map(str, ks)), ylim=(0, 1.1 * target))
    handles, labels = panels[2].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=5, fontsize=8)
    return figure


def _band(axes: Axes, curves: Float[np.ndarray, "trials moments"], run: str) -> None:
    mean, deviation = curves.mean(0), curves.std(0)
    updates, colour = EVERY * np.arange(len(mean)), COLOURS[RUNS[run][0]]
    axes.plot(updates, mean, color=colour, label=LABELS[run], linestyle=":" if run == HALF else "-")
    axes.fill_between(updates, mean - deviation, mean + deviation, color=colour, alpha=0.2, linewidth=0)
