"""Figures 11-13: digits with random labels under each penalty: accuracies, and spectra along a latent line (§3.3.2)."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float
from matplotlib.figure import Figure
from torch import Generator, Tensor
from torch.nn import functional as F

from theta0.papers.datasets import Dataset, load, two_classes
from theta0.papers.drawing import finish, new_figure
from theta0.papers.furusho2020thesis.penalized import COLOURS, PENALTIES, TITLES, Stack, stacked, train
from theta0.papers.models import he_perceptron, trained_autoencoder
from theta0.papers.sweeps import Configuration, Progress, Store, sweep
from theta0.spectra import fourier_amplitude

RANDOM_SHARE = 0.65
BATCH = 32
COEFFICIENTS = {"none": 0.0, "l2": 0.1, "l1": 0.01, "path": 3e-4}
LINE = 100  # images along the latent line z in [-2, 2]
_MOMENTS = 300  # accuracies are kept at so many epochs at most


@dataclass(frozen=True)
class Size:
    """How long the networks train.

    Attributes:
        epochs: passes over the training set.
        trials: starts, each with its own random labels and order of batches.
        line_steps: updates of the autoencoder.
    """

    epochs: int
    trials: int
    line_steps: int


# The thesis gives no number of epochs. At its rate of 0.001 the plain network begins to memorise after about 3,000.
_FULL = Size(6000, 3, 2000)
SIZES = {"smoke": Size(20, 2, 100), "laptop": _FULL, "paper": _FULL}


def draw_digits(
    name: str,
    data: Dataset | str | None = None,
    root: str | Path | None = None,
    *,
    scale: str = "laptop",
    out_dir: str | Path = ".",
    store: Store | None = None,
    backend: str = "loky",
    jobs: int = 1,
    progress: Progress | None = None,
) -> str:
    """Train with each penalty and draw accuracies (fig11), outputs and spectra (fig12) or the latent line (fig13).

    All penalties and trials train in one stack.

    Args:
        name: `fig11`, `fig12` or `fig13`; all draw from the same run.
        data: a data set or its name; None for scikit-learn's digits, the thesis's small data set.
        root: where its files are.
        scale: `smoke` (seconds), `laptop` or `paper` (minutes, the thesis's sizes).
        out_dir: where `name.png` and `name.json` go, and the run, so that the other figures find it.
        store: results kept across interruptions; `out_dir/penalized_digits.jsonl` by default.
        backend: joblib's.
        jobs: not of use: there is one stack.
        progress: called with how many stacks are done, and of how many.

    Returns:
        One line that compares with the thesis.

    Raises:
        ValueError: there is no such scale.
    """
    if scale not in SIZES:
        raise ValueError(f"scale {scale!r} is not known: choose one of {list(SIZES)}")
    size = SIZES[scale]
    chosen = load(data, root) if isinstance(data, str) else data or load("digits")
    chosen = two_classes(chosen, 0, 1)
    configuration = {
        "experiment": "penalized digits",
        "data": chosen.label,
        "samples": [len(chosen.train_x), len(chosen.test_x)],
        "coefficients": COEFFICIENTS,
        "random_share": RANDOM_SHARE,
        "epochs": size.epochs,
        "trials": size.trials,
        "line_steps": size.line_steps,
    }
    kept = store or Store(Path(out_dir) / "penalized_digits.jsonl")
    compute = partial(trained, chosen)
    (run,) = sweep(compute, [configuration], store=kept, backend=backend, jobs=jobs, progress=progress)
    drawn: dict[str, Callable[[dict[str, Any]], Figure]] = {"fig11": _accuracies, "fig12": _spectra, "fig13": _line}
    finish(drawn[name](run), {"configuration": configuration, "result": run}, out_dir, name)
    return f"{name}, {chosen.label}: {_sentence(run, name)}"


fig11 = partial(draw_digits, "fig11")
fig12 = partial(draw_digits, "fig12")
fig13 = partial(draw_digits, "fig13")


def trained(data: Dataset, configuration: Configuration) -> dict[str, Any]:
    """Train one network per penalty and trial; a trial's start, labels and batches are the same under all penalties.

    Args:
        data: two classes.
        configuration: coefficients, random_share, epochs, trials, line_steps.

    Returns:
        By penalty: `train` and `test` accuracies `[trial][moment]`, σ∘f along the line `[trial][z]`, its normalised
        `amplitudes` `[trial][frequency]`; and the `epochs` of the moments and the `images` of the line.
    """
    torch.set_flush_denormal(True)
    trials, epochs = configuration["trials"], configuration["epochs"]
    x, test_x = data.train_x.flatten(1), data.test_x.flatten(1)
    members = len(PENALTIES) * trials
    labels = torch.stack([_noisy(data.train_y, configuration["random_share"], trial) for trial in range(trials)])
    y = labels.repeat(len(PENALTIES), 1).unsqueeze(2)
    starts = [Generator().manual_seed(trial) for _ in PENALTIES for trial in range(trials)]
    stack = stacked([he_perceptron([x.shape[1], 20, 20, 20, 1], generator=g) for g in starts])
    per_epoch = len(x) // BATCH
    every = max(1, epochs // _MOMENTS)
    seen: dict[str, list[Tensor]] = {"train": [], "test": []}

    def observe(step: int) -> None:
        fits = (stack.outputs(x.expand(members, -1, -1)) > 0) == (y > 0.5)
        right = (stack.outputs(test_x.expand(members, -1, -1)).squeeze(2) > 0) == (data.test_y > 0)
        seen["train"].append(fits.double().mean((1, 2)))
        seen["test"].append(right.double().mean(1))

    train(
        stack,
        x.expand(members, -1, -1),
        y,
        F.binary_cross_entropy_with_logits,
        penalties=[(kind, configuration["coefficients"][kind]) for kind in PENALTIES for _ in range(trials)],
        optimizer=lambda weights: torch.optim.SGD(weights, 1e-3),
        steps=epochs * per_epoch,
        rows=_batches(len(x), trials),
        every=every * per_epoch,
        observe=observe,
    )
    parts = {key: torch.stack(values, 1) for key, values in seen.items()} | _along_line(stack, x, configuration)
    images = parts.pop("images")
    by_penalty = {
        kind: {key: _rounded(value.view(len(PENALTIES), trials, -1)[place]) for key, value in parts.items()}
        for place, kind in enumerate(PENALTIES)
    }
    return {"epochs": list(range(0, epochs + 1, every)), "images": _rounded(images), "penalties": by_penalty}


def _noisy(labels: Tensor, share: float, trial: int) -> Float[Tensor, " n"]:
    """Labels of which a share is drawn anew, half of those by chance as they were."""
    generator = Generator().manual_seed(2000 + trial)
    drawn = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    noisy = labels.float().clone()
    noisy[drawn] = torch.randint(2, (len(drawn),), generator=generator).float()
    return noisy


def _batches(samples: int, trials: int) -> Callable[[int], Tensor]:
    """Samples of each update: a new order every epoch, for each trial its own, the same under all penalties."""
    generators = [Generator().manual_seed(3000 + trial) for trial in range(trials)]
    order = torch.empty(0)
    per_epoch = samples // BATCH

    def rows(step: int) -> Tensor:
        nonlocal order
        place = step % per_epoch
        if place == 0:
            shuffled = torch.stack([torch.randperm(samples, generator=g) for g in generators])
            order = shuffled.repeat(len(PENALTIES), 1)
        return order[:, place * BATCH : (place + 1) * BATCH]

    return rows


def _along_line(stack: Stack, x: Float[Tensor, "n pixels"], configuration: Configuration) -> dict[str, Tensor]:
    autoencoder = trained_autoencoder(x, steps=configuration["line_steps"], seed=0)
    members = len(next(iter(stack.weights.values())))

    def outputs(z: Float[Tensor, "n 1"]) -> Float[Tensor, "n members"]:
        images = autoencoder.images(z)
        return torch.sigmoid(stack.outputs(images.expand(members, -1, -1)).squeeze(2).T)

    z = -2 + 4 * torch.arange(LINE) / LINE
    spectrum = fourier_amplitude(outputs, z, normalization="unit")
    with torch.no_grad():
        images = autoencoder.images(z.unsqueeze(1))
        along = outputs(z.unsqueeze(1)).T
    return {"along": along, "amplitudes": spectrum.amplitudes, "images": images}


def _rounded(values: Tensor) -> list[Any]:
    found: list[Any] = (values.double() * 1e6).round().div(1e6).tolist()
    return found


def _ends(run: dict[str, Any], kind: str) -> Float[np.ndarray, " trials"]:
    return np.array(run["penalties"][kind]["test"])[:, -1]


def _sentence(run: dict[str, Any], name: str) -> str:
    if name == "fig13":
        return f"{len(run['images'])} images along z in [-2, 2]"
    if name == "fig12":
        high = {k: np.square(np.array(run["penalties"][k]["amplitudes"])[:, 5:]).sum(1).mean() for k in PENALTIES}
        shares = ", ".join(f"{TITLES[kind]} {share:.2g}" for kind, share in high.items())
        return (
            f"share of the power of σ∘f beyond 4 cycles of the line: {shares}; the thesis has spikes without a penalty"
        )
    ends = {kind: _ends(run, kind) for kind in PENALTIES}
    shown = ", ".join(f"{TITLES[kind]} {' '.join(f'{a:.3f}' for a in ends[kind])}" for kind in PENALTIES)
    margins = ", ".join(f"{TITLES[k]} {(ends[k] - ends['none']).min():+.3f}" for k in PENALTIES[1:])
    return (
        f"test accuracy of each trial after {run['epochs'][-1]} epochs: {shown}; smallest gain over trials: {margins}"
    )


def _accuracies(run: dict[str, Any]) -> Figure:
    figure = new_figure(2, 2, height=2.5)
    figure.suptitle("Accuracy, 65 % of the training labels redrawn (mean ± s.d. of trials)", fontsize=10)
    for axes, kind in zip(figure.axes, PENALTIES, strict=True):
        for part, style in (("train", "#5b6472"), ("test", "#c1521c")):
            curves = np.array(run["penalties"][kind][part])
            mean, deviation = curves.mean(0), curves.std(0)
            label = "training set (noisy labels)" if part == "train" else "test set (true labels)"
            axes.plot(run["epochs"], mean, color=style, label=label)
            axes.fill_between(run["epochs"], mean - deviation, mean + deviation, color=style, alpha=0.2, linewidth=0)
        axes.set(xlabel="epoch", ylabel="accuracy", ylim=(0.4, 1.02))
        axes.set_title(_title(kind), fontsize=9)
    handles, labels = figure.axes[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=2, fontsize=8)
    return figure


def _spectra(run: dict[str, Any]) -> Figure:
    figure = new_figure(4, 2, height=2.3)
    z = -2 + 4 * np.arange(LINE) / LINE
    for column, kind in enumerate(PENALTIES):
        above, below = figure.axes[column], figure.axes[4 + column]
        found = run["penalties"][kind]
        for values, amplitudes in zip(found["along"], found["amplitudes"], strict=True):
            above.plot(z, values, color=COLOURS[kind], linewidth=1.2)
            below.plot(range(len(amplitudes)), amplitudes, color=COLOURS[kind], linewidth=1.2)
        above.set(xlabel="z", ylabel="σ∘f", ylim=(-0.03, 1.03))
        below.set(xlabel="cycles on the line", ylabel="normalised amplitude", yscale="log", ylim=(1e-4, 1.2))
        above.set_title(_title(kind), fontsize=9)
    return figure


def _line(run: dict[str, Any]) -> Figure:
    images = np.array(run["images"])
    side = round(images.shape[1] ** 0.5)
    figure = new_figure(10, 2, height=1.0)
    figure.set_size_inches(9.0, 2.4)
    for axes, place in zip(figure.axes, np.linspace(0, len(images) - 1, 20).round().astype(int), strict=True):
        axes.imshow(images[place].reshape(side, side), cmap="gray_r", vmin=0, vmax=1)
        axes.set_title(f"z = {-2 + 4 * place / LINE:.2f}", fontsize=7)
        axes.set(xticks=[], yticks=[])
    return figure


def _title(kind: str) -> str:
    return TITLES[kind] if kind == "none" else f"{TITLES[kind]}, C = {COEFFICIENTS[kind]:g}"
