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
from theta0.papers.drawing import finish
from theta0.papers.furusho2020thesis.penalized import Stack, stacked, train
from theta0.papers.furusho2020thesis.penalized_digits_drawn import Penalties, accuracies, line, spectra, title
from theta0.papers.models import he_perceptron, trained_autoencoder
from theta0.papers.scales import scale_named
from theta0.papers.sweeps import Configuration, Progress, Store, sweep
from theta0.spectra import fourier_amplitude

RANDOM_SHARE = 0.65
BATCH = 32
# The published C of L2 and L1 end in networks that answer one class, L2's in every trial within 8,200 epochs; half of
# each, chosen on trials 3 to 8, does not within 15,000.
RUNS = {
    "none": ("none", 0.0),
    "path": ("path", 3e-4),
    "l2": ("l2", 0.1),
    "l2, half": ("l2", 0.05),
    "l1": ("l1", 0.01),
    "l1, half": ("l1", 0.005),
}
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
    backend: str | None = None,
    jobs: int | None = None,
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
    size = scale_named(SIZES, scale)
    chosen = load(data, root) if isinstance(data, str) else data or load("digits")
    chosen = two_classes(chosen, 0, 1)
    configuration = {
        "experiment": "penalized digits",
        "data": chosen.label,
        "samples": [len(chosen.train_x), len(chosen.test_x)],
        "runs": {run: list(penalty) for run, penalty in RUNS.items()},
        "random_share": RANDOM_SHARE,
        "epochs": size.epochs,
        "trials": size.trials,
        "line_steps": size.line_steps,
    }
    kept = store or Store(Path(out_dir) / "penalized_digits.jsonl")
    compute = partial(trained, chosen)
    (run,) = sweep(compute, [configuration], store=kept, backend=backend, jobs=jobs, progress=progress)
    drawn: dict[str, Callable[[dict[str, Any], Penalties], Figure]]
    drawn = {"fig11": accuracies, "fig12": spectra, "fig13": line}
    finish(drawn[name](run, RUNS), {"configuration": configuration, "result": run}, out_dir, name)
    return f"{name}, {chosen.label}: {_sentence(run, name)}"


fig11 = partial(draw_digits, "fig11")
fig12 = partial(draw_digits, "fig12")
fig13 = partial(draw_digits, "fig13")


def trained(data: Dataset, configuration: Configuration) -> dict[str, Any]:
    """Train one network per run and trial; a trial's start, labels and batches are the same in all runs.

    Args:
        data: two classes.
        configuration: runs (a name, its penalty and C), random_share, epochs, trials, line_steps.

    Returns:
        By run: `train` and `test` accuracies and `ones`, the share of training images answered 1, `[trial][moment]`,
        `norms` of the four layers' weights at the end `[trial][layer]`, σ∘f along the line `[trial][z]`, its
        normalised `amplitudes` `[trial][frequency]`; and the `epochs` of the moments and the `images` of the line.
    """
    torch.set_flush_denormal(True)
    trials, epochs = configuration["trials"], configuration["epochs"]
    x, runs = data.train_x.flatten(1), configuration["runs"]
    members = len(runs) * trials
    labels = torch.stack([_noisy(data.train_y, configuration["random_share"], trial) for trial in range(trials)])
    y = labels.repeat(len(runs), 1).unsqueeze(2)
    starts = [Generator().manual_seed(trial) for _ in runs for trial in range(trials)]
    stack = stacked([he_perceptron([x.shape[1], 20, 20, 20, 1], generator=g) for g in starts])
    per_epoch = len(x) // BATCH
    every = max(1, epochs // _MOMENTS)
    seen, observe = _observed(stack, data, y)
    train(
        stack,
        x.expand(members, -1, -1),
        y,
        F.binary_cross_entropy_with_logits,
        penalties=[(kind, coefficient) for kind, coefficient in runs.values() for _ in range(trials)],
        optimizer=lambda weights: torch.optim.SGD(weights, 1e-3),
        steps=epochs * per_epoch,
        rows=_batches(len(x), trials, len(runs)),
        every=every * per_epoch,
        observe=observe,
    )
    parts = {key: torch.stack(values, 1) for key, values in seen.items()} | _along_line(stack, x, configuration)
    images = parts.pop("images")
    weights = [weight.detach() for name, weight in stack.weights.items() if name.endswith("weight")]
    parts["norms"] = torch.stack([weight.flatten(1).norm(dim=1) for weight in weights], 1)
    by_run = {
        run: {key: _rounded(value.view(len(runs), trials, -1)[place]) for key, value in parts.items()}
        for place, run in enumerate(runs)
    }
    return {"epochs": list(range(0, epochs + 1, every)), "images": _rounded(images), "runs": by_run}


def _observed(
    stack: Stack, data: Dataset, y: Float[Tensor, "members n 1"]
) -> tuple[dict[str, list[Tensor]], Callable[[int], None]]:
    """What is seen of the networks while they train, and the observer that fills it."""
    seen: dict[str, list[Tensor]] = {"train": [], "test": [], "ones": []}
    x, test_x = (images.flatten(1).expand(len(y), -1, -1) for images in (data.train_x, data.test_x))

    def observe(step: int) -> None:
        answers = stack.outputs(x) > 0
        right = (stack.outputs(test_x).squeeze(2) > 0) == (data.test_y > 0)
        seen["train"].append((answers == (y > 0.5)).double().mean((1, 2)))
        seen["test"].append(right.double().mean(1))
        seen["ones"].append(answers.double().mean((1, 2)))

    return seen, observe


def _noisy(labels: Tensor, share: float, trial: int) -> Float[Tensor, " n"]:
    """Labels of which a share is drawn anew, half of those by chance as they were."""
    generator = Generator().manual_seed(2000 + trial)
    drawn = torch.randperm(len(labels), generator=generator)[: round(share * len(labels))]
    noisy = labels.float().clone()
    noisy[drawn] = torch.randint(2, (len(drawn),), generator=generator).float()
    return noisy


def _batches(samples: int, trials: int, runs: int) -> Callable[[int], Tensor]:
    """Samples of each update: a new order every epoch, for each trial its own, the same in all runs."""
    generators = [Generator().manual_seed(3000 + trial) for trial in range(trials)]
    order = torch.empty(0)
    per_epoch = samples // BATCH

    def rows(step: int) -> Tensor:
        nonlocal order
        place = step % per_epoch
        if place == 0:
            shuffled = torch.stack([torch.randperm(samples, generator=g) for g in generators])
            order = shuffled.repeat(runs, 1)
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


def gains(run: dict[str, Any], name: str) -> Float[np.ndarray, " trials"]:
    """How much higher the test accuracy of each trial ends than the plain network's of the same trial.

    Args:
        run: a result of `trained`.
        name: a key of `RUNS`.

    Returns:
        Differences of accuracies.
    """
    with_penalty, without = (np.array(run["runs"][which]["test"])[:, -1] for which in (name, "none"))
    return np.asarray(with_penalty - without)


def collapses(run: dict[str, Any], name: str) -> list[int | None]:
    """From which epoch to the end a network answers one class, whatever training image it is shown.

    Args:
        run: a result of `trained`.
        name: a key of `RUNS`.

    Returns:
        One epoch per trial, None where the network answers both classes at the end.
    """
    found: list[int | None] = []
    for ones in run["runs"][name]["ones"]:
        both = [place for place, share in enumerate(ones) if 0 < share < 1]
        after = both[-1] + 1 if both else 0
        found.append(run["epochs"][after] if after < len(ones) else None)
    return found


def _sentence(run: dict[str, Any], name: str) -> str:
    if name == "fig13":
        return f"{len(run['images'])} images along z in [-2, 2]"
    if name == "fig12":
        high = {key: np.square(np.array(run["runs"][key]["amplitudes"])[:, 5:]).sum(1).mean() for key in RUNS}
        shares = "; ".join(f"{title(*RUNS[key])}: {share:.2g}" for key, share in high.items())
        return (
            f"share of the power of σ∘f beyond 4 cycles of the line: {shares}; the thesis has spikes without a penalty"
        )
    parts = [f"test accuracy of each trial after {run['epochs'][-1]} epochs (gain over no penalty: mean, smallest)"]
    for key, penalty in RUNS.items():
        shown = " ".join(f"{trial[-1]:.3f}" for trial in run["runs"][key]["test"])
        gained = gains(run, key)
        gain = f" ({gained.mean():+.3f}, {gained.min():+.3f})" if key != "none" else ""
        since = [f"{epoch}" for epoch in collapses(run, key) if epoch is not None]
        fallen = f", one class only from epoch {' '.join(since)} on" if since else ""
        parts.append(f"{title(*penalty)}: {shown}{gain}{fallen}")
    return "; ".join(parts)
